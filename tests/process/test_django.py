"""examples/django_shop as a newcomer runs it: migrate, manage.py kiqcluster with a private server, an order, a mail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kiqcluster import testing
from kiqcluster.store import Store
from kiqcluster.store.embedded import url_of
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, require_module, wait_until

SHOP = ROOT / "examples/django_shop"
PLACE_ORDER = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings.settings"
import django; django.setup()
from django.test import Client
print(Client().post("/orders/", {"email": "ada@example.com"}).content.decode())
"""
READ_RESULT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings.settings"
import django; django.setup()
from orders.tasks import charge
from orders.models import Order
result = charge.get_result(sys.argv[1])
print(result.status, result.attempts, result.is_finished and result.return_value, Order.objects.get().is_paid)
"""


class ManagePopen(forkserver.Popen):
    """Runs `manage.py kiqcluster` in the place of `python -m kiqcluster`."""

    def __init__(self, words: list[str], **others: Any) -> None:
        at = words.index("-m")
        super().__init__([*words[:at], str(SHOP / "manage.py"), *words[at + 1 :]], **others)


class ManagedCluster(testing.Cluster):
    _popen: ClassVar[type[subprocess.Popen[Any]]] = ManagePopen


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    require_module("django_tasks" if sys.version_info < (3, 12) else "django")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS", "DJANGO"))}
    return {**kept, "PYTHONPATH": str(ROOT), "SHOP_DATA": str(tmp_path)}


Run = Callable[..., str]


@pytest.fixture
def run(environ: dict[str, str]) -> Run:
    def run(*words: str) -> str:
        done = forkserver.run([sys.executable, *words], env=environ, cwd=SHOP, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    return run


@pytest.fixture
def cluster(environ: dict[str, str], run: Run) -> Iterator[ManagedCluster]:
    run("manage.py", "migrate", "-v0")
    with ManagedCluster([], environ, SHOP) as cluster:
        yield cluster


@pytest.mark.timeout(180)
def test_an_order_is_charged_its_mail_is_sent_and_the_supervisor_imports_no_django(
    cluster: ManagedCluster, run: Run, tmp_path: Path
) -> None:
    (worker,) = cluster.wait_ready(1).values()
    maps = Path(f"/proc/{cluster.pid}/maps").read_text()
    assert "_sqlite3" not in maps  # which the settings of the shop have Django import
    server = Store(url_of(tmp_path / ".kiqcluster"))

    placed = json.loads(run("-c", PLACE_ORDER))
    cluster.wait_done(placed["task"])

    wait_until(lambda: list((tmp_path / "mails").glob("*")), "the mail to be sent")
    assert "Order 1" in next((tmp_path / "mails").glob("*")).read_text()
    assert run("-c", READ_RESULT, placed["task"]).strip() == "SUCCESSFUL 1 ada@example.com True"
    assert json.loads(run("manage.py", "kiqctl", "queues", "--json"))
    assert {name.decode() for name in server.call("SMEMBERS", "queues")} == {"default", "mails"}
    assert cluster.process.pid == cluster.seen("supervisor_started")[0]["pid"]  # it has become the supervisor
    assert worker != cluster.process.pid
    assert b"kiqcluster" in Path(f"/proc/{cluster.process.pid}/cmdline").read_bytes().split(b"\0")
    assert cluster.stop() == 0


def test_a_project_with_a_mistake_does_not_start(environ: dict[str, str], tmp_path: Path) -> None:
    environ["KIQ_STOP_TIMEOUT"] = "soon"
    words = [sys.executable, "manage.py", "kiqcluster"]

    done = forkserver.run(words, env=environ, cwd=SHOP, timeout=TIMEOUT_SECONDS)

    assert done.returncode == 1
    assert "kiqcluster.E001" in done.stderr
    assert not (tmp_path / ".kiqcluster").exists()


@pytest.mark.full
def test_help_is_the_help_of_the_command(run: Run) -> None:
    assert "GROUP" in run("manage.py", "kiqcluster", "--help")
    assert "GROUP" in run("manage.py", "help", "kiqcluster")
    assert "kiqctl ps" in run("manage.py", "kiqctl", "--help")


def test_the_tests_of_the_example_pass(run: Run) -> None:
    assert run("manage.py", "makemigrations", "--check").startswith("No changes")
    run("manage.py", "test")
