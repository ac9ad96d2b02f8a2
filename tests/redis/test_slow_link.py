"""A slow line: time limits are for a want of progress, and what goes in one round trip is bounded in bytes.

The whole cluster on such a line: tests/chaos/test_slow_link.py.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from kiqcluster.errors import ReplyLost
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done, Interrupted, Retry
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Reserved, Settlement
from kiqcluster.store.wire import Wire
from kiqcluster.worker.fetch.in_flight import MAX_SETTLE_BYTES
from kiqcluster.worker.fetch.last_settle import MAX_SMALL_OUTCOME_BYTES
from kiqcluster.worker.fetch.wakeups import MAX_PAYLOAD_BYTES, Push, Wakeups
from tests.kit import TIMEOUT_SECONDS, RedisServer, wait_until
from tests.proxy import Proxy
from tests.redis.test_fetch import Bench

BYTES_PER_SECOND = 2_000_000  # bytes per second
CALL_TIMEOUT_SECONDS = 0.3  # for which nothing may move
LARGE = b"x" * 1_500_000  # takes longer than that


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port), rate=BYTES_PER_SECOND) as proxy:
        yield proxy


@pytest.fixture
def slow(line: Proxy, store: Store) -> Iterator[Store]:
    """The test's database at the end of a slow line."""
    slow = Store(line.url, timeout=CALL_TIMEOUT_SECONDS)
    slow.call("PING")
    yield slow
    slow.close()


@pytest.fixture
def bench(slow: Store, setup: Setup) -> Iterator[Bench]:
    bench = Bench(slow, setup)
    yield bench
    bench.coordinator.end()
    bench.fetch._connection.close()


def test_a_reply_may_take_longer_than_the_timeout_while_it_makes_progress(slow: Store, store: Store) -> None:
    assert slow.call("LPUSH", "list", LARGE) == 1
    assert slow.call("LRANGE", "list", 0, -1) == [LARGE]

    assert store.call("LLEN", "list") == 1


def test_what_makes_no_progress_is_given_up(slow: Store, line: Proxy, store: Store) -> None:
    with line.stalled(), pytest.raises(ReplyLost):
        slow.call("LPUSH", "list", LARGE)

    assert store.call("EXISTS", "list") == 0


def test_an_exchange_with_a_deadline_ends_by_it_however_steadily_it_goes(slow: Store, store: Store) -> None:
    connection = slow.connection(total=CALL_TIMEOUT_SECONDS / 2)

    with pytest.raises(ReplyLost):
        connection.exchange([("LPUSH", "list", LARGE)])
    store.call("SET", "large", LARGE)
    with pytest.raises(ReplyLost):
        connection.exchange([("GET", "large")])

    assert connection.exchange([("PING",)]) == [b"PONG"]
    connection.close()


def test_outcomes_are_settled_in_batches_of_a_bounded_size(bench: Bench, store: Store) -> None:
    size = MAX_SETTLE_BYTES // 2 - 1
    store.call("LPUSH", "queue:default", *"abcdefg")
    units = [bench.next() for _ in range(7)]
    retries = [Settlement(unit, Retry(unit.payload * size, 5.0)) for unit in units[:5]]
    with bench.coordinator.lock:
        bench.supply.finished += [
            *retries[:3],
            Settlement(units[5], Done()),
            *retries[3:],
            Settlement(units[6], Done()),
        ]

    sizes = []
    while bench.supply.finished:
        before = store.call("HLEN", store.keys.inflight(bench.fetch.member.identity))
        bench.settle()
        sizes.append(before - store.call("HLEN", store.keys.inflight(bench.fetch.member.identity)))

    assert [size for size in sizes if size] == [2, 3, 2]  # 0: a busy machine made no progress, and it was sent again
    assert store.call("ZCARD", "retry") == 5
    assert int(store.call("GET", "stat:processed")) == 7


def test_an_outcome_that_is_larger_than_a_batch_goes_alone(bench: Bench, store: Store) -> None:
    store.call("LPUSH", "queue:default", "a", "b")
    units = [bench.next() for _ in range(2)]
    with bench.coordinator.lock:
        bench.supply.finished += [Settlement(unit, Retry(unit.payload * len(LARGE), 5.0)) for unit in units]

    bench.settle()
    assert store.call("ZCARD", "retry") == 1
    bench.settle()

    assert store.call("ZCARD", "retry") == 2
    assert "redis_lost" not in bench.events


def test_units_whose_reply_took_long_run_once_redis_has_confirmed_that_they_are_ours(
    bench: Bench, store: Store
) -> None:
    bench.fetch._max_reply_seconds = CALL_TIMEOUT_SECONDS
    store.call("RPUSH", "queue:default", "behind", LARGE)
    epoch = bench.fetch.member.epoch

    first = bench.next()
    second = bench.next(Settlement(first, Done()))

    assert [first.payload, second.payload] == [LARGE, b"behind"]
    assert bench.fetch.member.epoch == epoch + 1
    assert store.call("LLEN", "queue:default") == 0


def test_units_whose_reply_took_long_do_not_run_when_others_have_recovered_them(bench: Bench, store: Store) -> None:
    bench.fetch._max_reply_seconds = CALL_TIMEOUT_SECONDS
    old = bench.fetch.member
    store.call("RPUSH", "queue:default", LARGE)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(bench.next().payload), daemon=True)

    thread.start()
    wait_until(lambda: store.call("EXISTS", store.keys.inflight(old.identity)), "the reserve")
    with store.borrowed() as connection:
        bench.engine.recover(connection, old.identity)

    wait_until(lambda: bench.fetch.member.identity != old.identity, "the new identity")
    wait_until(lambda: got == [LARGE], "the unit, reserved anew")
    held = store.call("HLEN", store.keys.inflight(bench.fetch.member.identity))
    assert held == 1


def test_a_stop_settles_the_small_and_gives_back_what_the_line_has_no_time_for(bench: Bench, store: Store) -> None:
    store.call("LPUSH", "queue:default", "a", "b", "c")
    units = [bench.next() for _ in range(3)]
    heavy = Settlement(units[0], Interrupted(LARGE))
    with bench.coordinator.lock:
        bench.supply.finished += [
            Settlement(units[1], Done()),
            Settlement(units[2], Retry(b"c" * MAX_SMALL_OUTCOME_BYTES, 5.0)),
        ]

    bench.coordinator.end()
    bench.fetch.leave([heavy], CALL_TIMEOUT_SECONDS)

    assert store.call("LRANGE", "queue:default", 0, -1) == [b"a"]
    assert store.call("ZCARD", "retry") == 1
    assert int(store.call("GET", "stat:processed")) == 2
    assert bench.engine.members() == {}


def test_a_wakeup_does_not_wait_for_a_large_payload(bench: Bench, store: Store) -> None:
    wakeups = Wakeups(bench.store, bench.fetch._runtime.clock, (10.0, 2.0))
    wakeups.arm(["default"], lambda _: {})
    store.call("LPUSH", "queue:default", b"x" * (20 * MAX_PAYLOAD_BYTES))
    pushed: list[Push] = []

    wait_until(lambda: pushed.extend(wakeups.wait(0.1)) or pushed, "the wakeup", seconds=TIMEOUT_SECONDS / 5)  # type: ignore[func-returns-value]

    assert pushed == [Push("default")]
    assert store.call("LLEN", "kiq:wake:default") == 1
    wakeups.close()
    wakeups.close_after_fork()


def test_a_reserve_reads_few_large_payloads_that_it_does_not_take(bench: Bench, store: Store) -> None:
    count, size = 30, 4_000_000
    store.call("EVAL", PUSH_LARGE, 1, "queue:default", count, size)
    read_all = usec_of_lrange(
        store, lambda: store.call("EVAL", "redis.call('LRANGE', KEYS[1], 0, -1)", 1, "queue:default")
    )[1]
    fast = Store(store.address).connection()

    limits = {"default": (count, count)}
    reserved: list[Reserved | None] = []
    calls, usec = usec_of_lrange(
        store, lambda: reserved.append(bench.engine.exchange(fast, bench.fetch.member, 1, limits, [], 1.0)[1])
    )

    assert [len(each.units) for each in reserved if each] == [1]
    assert calls == 1
    assert usec < read_all / 5
    fast.close()


PUSH_LARGE = "for _ = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], string.rep('x', ARGV[2])) end"


def usec_of_lrange(store: Store, act: Callable[[], object]) -> tuple[int, int]:
    """Return how often Redis has run LRANGE meanwhile, and for how long, in microseconds."""
    store.call("CONFIG", "RESETSTAT")
    act()
    found = re.search(rb"cmdstat_lrange:calls=(\d+),usec=(\d+)", store.call("INFO", "commandstats"))
    assert found is not None
    return int(found[1]), int(found[2])


# too slow to be of use


def trickle(peer: socket.socket, has_ended: threading.Event) -> None:
    """Send a reply byte by byte, and read what comes a little at a time, until the other side has enough of it."""
    peer.setblocking(False)
    with suppress(OSError):
        peer.send(b"$100000\r\n")
        while not has_ended.wait(0.01):
            peer.send(b"x")
            with suppress(BlockingIOError):
                peer.recv(4_096)


@pytest.fixture
def crawling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A connection on which something moves all the time, and hardly anything arrives."""
    monkeypatch.setattr("kiqcluster.store.wire.SLOW_TRANSFER_SECONDS", CALL_TIMEOUT_SECONDS)
    monkeypatch.setattr("kiqcluster.store.wire.MIN_BYTES_PER_SECOND", 1_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as ours:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        ours.connect(server.getsockname())
        ours.settimeout(CALL_TIMEOUT_SECONDS)
        peer, _ = server.accept()
        has_ended = threading.Event()
        thread = threading.Thread(target=trickle, args=(peer, has_ended))
        thread.start()
        yield Wire(SimpleNamespace(_sock=ours))
        has_ended.set()
        thread.join()
        peer.close()


@pytest.mark.timeout(10)
def test_a_reply_that_trickles_in_is_given_up(crawling: Wire) -> None:
    with pytest.raises(TimeoutError, match="slow"):
        crawling.read(1, None)


@pytest.mark.timeout(10)
def test_a_command_that_is_hardly_taken_is_given_up(crawling: Wire) -> None:
    with pytest.raises(TimeoutError, match="slow"):
        crawling.write(b"x" * 10_000_000)
