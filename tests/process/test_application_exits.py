"""Functions of the application that raise what no function should, or fork: no service of the worker ends with them."""

from __future__ import annotations

import json

import pytest

from tests.kit import wait_until
from tests.stage import Stage

POLL = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2"}


@pytest.mark.parametrize("error", ["SystemExit(2)", "Interrupted()"])
def test_client_middleware_that_raises_anything_holds_up_no_other_due_job(stage: Stage, error: str) -> None:
    app = stage.write_application(f"""
        from kiqcluster import client_middleware, job
        from kiqcluster.errors import Interrupted
        from tests.apps.basic import note

        @client_middleware.add
        def guard(push, proceed):
            if push.payload["class"] == "refused":
                raise {error}
            return proceed()

        @job
        def refused(word): ...

        @job
        def fine(word):
            note("ran", word)
    """)
    for place in range(6):
        payload = {"class": ("refused", "fine")[place % 2], "args": [place], "jid": f"j{place}", "queue": "default"}
        stage.store.call("ZADD", "schedule", 1 + place, json.dumps(payload))

    cluster = stage.run_cluster("default", "-c", "1", app=app, **POLL)

    wait_until(lambda: sorted(stage.notes()) == ["ran 1", "ran 3", "ran 5"], "the others to run")
    assert stage.store.call("ZCARD", "schedule") == 3, "those that are refused wait"
    assert not cluster.seen("service_crashed")


def test_limits_and_keys_that_fork_or_exit_hold_up_no_other_line(stage: Stage) -> None:
    """They are called by the poller as well, which looks at all lines now and then."""
    app = stage.write_application("""
        import os
        import sys
        from kiqcluster import job
        from tests.apps.basic import note

        def fork():
            pid = os.fork()
            if pid:
                note("forked", os.waitpid(pid, 0)[1])
            return 1

        @job(concurrency_limit=fork)
        def forking(word): ...

        @job(concurrency_limit=lambda: sys.exit(2))
        def leaving(word): ...

        @job(concurrency_limit=1, concurrency_key=lambda word: fork() and sys.exit(2))
        def keyed(word): ...

        @job
        def fine(word):
            note("ran", word)
    """)
    for name in ("forking", "leaving", "keyed", "fine"):
        payload = json.dumps({"class": name, "args": ["x"], "jid": name, "queue": "default"})
        stage.store.call("ZADD", f"kiq:slots:{name}:parked", 1, f"queue:default\0{payload}")
        stage.store.call("SADD", "kiq:parked", f"kiq:slots:{name}")

    cluster = stage.run_cluster("default", "-c", "1", app=app, **POLL)

    wait_until(lambda: "ran x" in stage.notes(), "the other line to go on")
    forked = [line for line in stage.notes() if line.startswith("forked")]
    assert forked, "a child that goes on as a poller would hold up its parent"
    assert set(forked) <= {"forked 0", "forked 512"}
    assert not cluster.seen("service_crashed")
