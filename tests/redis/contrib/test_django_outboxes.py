"""Which databases of a Django project have outboxes, and what is said where something is missing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.contrib.outbox.relay import NoTables
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from tests import forkserver
from tests.django_stage import SETTINGS, django_project
from tests.kit import ROOT, RedisServer

__all__ = ["django_project"]

pytestmark = [pytest.mark.usefixtures("django_project"), pytest.mark.kiq("real")]
SETTING = "KIQCLUSTER_OUTBOX_DATABASES"


@pytest.fixture
def invoice(django_project: Setup) -> Any:
    from tests.apps.django_project.shop.jobs import Invoice

    return Invoice


def test_a_database_without_a_relay_takes_no_jobs(invoice: Any) -> None:
    from django.test import override_settings

    from kiqcluster.contrib.django import outbox

    with pytest.raises(UsageError, match=SETTING):
        outbox(invoice, using="orders")
    with override_settings(**{SETTING: []}), pytest.raises(UsageError, match=SETTING):
        outbox(invoice)
    with override_settings(**{SETTING: ("orders",)}):
        outbox(invoice, using="orders")


def test_a_setting_that_is_no_list_of_names_is_refused(django_project: Setup) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from kiqcluster.contrib.django.outbox_tables import use_outboxes

    for value in ("default", None, {"default": 1}, [7]):
        with override_settings(**{SETTING: value}), pytest.raises(ImproperlyConfigured, match=SETTING):
            use_outboxes()
    assert django_project.due_sources == []


@pytest.fixture
def one_writer(tmp_path: Path, django_project: Setup) -> Iterator[str]:
    """The alias of a database on disk, without tables."""
    from django.db import connections

    fields = {**connections["default"].settings_dict, "NAME": str(tmp_path / "one.db"), "OPTIONS": {"timeout": 0.1}}
    connections.databases["one"] = fields
    yield "one"
    connections["one"].close()
    del connections["one"], connections.databases["one"]


def test_without_its_tables_check_and_relay_say_what_to_do(one_writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.checks import run_checks
    from django.core.management import call_command
    from django.test import override_settings

    from kiqcluster.contrib.django.outbox_tables import DjangoTable

    table = DjangoTable(one_writer)

    def warned(*databases: str) -> list[str]:
        return [each.hint for each in run_checks(databases=databases) if each.id == "kiqcluster.W010"]

    with override_settings(**{SETTING: [one_writer]}):
        assert warned("orders") == []
        (hint,) = warned("orders", one_writer)
        assert "manage.py migrate --database one" in hint
        with monkeypatch.context() as running:
            running.setattr("sys.argv", ["manage.py", "migrate"])
            assert warned(one_writer) == []  # it is about to make them
        for ask in (lambda: table.locked(1, 0.0, (), None).__enter__(), table.summary, table.retry_refused):
            with pytest.raises(NoTables, match="migrate --database one"):
                ask()

        call_command("migrate", "kiqcluster", database=one_writer, verbosity=0, skip_checks=True)
        assert warned(one_writer) == []
        assert table.summary().waiting == 0


def test_a_database_that_does_not_answer_fails_no_check(one_writer: str) -> None:
    from django.core.checks import run_checks
    from django.db import connections
    from django.test import override_settings

    connections.databases[one_writer]["NAME"] = "/no/such/folder/one.db"
    with override_settings(**{SETTING: [one_writer]}):
        assert [each for each in run_checks(databases=[one_writer]) if "W010" in str(each.id)] == []


def test_an_empty_outbox_of_sqlite_holds_up_no_writer(one_writer: str) -> None:
    from django.core.management import call_command
    from django.db import connections

    from kiqcluster.contrib.django.outbox_tables import DjangoTable

    call_command("migrate", "kiqcluster", database=one_writer, verbosity=0, skip_checks=True)
    writer = sqlite3.connect(connections[one_writer].settings_dict["NAME"], timeout=0.1)
    insert = "INSERT INTO kiq_inbox VALUES (?, 1.0)"
    writer.execute(insert, ["a"])
    with DjangoTable(one_writer).locked(1, 0.0, (), None) as batch:
        assert batch.rows == []
        writer.commit()
        with writer:
            writer.execute(insert, ["b"])
    writer.close()


def test_check_names_a_database_that_there_is_not(django_project: Setup) -> None:
    from django.test import override_settings

    from kiqcluster.contrib.django.checks import check_application
    from kiqcluster.contrib.django.outbox_tables import use_outboxes

    with override_settings(**{SETTING: ["default", "elsewhere"]}):
        use_outboxes()
        (message,) = [each for each in check_application() if each.id == "kiqcluster.E009"]

    assert [source.name for source in django_project.due_sources] == ["outbox default"]
    assert "'elsewhere'" in message.msg


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({}, ["29"]),
        ({"keep_inbox": timedelta(days=200)}, ["100", "29", "31"]),
        ({"keep_inbox": None}, ["100", "201", "29", "31"]),
    ],
)
def test_a_setting_says_for_how_long_once_remembers(
    values: Any, kept: list[str], one_writer: str, django_project: Setup
) -> None:
    from django.core.management import call_command
    from django.test import override_settings

    from kiqcluster.contrib.django.models import InboxKey
    from kiqcluster.contrib.django.outbox_tables import use_outboxes
    from kiqcluster.process.clock import SystemClock

    call_command("migrate", "kiqcluster", database=one_writer, verbosity=0, skip_checks=True)
    now = SystemClock.now()
    for days in (29, 31, 100, 201):
        InboxKey.objects.using(one_writer).create(key=str(days), recorded_at=now - days * 86_400)
    with override_settings(**{SETTING: [one_writer], "KIQCLUSTER": {"outbox_interval": 7, **values}}):
        use_outboxes()
    (relay,) = django_project.due_sources

    relay.move()

    assert sorted(InboxKey.objects.using(one_writer).values_list("key", flat=True)) == kept
    assert relay.interval == 7


class TestCommand:
    """`python -m kiqcluster.contrib.outbox` in a Django project."""

    @pytest.fixture
    def run(self, kiq_redis: RedisServer, tmp_path: Path) -> Any:
        def run(*words: str, settings: str = SETTINGS) -> subprocess.CompletedProcess[str]:
            told = {"DJANGO_SETTINGS_MODULE": settings, "TEST_DATABASE": str(tmp_path / "shop.db")}
            paths = os.pathsep.join([str(ROOT), str(tmp_path)])
            environ = {**os.environ, **told, "REDIS_URL": kiq_redis.url, "PYTHONPATH": paths}
            return forkserver.run([sys.executable, "-m", *words], env=environ, cwd=tmp_path)

        return run

    def test_the_application_of_django_has_its_outboxes(self, run: Any) -> None:
        migrated = run("django", "migrate", "kiqcluster", "-v0", "--skip-checks")
        said = run("kiqcluster.contrib.outbox", "-r", "kiqcluster.contrib.django:load", "status")

        assert (migrated.returncode, said.returncode) == (0, 0), migrated.stderr + said.stderr
        assert said.stdout == "default: 0 waiting; 0 with a problem\n"

    def test_another_application_is_told_what_to_pass(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "without.py").write_text(f"from {SETTINGS} import *\nKIQCLUSTER_OUTBOX_DATABASES = []\n")
        (tmp_path / "bare.py").write_text("")
        command = ("kiqcluster.contrib.outbox", "-r")

        without = run(*command, "kiqcluster.contrib.django:load", "status", settings="without")
        bare = run(*command, "bare", "status")

        assert (without.returncode, bare.returncode) == (2, 2)
        for said in (without, bare):
            assert "-r kiqcluster.contrib.django:load" in said.stderr
        assert "KIQCLUSTER_OUTBOX_DATABASES" in without.stderr
        assert "use_outbox" not in without.stderr
