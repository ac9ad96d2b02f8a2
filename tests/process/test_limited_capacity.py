"""Limited-capacity jobs of two clusters, of which one is killed: never more than may run, and all work is done."""

from __future__ import annotations

import os
import signal

from tests.kit import wait_until
from tests.stage import Stage, pid_of

APP = "tests.apps.capacity"
LEFT = "drain_remaining_work_count"


def test_no_more_run_than_may_and_all_work_is_done_though_a_process_is_killed(stage: Stage) -> None:
    stage.store.call("RPUSH", "work", *map(str, range(20)))
    clusters = [
        stage.run_cluster("default,starts", "-c", "4", app=APP, KIQ_MAX_RETRIES_AFTER_INTERRUPTION="-1")
        for _ in range(2)
    ]
    for cluster in clusters:
        cluster.wait_ready()
    for _ in range(10):  # as impatient crons would
        stage.push("start", queue="starts")
    wait_until(lambda: stage.notes().count("started") == 10, "it to be started")
    wait_until(lambda: stage.store.call("LLEN", "taken") == 2, "two to run")
    holder, *_ = stage.store.call("SMEMBERS", stage.store.keys.slots("Drain"))
    victim = pid_of(holder.decode().partition("/")[0])

    wait_until(lambda: [each.metric(LEFT) for each in clusters] == [18, 18], "the remaining work to be shown")

    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: stage.store.call("LLEN", "taken") > 2, "its place to come back")
    stage.store.call("SET", "open", 1)

    done = wait_until(
        lambda: len(found := [line for line in stage.notes() if "did" in line]) >= 18 and found, "the end"
    )
    stage.wait_settled()
    assert stage.store.call("LLEN", "work") == 0
    assert {int(line.split()[-1]) for line in done} <= {0, 1}  # beside itself, one at most
    taken = [item.decode() for item in stage.store.call("LRANGE", "taken", 0, -1)]
    assert sorted(taken, key=int) == [str(number) for number in range(20)]
    wait_until(lambda: [each.metric(LEFT) for each in clusters] == [0, 0], "no remaining work to be shown")
    assert stage.remaining() == {}
    assert stage.store.call("KEYS", "kiq:lock:*") == []
