"""Redis is emptied while jobs with guarantees run, wait and are parked: what is pushed afterwards runs."""

from __future__ import annotations

from tests.kit import wait_until
from tests.stage import Stage

APP = """
    import time
    from kiqcluster import job, limits
    from kiqcluster.limited_capacity import LimitedCapacityJob
    from kiqcluster.process.runtime import current_setup
    from tests.apps.basic import note

    def call(*words):
        return current_setup().current_store().call(*words)

    def run(name, word):
        note("began", name, word)
        while word == "first" and not call("EXISTS", "open"):
            time.sleep(0.005)
        note("ended", name, word)

    def declare(name, **options):
        @job(name=name, **options)
        def body(word):
            run(name, word)

    same = {"deduplicate_key": lambda word: "same"}
    declare("claimed", deduplicate="until_executed", reschedule_once=True, **same)
    declare("started", deduplicate="until_executing", concurrency_limit=1, **same)
    declare("alone", deduplicate="while_executing", **same)
    declare("limited", concurrency_limit=1)
    declare("keyed", concurrency_limit=1, concurrency_key=lambda word: "same")
    declare("paused", concurrency_limit=lambda: 1 if call("EXISTS", "open") else -1)
    declare("window", rate_limit=limits.sliding_window(2, 0.5))
    declare("places", rate_limit=limits.concurrent(1, delay=0.2))

    class Drain(LimitedCapacityJob):
        def max_running_jobs(self):
            return 1

        def remaining_work_count(self):
            return call("LLEN", "work")

        def perform_work(self):
            run("drain", call("LPOP", "work").decode())

    @job
    def drain(word):
        call("RPUSH", "work", word)
        Drain.perform_with_capacity()
"""
NAMES = ("claimed", "started", "alone", "limited", "keyed", "paused", "window", "places", "drain")


LATER = 2  # pushes of each


def test_all_guarantees_go_on_when_redis_has_lost_everything(stage: Stage) -> None:
    """As after a restart without persistence: no key, no script and no connection is left."""
    poll = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2"}
    cluster = stage.run_cluster("default", "-c", "12", app=stage.write_application(APP), **poll)
    cluster.wait_ready()
    for name in NAMES:
        stage.push_many(name, [["first"], ["first"]])
    wait_until(lambda: {line.split()[1] for line in stage.notes()} >= set(NAMES) - {"paused"}, "the first to run")
    wait_until(lambda: stage.store.call("SCARD", "kiq:parked") >= 4, "others to be parked")

    stage.store.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    stage.store.call("FLUSHALL")
    stage.store.call("SCRIPT", "FLUSH")
    stage.store.call("SET", "open", 1)
    for number in range(LATER):
        for name in NAMES:
            stage.push_many(name, [[f"later{number}"]])

    expected = {f"ended {name} later{number}" for name in NAMES for number in range(LATER)}
    wait_until(lambda: expected <= set(stage.notes()), "all that was pushed afterwards to run")
    stage.wait_settled()
    wait_until(lambda: stage.remaining() == {}, "nothing to be left")
    assert stage.store.call("KEYS", "kiq:slots:*") + stage.store.call("KEYS", "kiq:held:*") == []
    assert not cluster.seen("service_crashed")
    assert not cluster.seen("child_died")
