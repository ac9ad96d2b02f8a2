"""Django's settings, options of tasks, checks, commands and what workers import; no database and no Redis."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import Celery
from kiqcluster.errors import ApplicationError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests import forkserver
from tests.django_stage import SETTINGS, set_up_django
from tests.kit import ROOT

BACKEND = "kiqcluster.contrib.django.TaskBackend"


@pytest.fixture(autouse=True)
def _project(setup: Setup, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_django()
    monkeypatch.delenv("REDIS_URL", raising=False)
    setup.config = None  # it is the one of Django's settings
    setup.store = Store("redis://127.0.0.1:1/0")  # nobody is there


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, where nobody has imported Django."""
    told = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": SETTINGS, **environ}
    return forkserver.run([sys.executable, "-c", code], env=told, cwd=ROOT)


def test_the_package_is_imported_before_the_applications_are_ready() -> None:
    done = python("import kiqcluster.contrib.django as d, sys; assert 'django' not in sys.modules; print(d.__all__)")

    assert done.returncode == 0, done.stderr


def test_without_django_the_error_names_the_extra() -> None:
    done = python(
        "import sys; sys.modules['django'] = None\nfrom kiqcluster.contrib.django.task_backend import framework"
    )

    assert "pip install 'kiqcluster[django]'" in done.stderr


def test_django_5_without_the_backport_has_everything_but_tasks() -> None:
    import django

    if django.VERSION >= (6, 0):
        pytest.skip("this Django has tasks")
    hide = "import sys, importlib.util as u\nfind = u.find_spec\n"
    hide += "u.find_spec = lambda name, *a: None if name == 'django_tasks' else find(name, *a)\n"
    code = "from django.conf import settings\n"
    code += (
        "settings.configure(INSTALLED_APPS=['kiqcluster.contrib.django'], USE_TZ=True)\nimport django; django.setup()\n"
    )
    code += "sys.modules['django_tasks'] = None\nfrom kiqcluster.contrib.django import TaskBackend"

    done = python(hide + code)

    assert "pip install 'django-tasks'" in done.stderr
    assert "django.setup" not in done.stderr


class TestSettings:
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ("redis://", "is a dict"),
            ({"reddis": "redis://h"}, "did you mean 'redis'"),
            ({"redis": "http://h"}, "http://h"),
            ({"stop": {"timeout": -1}}, r"stop\.timeout"),
            ({"cron": {}}, "kiqcluster.toml"),
            ({"autodiscover": "jobs"}, "list of names"),
            ({"enqueue_on_commit": 3}, "alias of a database"),
            ({"keep_inbox": 30}, "keep_inbox'\\] is a timedelta"),
            ({"keep_inbox": timedelta(0)}, "keep_inbox'\\] is a timedelta"),
            ({"outbox_interval": 0}, "outbox_interval'\\] is a number of seconds"),
            ({"outbox_interval": True}, "outbox_interval'\\] is a number of seconds"),
            ({"outbox_interval": float("inf")}, "outbox_interval'\\] is a number of seconds"),
            ({"outbox_intervall": 1}, "outbox_intervall"),
        ],
    )
    def test_a_value_that_cannot_be_used_is_refused(self, value: Any, said: str) -> None:
        from django.core.exceptions import ImproperlyConfigured
        from django.test import override_settings

        from kiqcluster.contrib.django.settings import read_settings

        with override_settings(), pytest.raises(ImproperlyConfigured, match=said):
            from django.conf import settings

            settings.KIQCLUSTER = value
            read_settings()

    def test_the_process_takes_what_code_may_set(self, setup: Setup) -> None:
        from django.test import override_settings

        with override_settings(KIQCLUSTER={"redis": "redis://of-settings/1", "max_retries": 7, "concurrency": 3}):
            assert setup.current_config().redis == "redis://of-settings/1"
            assert setup.current_config().max_retries == 7
        assert setup.current_config().max_retries == 25  # what another setting had set is gone

    def test_the_environment_goes_before_the_settings(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.test import override_settings

        monkeypatch.setenv("REDIS_URL", "redis://of-environment/1")

        with override_settings(KIQCLUSTER={"redis": "redis://of-settings/1"}):
            assert setup.current_config().redis == "redis://of-environment/1"


class TestVariables:
    def told(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **values: Any) -> dict[str, str]:
        from django.test import override_settings

        from kiqcluster.contrib.django.settings import current_config, variables

        monkeypatch.chdir(tmp_path)
        with override_settings(KIQCLUSTER=values):
            return variables(current_config()[1], SETTINGS)

    def test_other_processes_are_told_of_the_settings(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        told = self.told(
            monkeypatch, tmp_path, redis="redis://h/1", strict=True, groups=["a,b", "c"], routing=[["*", "low"]]
        )

        assert told == {
            "KIQ_REDIS": "redis://h/1",
            "KIQ_STRICT": "true",
            "KIQ_GROUPS": "a,b c",
            "KIQ_ROUTING": '[["*", "low"]]',
            "KIQ_QUEUES": "critical default",
            "KIQ_CRON_APPLICATION": SETTINGS,
        }

    def test_what_environment_and_file_say_is_left_to_them(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("KIQ_STOP_TIMEOUT", "5")
        (tmp_path / "kiqcluster.toml").write_text('redis = "redis://of-file/1"\nqueues = ["x"]\n')

        told = self.told(monkeypatch, tmp_path, redis="redis://h/1", stop={"timeout": 20}, concurrency=3)

        assert told == {"KIQ_CONCURRENCY": "3", "KIQ_CRON_APPLICATION": SETTINGS}


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"retries": 3}, "there is no option 'retries'; retries is here: retry"),
            ({"retry": -1}, "retry = -1"),
            ({"result_ttl": True}, "result_ttl"),
            ({"outbox": 1}, "outbox is True, False or the alias of a database"),
            ({"outboxes": True}, "did you mean 'outbox'"),
            ({"priority_queues": {"high": (1, 2)}}, "no range"),
            ({"priority_queues": {(5, 1): "a"}}, "no range"),
            ({"priority_queues": {(-200, 1): "a"}}, "no range"),
            ({"priority_queues": {(1, 2): "a b"}}, "space"),
            ({"urgency": "high", "resource_boundary": "memory"}, "exclude each other"),
        ],
    )
    def test_those_that_cannot_be_are_refused(self, options: Any, said: str) -> None:
        from django.core.exceptions import ImproperlyConfigured

        from kiqcluster.contrib.django import TaskBackend

        with pytest.raises(ImproperlyConfigured, match=said):
            TaskBackend("default", {"OPTIONS": options})

    def test_a_task_has_its_own(self, registry: Registry) -> None:
        import dataclasses

        from kiqcluster.contrib.django.task_backend.options import BackendOptions, options_of_task
        from tests.apps.django_project.shop import tasks

        mine = dataclasses.replace(tasks.add, retry=5, timeout=30, result_ttl=7)

        wire, local, ttl = options_of_task(BackendOptions({"retry": 1, "tags": ["x"]}), mine)

        assert (wire, local, ttl) == ({"retry": 5, "tags": ["x"]}, {"timeout": 30}, 7)

    def test_an_option_that_does_not_fit_is_an_invalid_task(self) -> None:
        import dataclasses

        from kiqcluster.contrib.django.task_backend.framework import InvalidTask
        from tests.apps.django_project.shop import tasks

        with pytest.raises(InvalidTask, match="retry = 'often'"):
            dataclasses.replace(tasks.add, retry="often")

    def test_an_outbox_is_no_option_of_a_task(self) -> None:
        import dataclasses

        from kiqcluster.contrib.django.task_backend.framework import InvalidTask
        from tests.apps.django_project.shop import tasks

        with pytest.raises(InvalidTask, match=r"outbox\(task\)"):
            dataclasses.replace(tasks.add, outbox=True)

    def test_a_task_is_declared_with_options(self, registry: Registry) -> None:
        import django

        from tests.apps.django_project.declare import task
        from tests.apps.django_project.shop import tasks

        if (6, 0) <= django.VERSION < (6, 1):
            pytest.skip("the decorator of Django 6.0 takes no options of a backend")
        declared = task(retry=4, timeout=9)(tasks.add.func)

        assert (declared.retry, declared.timeout) == (4, 9)
        assert pickle.loads(pickle.dumps(type(declared))) is type(declared)


class TestChecks:
    def said(self, **settings: Any) -> list[str]:
        from django.core.checks import run_checks
        from django.test import override_settings

        with override_settings(**settings):
            return sorted(str(each.id) for each in run_checks(include_deployment_checks=False) if "kiq" in str(each.id))

    def test_a_project_without_an_address_is_warned(self) -> None:
        assert self.said(KIQCLUSTER={}) == ["kiqcluster.W002"]
        assert self.said(KIQCLUSTER={"redis": "redis://h"}) == []

    def test_the_broker_of_a_celery_app_is_an_address(self) -> None:
        Celery("shop", broker="redis://broker:6379/3")

        assert self.said(KIQCLUSTER={}) == []

    @pytest.mark.parametrize(
        ("settings", "number"),
        [
            ({"KIQCLUSTER": {"redis": "redis://h", "enqueue_on_commit": "nowhere"}}, "E004"),
            ({"TASKS": {"default": {"BACKEND": BACKEND, "QUEUES": ["a b"]}}}, "E006"),
            ({"TASKS": {"default": {"BACKEND": BACKEND, "OPTIONS": {"enqueue_on_commit": "nowhere"}}}}, "E004"),
            ({"TASKS": {"default": {"BACKEND": BACKEND, "OPTIONS": {"outbox": "nowhere"}}}}, "E011"),
            ({"TASKS": {"default": {"BACKEND": BACKEND, "OPTIONS": {"outbox": "orders"}}}}, "E011"),
            ({"USE_TZ": False, "TASKS": {"default": {"BACKEND": BACKEND}}}, "W005"),
        ],
    )
    def test_each_mistake_is_said(self, settings: Any, number: str) -> None:
        assert f"kiqcluster.{number}" in self.said(**{"KIQCLUSTER": {"redis": "redis://h"}, **settings})

    def test_a_backend_without_the_application(self) -> None:
        from django.test import override_settings

        from kiqcluster.contrib.django import TaskBackend

        with override_settings(INSTALLED_APPS=[]):
            assert [each.id for each in TaskBackend("default", {}).check()] == ["kiqcluster.W007"]

    def test_settings_that_cannot_be_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KIQ_STOP_TIMEOUT", "soon")

        assert self.said() == ["kiqcluster.E001"]

    def test_a_module_that_cannot_be_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from kiqcluster.contrib.django import checks

        def fail() -> None:
            raise NameError("Jobb")

        monkeypatch.setattr(checks, "autodiscover", fail)

        assert self.said(KIQCLUSTER={"redis": "redis://h"}) == ["kiqcluster.E003"]

    def test_a_task_of_the_program(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        import dataclasses

        from tests.apps.django_project.shop import tasks

        monkeypatch.setattr(tasks.leave.func, "__module__", "__main__")
        dataclasses.replace(tasks.leave)

        assert self.said(KIQCLUSTER={"redis": "redis://h"}) == ["kiqcluster.W008"]


class TestCommands:
    def prepared(self, name: str, *words: str, **settings: Any) -> tuple[list[str], dict[str, str]]:
        import importlib

        from django.test import override_settings

        module = importlib.import_module(f"kiqcluster.contrib.django.management.commands.{name}")
        with override_settings(**settings):
            line, environ = module.Command().prepared(words)
        return line[3:], environ

    @pytest.fixture(autouse=True)
    def _settings(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize("command", ["kiqcluster", "kiqctl"])
    def test_the_redis_of_a_celery_app_is_passed_on(self, command: str) -> None:
        from django.test import override_settings

        Celery("shop", broker="redis://broker:6379/3")

        with override_settings(KIQCLUSTER={}):
            assert self.prepared(command)[1]["KIQ_REDIS"] == "redis://broker:6379/3"
        with override_settings(KIQCLUSTER={"redis": "redis://other"}):
            assert self.prepared(command)[1]["KIQ_REDIS"] == "redis://other"

    def test_all_flags_are_passed_on(self) -> None:
        words, environ = self.prepared("kiqcluster", "default", "-c", "3", "--settings", "x.y", "--drain", "-v")

        assert words == ["-r", "kiqcluster.contrib.django:load", "default", "-c", "3", "--drain", "-v"]
        assert environ["DJANGO_SETTINGS_MODULE"] == SETTINGS

    def test_other_modules_are_required_too(self, tmp_path: Path) -> None:
        (tmp_path / "kiqcluster.toml").write_text('require = ["other.jobs"]\n')

        assert self.prepared("kiqcluster")[0][2:] == ["-r", "other.jobs"]
        assert self.prepared("kiqcluster", "-r", "mine")[0][2:] == ["-r", "mine"]

    def test_without_groups_there_is_one_for_all_queues(self) -> None:
        assert self.prepared("kiqcluster")[1]["KIQ_GROUPS"] == "*"
        assert self.prepared("kiqcluster", KIQCLUSTER={"groups": ["a"]})[1]["KIQ_GROUPS"] == "a"

    def test_a_private_server_of_the_settings_is_started(self, tmp_path: Path) -> None:
        private = {"redis": f"embedded:{tmp_path}"}

        assert self.prepared("kiqcluster", KIQCLUSTER=private)[1]["KIQ_EMBEDDED"] == str(tmp_path)
        assert "KIQ_EMBEDDED" not in self.prepared("kiqctl", "ps", KIQCLUSTER=private)[1]
        assert self.prepared("kiqctl", "ps", KIQCLUSTER=private)[1]["KIQ_REDIS"] == f"embedded:{tmp_path}"

    def test_a_mistake_in_the_settings_is_an_error_of_the_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.core.management.base import CommandError

        monkeypatch.setenv("KIQ_STOP_TIMEOUT", "soon")

        with pytest.raises(CommandError, match=r"stop\.timeout = 'soon'"):
            self.prepared("kiqctl", "ps")


class TestLoading:
    def test_modules_of_applications_are_found(self) -> None:
        from django.test import override_settings

        from kiqcluster.contrib.django.loading import autodiscover

        shop = "tests.apps.django_project.shop"
        assert autodiscover() == [f"{shop}.tasks", f"{shop}.jobs"]
        with override_settings(KIQCLUSTER={"autodiscover": ["jobs"]}):
            assert autodiscover() == [f"{shop}.jobs"]

    def test_without_settings_the_error_says_how_to_name_them(self) -> None:
        done = python("from kiqcluster.contrib.django import load; load()", DJANGO_SETTINGS_MODULE="")

        assert ApplicationError.__name__ in done.stderr
        assert "DJANGO_SETTINGS_MODULE=project.settings" in done.stderr

    def test_a_worker_goes_on_logging_whatever_the_settings_say(self) -> None:
        code = "import logging\nfrom kiqcluster.process.logs import log; log.configure('json', 'info')\n"
        code += "from django.conf import settings\n"
        code += (
            "settings.configure(LOGGING={'version': 1}, INSTALLED_APPS=['kiqcluster.contrib.django'], USE_TZ=True)\n"
        )
        code += (
            "from kiqcluster.contrib.django import load; load()\nassert not logging.getLogger('kiqcluster').disabled"
        )

        done = python(code)

        assert done.returncode == 0, done.stderr
