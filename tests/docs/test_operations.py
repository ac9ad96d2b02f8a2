"""The pages for whoever runs a cluster: their commands work on one, and their tables say what the code says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import kiqcluster
from kiqcluster.process import config_sources
from kiqcluster.process.config import key_of, settings
from kiqcluster.process.logs import wording
from kiqcluster.supervisor import signals
from kiqcluster.supervisor.cluster import reload
from kiqcluster.worker import inbox
from tests import forkserver
from tests.docs.walk import COMMAND, is_shown
from tests.kit import ROOT, http_get, require, wait_until
from tests.stage import Stage

DOCS = ROOT / "docs"
HOME = "/run/kiqcluster/shop"  # of the pages
ADDRESS = "127.0.0.1:8082"
ELSEWHERE = ("python -m benchmarks", "deploy/rolling-deploy")  # it takes long; tests/deploy calls it
UNCATCHABLE = {"KILL", "STOP"}


def examples(text: str) -> list[tuple[str, str]]:
    """Return the commands of a page in order, each with what it prints; "" where the page does not show that."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [found for block in blocks for found in COMMAND.findall(block)]


class Site:
    """A cluster of two groups as the pages have it, and a shell beside it."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._folder = folder
        for name, module in (("kiqcluster", "kiqcluster"), ("kiqctl", "kiqcluster.ctl")):
            forkserver.install(folder / name, module)
        self.cluster = stage.run_cluster(
            "default", "mailers", KIQ_PIDFILE=str(folder / "pid"), KIQ_CONTROL=str(folder / "control.sock")
        )
        self._environ = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": stage.redis.url,
            "KIQ_LISTEN": f"127.0.0.1:{self.cluster.port}",
        }

    def is_ready(self) -> bool:
        return http_get(self.cluster.port, "/readiness")[0] == 200

    def is_calm(self) -> bool:
        """Return whether it is ready, and no roll of the page's is under way."""
        rolls = [each["event"] for each in self.cluster.events if each["event"].startswith("roll_")]
        return self.is_ready() and rolls[-1:] in ([], ["roll_done"])

    def run(self, command: str) -> str:
        """Run a command of a page, which has to succeed; return what it prints."""
        here = command.replace(HOME, str(self._folder)).replace(ADDRESS, f"127.0.0.1:{self.cluster.port}")
        here = here.replace("kiqcluster -r app.jobs", "KIQ_LISTEN=off kiqcluster -r tests.apps.basic")
        here = here.replace("./release.sh", "true")
        done = subprocess.run(["bash", "-c", here], cwd=ROOT, env=self._environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{here}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def site(stage: Stage) -> Iterator[Site]:
    require("curl", "curl")
    with tempfile.TemporaryDirectory(prefix="kiq-") as name:  # short: a unix socket's path may not be long
        yield Site(stage, Path(name))


def section(page: Path, heading: str) -> str:
    found = re.search(rf"^{heading}$(.*?)(?=^{heading.split()[0]} |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


PAGES: dict[str, Callable[[], str]] = {
    **{
        name: partial((DOCS / f"{name}.md").read_text)
        for name in (
            "guides/operate",
            "guides/quiet",
            "guides/release",
            "guides/modes",
            "guides/preload",
            "reference/signals",
            "reference/control_socket",
        )
    },
    "readme": lambda: section(ROOT / "README.md", "## Deploy"),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_work_one_after_the_other(site: Site, page: str) -> None:
    site.cluster.wait_ready(2)
    wait_until(site.is_ready, "the cluster to be ready")

    for command, shown in examples(PAGES[page]()):
        if not command.startswith(ELSEWHERE):
            printed = site.run(command)
            assert not shown or is_shown(printed, shown), f"{command} printed\n{printed}"

    wait_until(site.is_calm, "the cluster to be ready again")
    site.cluster.signal(signal.SIGTERM)
    assert site.cluster.wait() == 0


def test_the_settings_that_the_page_shows_are_accepted(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / "guides/recycle.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "kiqcluster.toml"
    file.write_text("\n".join(blocks))

    loaded, origins = config_sources.load({}, file=str(file), environ={})

    assert origins["recycle_jobs"] == f"file ({file})"
    assert (loaded.recycle_memory, loaded.recycle_memory_hard) == (800_000_000, 1_500_000_000)


def first_column(text: str) -> set[str]:
    """Return the capitalised words in the first column of tables."""
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"\b[A-Z][A-Z0-9]+\b", row)}


def names(caught: object) -> set[str]:
    return {signal.Signals(number).name.removeprefix("SIG") for number in caught}  # type: ignore[attr-defined]


def test_every_signal_to_the_supervisor_is_in_the_table() -> None:
    handled = names(signals.SIGNAL_ACTIONS) | names(signals.IGNORED)

    assert first_column(section(DOCS / "reference/signals.md", "## To the supervisor")) == handled | UNCATCHABLE


def test_every_signal_to_a_worker_is_in_the_table() -> None:
    assert (
        first_column(section(DOCS / "reference/signals.md", "## To a worker"))
        == names(inbox.SIGNAL_ACTIONS) | UNCATCHABLE
    )


def test_what_a_reload_heeds_at_once_and_what_it_cannot_is_in_the_list() -> None:
    text = section(DOCS / "reference/signals.md", "### Reload")
    (at_once,) = re.findall(r"^- at once: (.*?);\n- ", text, re.MULTILINE | re.DOTALL)
    (fixed,) = re.findall(r"^- with a new supervisor only: (.*?);\n- ", text, re.MULTILINE | re.DOTALL)

    keys = {each.name: key_of(each) for each in settings()}
    assert set(re.findall(r"`([\w.]+)`", at_once)) == {keys[name] for name in reload.APPLIED_BY_RELOAD}
    assert set(re.findall(r"`([\w.]+)`", fixed)) == {keys[name] for name in reload.FIXED_AT_START}


def test_every_event_of_the_log_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "reference/log_events.md").read_text(), re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*wording.WORDING, "lines_dropped"}


def test_every_alert_has_an_entry_in_the_runbook_and_no_other_has() -> None:
    alerts = re.findall(r"^ +- alert: (\w+)$", (ROOT / "deploy/prometheus/alerts.yml").read_text(), re.MULTILINE)
    headings = re.findall(r"^## (Kiq.*)$", (DOCS / "reference/alerts.md").read_text(), re.MULTILINE)

    assert sorted(name for heading in headings for name in heading.split(", ")) == sorted(alerts)


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = (DOCS / "reference/api.md").read_text()

    assert [name for name in kiqcluster.__all__ if not re.search(rf"\b{name}\b", page)] == ["__version__"]
