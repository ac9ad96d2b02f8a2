"""Workers that live for a second or two: what the fleet has to do from time to time is done all the same."""

from __future__ import annotations

import time

from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from tests.kit import wait_until
from tests.stage import Stage

APP = """
    import os, threading
    from kiqcluster import job, on

    @job(queue="later", cron="* * * * * *")
    def tick(): ...

    @on("startup")
    def live_shortly():
        threading.Timer(float(os.environ["LIFE"]), os._exit, [1]).start()
"""
INTERVAL_SECONDS = 3.0  # of polls
RECOVER_AFTER_SECONDS = 8.0
DEAD = Member("gone:1:aaaaaaaaaaaa", 1, "another-boot another-namespace 1 0")


def test_due_jobs_retries_and_ticks_move_though_no_worker_lives_for_long(stage: Stage) -> None:
    app = stage.write_application(APP)
    often = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": str(INTERVAL_SECONDS), "LIFE": str(INTERVAL_SECONDS / 3)}
    cluster = stage.run_cluster("default", "-c", "1", app=app, **often)
    cluster.wait_for("child_died")
    for jid in ("a", "b"):
        payload = f'{{"class":"record","queue":"later","args":["{jid}"],"jid":"{jid}"}}'
        stage.store.call("ZADD", "schedule" if jid == "a" else "retry", time.time() + 1.0, payload)

    wait_until(lambda: {"a", "b"} <= {each["jid"] for each in stage.queued("later")}, "due jobs to be moved")
    wait_until(lambda: any(each["class"] == "tick" for each in stage.queued("later")), "a tick to come")


def test_the_jobs_of_a_dead_host_come_back_though_no_worker_lives_as_long_as_that_takes(stage: Stage) -> None:
    engine = Engine(stage.store, DeadSetLimits(1, 1.0))
    engine.join(DEAD)
    stage.push("record", "a", queue="lost")
    with stage.store.borrowed() as connection:
        engine.exchange(connection, DEAD, 1, {"lost": (1, 1)}, [], time.time())
    assert stage.held(DEAD.identity)

    soon = {"KIQ_HEALTH_RECOVER_AFTER": str(RECOVER_AFTER_SECONDS), "KIQ_HEALTH_SILENCE_TIMEOUT": "0"}
    app, life = stage.write_application(APP), {"LIFE": str(RECOVER_AFTER_SECONDS / 4)}
    cluster = stage.run_cluster("default", "default", "default", "-c", "1", app=app, **soon, **life)

    cluster.wait_for("recovered", seconds=4 * RECOVER_AFTER_SECONDS, identity=DEAD.identity, units=1)
    assert stage.queued_args("lost") == ["a"]
    assert DEAD.identity not in stage.members()
