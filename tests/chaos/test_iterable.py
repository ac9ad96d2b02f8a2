"""Workers are killed and frozen while they run iterable jobs: each item is done, and few are done again."""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil
import pytest

from tests.apps.iterable import SECONDS_OF_A_STEP
from tests.chaos.scale import MOST_KILLS, sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, is_alive, wait_until
from tests.proc import kill

# In the short form: process/test_iterable.py kills the process of an iterable job.
pytestmark = pytest.mark.full

JOBS, ITEMS = sized((4, 150), (40, 1_500))
KILL_INTERVAL_SECONDS = 0.6
MOST_AGAIN = 3 * round(0.2 / SECONDS_OF_A_STEP)  # items of one run since its last save, which may have been slow
TIMEOUT_SECONDS = sized(60, 1_200)


@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
def test_each_item_is_done_while_workers_are_killed(stage: ChaosStage) -> None:
    kinds = ("Steps", "AsyncSteps")
    jids = [stage.push(kinds[number % 2], f"{number}", ITEMS) for number in range(JOBS)]
    cluster = stage.run_cluster("default", "default", "-c", "4", app="tests.apps.iterable")
    cluster.wait_ready(2)
    kills = 0

    def are_complete() -> bool:
        nonlocal kills
        PAUSE.wait(KILL_INTERVAL_SECONDS)
        victims = sorted(pid for pid in cluster.pids().values() if is_alive(pid))
        notes = stage.notes()
        if all(f"complete {number}" in notes for number in range(JOBS)):
            return True
        if victims and kills < MOST_KILLS:
            kills += kill(stage.rng.choice(victims))
        return False

    wait_until(are_complete, "all jobs to be complete", TIMEOUT_SECONDS)

    runs = Counter(line.split()[1] for line in stage.notes() if line.startswith(("start ", "resume ")))
    done: dict[str, Counter[int]] = {f"{number}": Counter() for number in range(JOBS)}
    for line in stage.notes():
        if line.startswith("did "):
            _, word, item = line.split()
            done[word][int(item)] += 1
    assert all(set(items) == set(range(ITEMS)) for items in done.values())
    again = {word: items.total() - ITEMS for word, items in done.items()}
    assert all(count <= MOST_AGAIN * runs[word] for word, count in again.items()), again
    wait_until(lambda: not stage.remaining().keys() - {"kiq:suspects"}, "all jobs to be settled")
    assert [jid for jid in jids if stage.store.call("EXISTS", f"it-{jid}")] == []
    assert cluster.stop() == 0
    stage.report({"kills": kills, "runs": runs.total(), "items": JOBS * ITEMS, "again": sum(again.values())})


def test_a_frozen_process_goes_no_further_once_others_have_its_job(stage: ChaosStage) -> None:
    environ = {
        "KIQ_HEALTH_SILENCE_TIMEOUT": "0",
        "KIQ_HEALTH_RECOVER_AFTER": "2",
        "KIQ_MAX_RETRIES_AFTER_INTERRUPTION": "-1",
    }
    sleeper, neighbour = (stage.run_cluster("default", "-c", "1", app="tests.apps.iterable", **environ) for _ in "ab")
    (pid,) = sleeper.wait_ready(1).values()
    neighbour.wait_ready(1)
    neighbour.signal(signal.SIGTSTP)
    neighbour.wait_for("worker_quiet")
    jid = stage.push("Steps", "a", 100_000)
    wait_until(lambda: stage.store.call("HGET", f"it-{jid}", "c"), "it to be saved")

    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it to stand still")
    frozen_at = last_item(stage)
    neighbour.signal(signal.SIGCONT)
    wait_until(lambda: any(line.startswith("resume a") for line in stage.notes()), "the neighbour to go on", 30)
    wait_until(lambda: last_item(stage) > frozen_at + 60, "it to be ahead")
    os.kill(pid, signal.SIGCONT)
    sleeper.wait_for("worker_fenced")

    # Both have written `did` meanwhile: one item of the sleeper at most, for it knows that it stood still.
    ahead = last_item(stage)
    wait_until(lambda: last_item(stage) > ahead + 60, "it to go on")
    items = Counter(line for line in stage.notes() if line.startswith("did a "))
    late = [item for item in range(frozen_at + 2, ahead) if items[f"did a {item}"] > 1]
    assert late == []
    assert int(stage.store.call("HGET", f"it-{jid}", "c")) > frozen_at
    assert [sleeper.stop(), neighbour.stop()] == [0, 0]
    assert [each["jid"] for each in stage.queued()] == [jid]
    assert int(stage.store.call("HGET", f"it-{jid}", "c")) == last_item(stage) + 1


def last_item(stage: ChaosStage) -> int:
    """Return the item that was done last."""
    return next((int(line.split()[2]) for line in reversed(stage.notes()) if line.startswith("did a ")), -1)
