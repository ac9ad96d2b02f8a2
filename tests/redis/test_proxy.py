"""The proxy of the test kit: each fault is the one that its name says, and without one it carries bytes as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisUnavailable, ReplyLost
from kiqcluster.store import Store
from tests.kit import ROOT, TIMEOUT_SECONDS, RedisServer, wait_until
from tests.proxy import Proxy, seconds_of

CALL_TIMEOUT_SECONDS = 0.3  # that an impatient caller waits for a reply


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, store: Store) -> Iterator[Store]:
    """The test's database, through the proxy; connected."""
    far = Store(proxy.url, timeout=CALL_TIMEOUT_SECONDS)
    far.call("PING")
    yield far
    far.close()


def test_without_a_fault_it_carries_large_and_small_as_they_are(proxy: Proxy, store: Store) -> None:
    far, large = Store(proxy.url), os.urandom(20_000_000)

    far.call("SET", "large", large)
    replies = far.pipeline([("GET", "large"), *(("ECHO", number) for number in range(1_000))])

    assert replies[0] == large == store.call("GET", "large")
    assert replies[1:] == [str(number).encode() for number in range(1_000)]


@pytest.mark.parametrize(("up", "down"), [(0.03, 0.0), (0.0, 0.03), (0.02, 0.01)])
def test_latency_is_added_in_the_direction_that_was_asked_for(proxy: Proxy, up: float, down: float) -> None:
    far = Store(proxy.url)
    far.call("PING")  # it is connected
    proxy.delay(up=up, down=down)

    before = time.monotonic()
    far.pipeline([("PING",)] * 1_000)

    assert 0.03 <= time.monotonic() - before < 1_000 * 0.03  # once for a pipeline, not for each command


def test_with_latency_large_bulks_arrive_whole_and_in_order(proxy: Proxy, store: Store) -> None:
    proxy.delay(up=0.002, down=0.002)
    large = os.urandom(30_000_000)  # more than it lets be on its way at once

    assert Store(proxy.url).pipeline([("ECHO", large), ("ECHO", large[:10])]) == [large, large[:10]]


def test_what_was_sent_into_a_stall_runs_after_it_though_its_caller_gave_it_up(
    proxy: Proxy, far: Store, store: Store
) -> None:
    with proxy.stalled():
        with pytest.raises(ReplyLost):
            far.call("INCR", "late")
        assert store.call("GET", "late") is None

    wait_until(lambda: store.call("GET", "late") == b"1", "the command to arrive")
    assert far.call("INCR", "late") == 2


def test_a_stall_on_the_way_back_keeps_replies_only(proxy: Proxy, far: Store, store: Store) -> None:
    with proxy.stalled(up=False), pytest.raises(ReplyLost):
        far.call("INCR", "late")

    assert store.call("GET", "late") == b"1"
    assert far.call("INCR", "late") == 2


def test_cut_connections_are_seen_by_both_sides_and_new_ones_work(proxy: Proxy, far: Store, store: Store) -> None:
    with far.borrowed() as connection:
        connection.exchange([("CLIENT", "SETNAME", "far")])
        assert b"name=far" in store.call("CLIENT", "LIST")

        assert proxy.cut() == 1

        wait_until(lambda: b"name=far" not in store.call("CLIENT", "LIST"), "the server to see the end")
    assert far.call("PING") == b"PONG"
    assert proxy.accepted == 2


def test_while_it_is_away_nobody_connects(proxy: Proxy, far: Store) -> None:
    with proxy.away(), pytest.raises((RedisUnavailable, ReplyLost)):
        far.call("PING")

    assert far.call("PING") == b"PONG"


def test_a_reply_is_lost_after_the_command_has_run(proxy: Proxy, far: Store, store: Store) -> None:
    fault = proxy.lose_replies(b"INCR")

    assert far.call("PING") == b"PONG"
    with pytest.raises(ReplyLost):
        far.call("INCR", "number")

    assert (store.call("GET", "number"), fault.hits) == (b"1", 1)
    assert far.call("INCR", "number") == 2  # it hits as many writes as was asked for


def test_a_command_that_is_held_runs_when_it_is_released_and_not_before(proxy: Proxy, far: Store, store: Store) -> None:
    fault = proxy.hold(b"late", times=2)
    for _ in range(2):
        with pytest.raises(ReplyLost):
            far.call("INCR", "late")
    assert far.call("INCR", "other") == 1
    assert store.call("GET", "late") is None

    proxy.release(fault)

    wait_until(lambda: store.call("GET", "late") == b"2", "both to arrive")
    assert far.call("INCR", "late") == 3


def test_half_a_command_does_nothing(proxy: Proxy, far: Store, store: Store) -> None:
    proxy.halve(b"INCR")

    with pytest.raises(ReplyLost):
        far.call("INCR", "number")

    assert far.call("INCR", "number") == 1


def test_as_a_program_it_says_its_port_and_ends_on_term(redis_server: RedisServer, store: Store) -> None:
    command = [sys.executable, "-m", "tests.proxy", "--to", f"127.0.0.1:{redis_server.port}", "--latency", "5ms"]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        far = Store(f"redis://127.0.0.1:{int(program.stdout.readline())}/0")
        far.call("PING")
        before = time.monotonic()
        far.call("PING")
        assert time.monotonic() - before >= 0.01
    finally:
        program.terminate()
        assert program.wait(TIMEOUT_SECONDS) == 0


def test_times_have_units() -> None:
    assert [seconds_of(text) for text in ("0.5ms", "250us", "2s")] == [0.0005, 0.00025, 2.0]
