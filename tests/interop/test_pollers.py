"""Ruby's poller and ours: a due entry, whoever wrote it, is moved once, and its job runs once."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from tests.apps.interop import Echo
from tests.interop.programs import RubyServer, exact
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

NEVER = "3600"  # seconds between polls of a process that shall not poll
OFTEN = "0.05"
MANY_JOBS = 150


@pytest.fixture
def ruby_server(sidekiq_is_there, store, redis_server):
    """A Sidekiq server for one test, since it polls what the others leave to us."""
    server = RubyServer(redis_server.url)
    yield server
    server.close()


@pytest.fixture
def ruby_retries(ruby):
    """Have Ruby write an entry to the retry set, due at a time; return its jid."""

    def write(number, at, queue):
        jid = f"{number:024x}"
        item = {"class": "Echo", "args": ALL_KINDS, "jid": jid, "queue": queue, "retry": True, "retry_count": 0,
                "failed_at": 1.5, "created_at": 1.5, "error_class": "E", "error_message": "e"}  # fmt: skip
        ruby("Sidekiq::RetrySet.new.schedule(at, item)", at=at, item=item)
        return jid

    return write


def fill(store, ruby_client, ruby_retries, queue):
    """Write one entry of each kind, due at once or very soon; return their jids."""
    soon = time.time() + 0.3
    in_retry = "0123456789abcdef01234567"
    item = {"retry": True, "queue": queue, "args": ALL_KINDS, "class": "Echo", "jid": in_retry, "created_at": 1.5}
    store.call("ZADD", "retry", "1.5", json.dumps(item))  # with spaces and escapes, as no Sidekiq prints it
    return {
        "Python's schedule": Echo.set(queue=queue).perform_at(soon, *ALL_KINDS),
        "Ruby's schedule": ruby_client("perform_at", soon, *ALL_KINDS, set={"queue": queue}),
        "Ruby's retry": ruby_retries(1, 1.5, queue),
        "another client's retry": in_retry,
    }


def test_our_poller_moves_what_either_side_wrote(stage, ruby_client, ruby_retries):
    jids = fill(stage.store, ruby_client, ruby_retries, "default")

    stage.run_cluster("default", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL=OFTEN)

    for kind, jid in jids.items():
        assert exact(stage.echo_of(jid)["args"]) == exact(ALL_KINDS), kind
        assert abs(stage.echo_of(jid)["payload"]["enqueued_at"] - time.time()) < 60, kind
    assert stage.store.call("ZCARD", "schedule") == stage.store.call("ZCARD", "retry") == 0
    assert len(stage.echoes()) == len(jids)


def test_rubys_poller_moves_what_either_side_wrote(stage, ruby_client, ruby_retries, ruby_server):
    jids = fill(stage.store, ruby_client, ruby_retries, "default")

    stage.run_cluster("default", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL=NEVER)

    for kind, jid in jids.items():
        assert exact(stage.echo_of(jid)["args"]) == exact(ALL_KINDS), kind
    assert stage.store.call("ZCARD", "schedule") == stage.store.call("ZCARD", "retry") == 0


def test_an_entry_that_both_pollers_see_is_moved_by_one(stage, ruby_client, ruby_server):
    due = time.time() + 1.0
    jids = []
    for queue in ("default", "ruby"):  # the one is served by Python, the other by Ruby
        jids += [Echo.set(queue=queue).perform_at(due, number) for number in range(MANY_JOBS)]
        jids += [ruby_client("perform_at", due, number, set={"queue": queue}) for number in range(MANY_JOBS)]
    for raw in stage.store.call("ZRANGE", "schedule", 0, 2 * MANY_JOBS - 1):
        if stage.store.call("ZREM", "schedule", raw):  # else it was due already, and Ruby was faster
            stage.store.call("ZADD", "retry", repr(due), raw)

    stage.run_cluster(
        "default", "-c", "2", app="tests.apps.interop_unhurried", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL=OFTEN
    )
    wait_until(lambda: len(stage.echoes()) >= len(jids), "all jobs to run")
    ruby_server.close()
    stage.echo_of(Echo.perform_in(0.1, "last"))  # our poller has moved all that it had read before

    runs = [each for each in stage.echoes() if each["args"] != ["last"]]
    assert Counter(each["jid"] for each in runs) == Counter(jids)
    assert Counter(each["by"] for each in runs) == {"python": 2 * MANY_JOBS, "ruby": 2 * MANY_JOBS}
    assert (
        stage.store.call("ZCARD", "schedule")
        == stage.store.call("ZCARD", "retry")
        == stage.store.call("LLEN", "queue:ruby")
        == 0
    )
