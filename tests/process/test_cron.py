"""Cron in real clusters: each tick once, also while quiet; what a release declares; what kiqctl shows and changes."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.api import CronSet
from kiqcluster.control.fleet import read_fleet
from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from kiqcluster.store.cron import Mark
from tests.kit import Cluster, wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

APP = "tests.apps.cron"


@pytest.fixture
def kiqctl(stage: Stage) -> Iterator[Kiqctl]:
    running = Kiqctl(stage.redis.url)
    yield running
    running.close()


def document(kiqctl: Kiqctl, *words: str) -> Any:
    done = kiqctl(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ticks(stage: Stage, name: str) -> list[int]:
    """Return the ticks whose jobs have run, in order."""
    words = (line.split() for line in stage.notes())
    return sorted(int(at) for _, entry, at, _ in words if entry == name)


def lateness(stage: Stage, queue: str) -> list[float]:
    """Return the seconds from each tick to the push of its job, of jobs that wait."""
    return [payload["created_at"] / 1_000 - payload["cron_at"] for payload in stage.queued(queue)]


def test_each_tick_runs_once_whatever_the_number_of_processes(stage: Stage) -> None:
    clusters = [stage.run_cluster("cronjob:*", "default", "-c", "1", app=APP) for _ in range(2)]
    for cluster in clusters:
        cluster.wait_ready(2)

    wait_until(lambda: len(ticks(stage, "each_second")) >= 4, "some ticks to run")

    done = ticks(stage, "each_second")
    assert done == list(range(done[0], done[0] + len(done)))
    assert {payload["retry"] for payload in stage.queued("cronjob:each_second")} <= {0}


def test_ticks_of_a_quiet_cluster_are_enqueued_in_time(stage: Stage) -> None:
    cluster = stage.run_cluster("cronjob:*", "-c", "1", app=APP)
    cluster.wait_ready(1)
    wait_until(lambda: ticks(stage, "each_second"), "a tick to run")
    cluster.signal(signal.SIGTSTP)

    wait_until(lambda: len(stage.queued("cronjob:each_second")) >= 4, "ticks to be enqueued")

    late = lateness(stage, "cronjob:each_second")[1:]
    assert sorted(late)[len(late) // 2] < 0.1, late
    cluster.signal(signal.SIGCONT)
    wait_until(lambda: not stage.queued("cronjob:each_second"), "them to run")
    assert set(Counter(ticks(stage, "each_second")).values()) == {1}


def test_the_configuration_declares_entries_and_a_queue_for_their_jobs(stage: Stage, kiqctl: Kiqctl) -> None:
    file = stage.folder / "kiqcluster.toml"
    file.write_text(
        '[cron.numbers]\nschedule = "* * * * * *"\njob = "count"\nargs = [7]\n'
        '[cron.rare]\nschedule = "0 9 * * *"\ntz = "Asia/Shanghai"\njob = "count"\nmissed = "all"\n'
    )
    cluster = stage.run_cluster("-C", str(file), "cronjob:*", "-c", "1", app=APP)
    cluster.wait_ready(1)
    wait_until(lambda: ticks(stage, "numbers"), "the entry of the file to run")

    wait_until(lambda: "rare" in names(stage.store), "all entries to be declared")
    shown = {each["name"]: each for each in document(kiqctl, "cron", "list")["entries"]}
    assert set(shown) == {"each_second", "numbers", "rare"}
    assert (shown["numbers"]["queue"], shown["numbers"]["args"]) == ("cronjob:count", [7])
    assert (shown["rare"]["tz"], shown["rare"]["missed"], shown["rare"]["latest"]) == ("Asia/Shanghai", "all", None)

    assert kiqctl("cron", "disable", "numbers").returncode == 0
    (entry,) = [each for each in document(kiqctl, "cron", "list")["entries"] if each["name"] == "numbers"]
    assert (entry["enabled"], entry["next_at"]) == (False, None)

    before = len(ticks(stage, "rare"))
    assert document(kiqctl, "cron", "enqueue", "rare")["queue"] == "cronjob:count"
    wait_until(lambda: len(ticks(stage, "rare")) == before + 1, "the job to run")
    (run,) = document(kiqctl, "cron", "show", "rare")["history"]
    assert run["refused_for"] is None


def test_a_release_without_an_entry_removes_it_and_leaves_those_by_hand(stage: Stage) -> None:
    entries = CronSet(store=stage.store)
    entries.add("by hand", "* * * * * *", "count", queue="default")
    cluster = stage.run_cluster("default", "-c", "1", app=APP, KIQ_CRON_APPLICATION="shop")
    cluster.wait_ready(1)
    wait_until(lambda: names(stage.store) == {"by hand", "each_second"}, "the entry to be declared")
    cluster.stop()

    cluster = stage.run_cluster("default", "-c", "1", app="tests.apps.basic", KIQ_CRON_APPLICATION="shop")
    cluster.wait_ready(1)

    wait_until(lambda: names(stage.store) == {"by hand"}, "the entry to be removed")


def test_a_worker_that_has_written_its_entries_is_listed_with_their_digest(stage: Stage) -> None:
    """So that the others know whether what is in force is the declaration of a process that lives."""
    cluster = stage.run_cluster("default", "-c", "1", app=APP, KIQ_CRON_APPLICATION="shop")
    cluster.wait_ready(1)

    def in_force() -> str:
        mark = Mark.read(stage.store.call("HGET", stage.store.keys.cron_applications, "shop"))
        return "" if mark is None or mark.is_unfinished else mark.digest

    wait_until(in_force, "the entries to be declared")
    assert read_fleet(stage.store).cron == {("shop", in_force())}


def test_another_application_with_an_entry_of_the_same_queue_starts_once_the_first_one_has_ended(
    stage: Stage,
) -> None:
    def run(application: str) -> Cluster:
        return stage.run_cluster("cronjob:*", "default", "-c", "1", app=APP, KIQ_CRON_APPLICATION=application)

    shop = run("shop")
    shop.wait_ready(2)
    wait_until(lambda: ticks(stage, "each_second"), "a tick to run")

    blog = run("blog")
    assert blog.wait() == ExitCode.NAME_IN_USE
    assert any("'blog'" in line and "'shop', which runs" in line for line in blog.lines)
    before = len(ticks(stage, "each_second"))
    wait_until(lambda: len(ticks(stage, "each_second")) > before, "the first one to go on")
    assert {each.id for each in CronSet(store=stage.store).list()} == {"each_second@shop"}

    shop.stop()
    blog = run("blog")
    blog.wait_ready(2)
    wait_until(
        lambda: {each.id for each in CronSet(store=stage.store).list()} == {"each_second@blog"},
        "its entry to be taken over",
    )


def names(store: Store) -> set[str]:
    return {each.name for each in CronSet(store=store).list()}


def test_a_broken_entry_keeps_a_cluster_from_starting_and_says_why(stage: Stage) -> None:
    file = stage.folder / "kiqcluster.toml"
    file.write_text('[cron.x]\nschedule = "@daily"\njob = "cuont"\n')

    cluster = stage.run_cluster("-C", str(file), "default", "-c", "1", app=APP)

    assert cluster.wait() == ExitCode.APPLICATION
    assert any("no job 'cuont'; did you mean count?" in line for line in cluster.lines)
