"""--preload: the application is imported once, in the supervisor, and shared; what cannot be shared is refused."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.process.releases import Releases
from tests.stage import Stage

COUNTED = "(pathlib.Path('../..') / 'imports').open('a').write(f'{os.getpid()}\\n')"


def importers(releases: Releases) -> list[int]:
    """Return the pids of the processes that have imported the application, in order."""
    return [int(line) for line in (releases.current.parent / "imports").read_text().split()]


def test_the_application_is_imported_once_for_all(stage: Stage, releases: Releases) -> None:
    releases.deploy("1", COUNTED)
    cluster = releases.run(stage, "default", "other", "-c", "1", "--preload")
    pids = cluster.wait_ready(2)

    os.kill(pids[0], signal.SIGKILL)
    cluster.wait_for("child_ready", slot=0, count=2)
    stage.push("release")
    stage.push("release", queue="other")

    stage.wait_noted("release 1")
    assert importers(releases) == [cluster.pid]
    stage.wait_members(*cluster.pids().values())


def test_a_function_that_sets_the_jobs_up_is_not_called_again_in_a_worker(stage: Stage, releases: Releases) -> None:
    """What it adds, middleware for one, would be there twice."""
    releases.deploy("1", f"def set_up(): {COUNTED}")
    cluster = stage.run_cluster("default", "--preload", "--directory", str(releases.current), app="shop:set_up")

    pids = cluster.wait_ready()

    assert importers(releases)[0] == cluster.pid
    assert pids[0] not in importers(releases)


def test_without_it_every_process_imports_for_itself_and_the_supervisor_never(stage: Stage, releases: Releases) -> None:
    releases.deploy("1", COUNTED)
    cluster = releases.run(stage, "default", "-c", "1")

    pids = cluster.wait_ready()

    assert importers(releases)[-1] == pids[0]
    assert cluster.pid not in importers(releases)


def test_what_all_share_is_not_copied(stage: Stage, releases: Releases) -> None:
    """60 MB in two workers: their own share of it is a small part."""
    releases.deploy("1", "ballast = [bytes(1_000) for _ in range(60_000)]")
    cluster = releases.run(stage, "default", "other", "-c", "1", "--preload")

    pids = cluster.wait_ready(2)

    for pid in pids.values():
        assert psutil.Process(pid).memory_full_info().uss < 40e6


def test_a_roll_renews_the_processes_but_not_what_was_preloaded(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--preload")
    first = cluster.wait_ready()[0]

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    stage.push("release")

    stage.wait_noted("release 1")
    assert cluster.pids()[0] != first
    assert "at the start" in stage.wait_document("a hint", lambda each: each["restart_needed"])["restart_needed"]


def test_a_roll_to_another_release_than_was_preloaded_fails_for_it_would_run_none_of_it(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--preload")
    pids = cluster.wait_ready()
    releases.deploy("2")

    cluster.signal(signal.SIGUSR2)

    report = stage.wait_roll("failed")
    assert report["done"] == 0
    assert "restart the supervisor" in report["error"]
    assert cluster.slots()[0]["release"] == releases.path("1")
    stage.wait_members(*pids.values())
    os.kill(pids[0], signal.SIGKILL)
    behind = cluster.wait_for("child_behind")
    assert (behind["release"], behind["wanted"]) == (releases.path("1"), releases.path("2"))
    stage.push("release")
    stage.wait_noted("release 1")


@pytest.mark.parametrize(
    "source",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "raise RuntimeError('no database')",
        "import no_such_module",
    ],
)
def test_an_application_that_cannot_be_preloaded_is_exit_3_and_starts_nothing(
    stage: Stage, releases: Releases, source: str
) -> None:
    releases.deploy("1", source)

    cluster = releases.run(stage, "default", "--preload")

    assert cluster.wait() == 3
    assert cluster.seen("child_started") == []
    assert stage.notes() == []


def test_signals_that_the_application_takes_while_it_is_imported_reach_the_supervisor(
    stage: Stage, releases: Releases
) -> None:
    releases.deploy("1", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)")
    cluster = releases.run(stage, "default", "-c", "1", "--preload")
    cluster.wait_ready()

    assert cluster.stop() == 0
