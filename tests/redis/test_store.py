"""Store and Connection: what was sent, what was not, and what nobody knows."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store, parse_address
from kiqcluster.store.scripts import RESERVE, Call, run_scripts
from kiqcluster.store.store import IDLE_SECONDS
from tests.kit import TIMEOUT_SECONDS, RedisServer, free_port, wait_until


def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent() -> None:
    with pytest.raises(RedisUnavailable, match="nothing was sent"):
        Store(f"redis://127.0.0.1:{free_port()}/0").call("PING")


@pytest.mark.parametrize("is_named", [False, True])
def test_an_address_that_nobody_has_set_is_said_to_be_one(
    is_named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("REDIS_URL", "KIQ_REDIS", "KIQ_EMBEDDED"):
        monkeypatch.delenv(variable, raising=False)
    address = f"redis://127.0.0.1:{free_port()}/0"
    store = Setup({"redis": address} if is_named else {}).current_store()
    monkeypatch.setattr(store, "_locate", lambda: [parse_address(address)])  # a server may be at the default one

    with pytest.raises(RedisUnavailable, match="nothing was sent") as caught:
        store.call("PING")

    assert ("set REDIS_URL" in str(caught.value)) is not is_named


def test_a_function_that_names_no_server_is_told(store: Store) -> None:
    """It may ask a service that knows none at the moment; this is no assertion, which `python -O` leaves out."""
    with pytest.raises(RedisUnavailable, match="`locate` names no server"):
        Store(locate=list).call("PING")


def test_a_timed_out_push_is_not_sent_twice(redis_server: RedisServer, store: Store) -> None:
    hasty = Store(redis_server.url, timeout=0.2)
    hasty.call("PING")

    with redis_server.stalled(), pytest.raises(ReplyLost):
        hasty.call("LPUSH", "list", "once")

    wait_until(lambda: store.call("LLEN", "list"), "the late command to run")
    assert store.call("LRANGE", "list", 0, -1) == [b"once"]


def test_a_connection_that_the_server_closed_is_replaced_without_an_error(store: Store) -> None:
    store.call("SET", "key", "1")
    other = Store(f"unix://{_socket_of(store)}")
    other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert store.call("GET", "key") == b"1"


def _socket_of(store: Store) -> str:
    return store.address.removeprefix("unix://").partition("?")[0]


def test_an_error_reply_has_its_code_and_the_other_commands_have_run(store: Store) -> None:
    with pytest.raises(RedisRefused) as refusal:
        store.pipeline([("SET", "text", "x"), ("LPUSH", "text", "y"), ("SET", "after", "z")])

    assert refusal.value.code == "WRONGTYPE"
    assert store.call("GET", "after") == b"z"


def test_replies_larger_than_one_read_arrive_whole_and_in_order(store: Store) -> None:
    large = os.urandom(300_000)

    replies = store.pipeline([("SET", "large", large), *[("GET", "large"), ("INCR", "n")] * 5])

    assert replies == [b"OK", *(reply for number in range(1, 6) for reply in (large, number))]


def test_a_command_that_cannot_be_written_is_not_sent_and_leaves_the_link_as_it_was(store: Store) -> None:
    mine = store.call("CLIENT", "ID")

    for word in (None, object(), "\ud800"):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            store.pipeline([("INCR", "n"), ("SET", "key", word)])  # type: ignore[list-item]

    assert store.call("EXISTS", "n", "key") == 0
    assert store.call("CLIENT", "ID") == mine


def test_an_error_without_a_code_gets_one(store: Store) -> None:
    with pytest.raises(RedisRefused) as refusal:
        store.call("EVAL", "return redis.error_reply('my own words')", 0)

    assert refusal.value.code == "ERR"
    assert "my own words" in str(refusal.value)


def test_a_longer_wait_holds_for_one_exchange(redis_server: RedisServer) -> None:
    connection = Store(redis_server.url, timeout=0.2).connection()

    assert connection.exchange([("BLPOP", "nothing", 0.4)], timeout=5.0) == [None]
    with pytest.raises(ReplyLost):
        connection.exchange([("BLPOP", "nothing", 5)])
    connection.close()


def test_a_connection_that_ends_before_its_last_reply_is_a_lost_reply(store: Store) -> None:
    with pytest.raises(ReplyLost):
        store.pipeline([("INCR", "n"), ("QUIT",), ("INCR", "n")])

    connection = store.connection()
    connection.send(("QUIT",))
    with pytest.raises(ReplyLost):
        wait_until(lambda: [reply for reply in connection.receive() if reply != b"OK"], "the end")

    assert store.call("GET", "n") == b"1"
    assert connection.fileno() == -1


def test_a_reply_that_nobody_has_read_is_not_taken_for_another(store: Store) -> None:
    connection = store.connection()
    connection.send(("BLPOP", "nothing", 0))

    assert connection.exchange([("ECHO", "ours")]) == [b"ours"]
    store.call("RPUSH", "nothing", "late")
    assert connection.exchange([("ECHO", "ours again")]) == [b"ours again"]
    assert connection.connect_count == 2
    connection.close()


def test_closing_a_link_wakes_the_thread_that_waits_at_it(store: Store) -> None:
    connection, ends = store.connection(timeout=60.0), list[BaseException]()

    def wait() -> None:
        try:
            connection.exchange([("BLPOP", "nothing", 0)])
        except ReplyLost as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: b"cmd=blpop" in store.call("CLIENT", "LIST"), "the wait")
    connection.close()

    thread.join(TIMEOUT_SECONDS)
    assert len(ends) == 1


def test_what_is_read_later_is_there_when_it_has_arrived_whole(redis_server: RedisServer, store: Store) -> None:
    connection = store.connection()
    connection.send(("BLPOP", "list", 0))
    before = list(connection.receive())
    store.call("LPUSH", "list", "x" * 300_000)

    arrived: list[object] = []
    wait_until(lambda: arrived.extend(connection.receive()) or arrived, "the reply")  # type: ignore[func-returns-value]

    assert before == []
    assert arrived == [[b"list", b"x" * 300_000]]
    assert connection.exchange([("ECHO", "next")]) == [b"next"]
    connection.close()


def test_a_transaction_returns_the_replies_of_its_commands(store: Store) -> None:
    assert store.transaction([("INCR", "n"), ("INCR", "n"), ("GET", "n")]) == [1, 2, b"2"]


def test_a_script_that_the_server_forgot_is_sent_again_as_text(store: Store) -> None:
    store.call("SCRIPT", "FLUSH")
    call = Call(RESERVE, ["kiq:members", "inflight", "paused"], ["nobody", "1", "1", 0, 1_000])

    with store.borrowed() as connection:
        first = run_scripts(connection, [call, call])
        second = run_scripts(connection, [call])

    assert first == [[b"FENCED"], [b"FENCED"]]
    assert second == [[b"FENCED"]]


def test_a_forked_process_does_not_use_its_parents_connections(store: Store) -> None:
    mine = store.call("CLIENT", "ID")
    reader, writer = os.pipe()

    pid = os.fork()
    if pid == 0:
        os.write(writer, str(store.call("CLIENT", "ID")).encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert int(os.read(reader, 32)) != mine
    assert store.call("CLIENT", "ID") == mine


def test_a_wrong_password_is_refused_not_unavailable(store: Store, redis_server: RedisServer) -> None:
    store.call("CONFIG", "SET", "requirepass", "secret")
    try:
        with pytest.raises(RedisRefused):
            Store(redis_server.url.replace("//", "//:wrong@")).call("PING")
        assert Store(redis_server.url.replace("//", "//:secret@")).call("PING") == b"PONG"
    finally:
        Store(redis_server.url.replace("//", "//:secret@")).call("CONFIG", "SET", "requirepass", "")


@pytest.mark.parametrize("address", ["", "localhost:6379", "http://x", "redis://host:port/x", "embedded:/" + "x" * 200])
def test_what_is_no_address_is_refused_with_the_forms_that_work(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


def test_a_password_never_shows() -> None:
    assert "secret" not in repr(Store("redis://user:secret@localhost:6379/0"))


@pytest.mark.parametrize(
    ("prepare", "command", "code"),
    [
        ([("CONFIG", "SET", "maxmemory", "1")], ("SET", "x", "1"), "OOM"),
        ([("ACL", "SETUSER", "default", "-get")], ("GET", "x"), "NOPERM"),
        ([("CONFIG", "SET", "min-replicas-to-write", "3")], ("SET", "x", "1"), "NOREPLICAS"),
        ([("REPLICAOF", "127.0.0.1", "1")], ("SET", "x", "1"), "READONLY"),
        ([], ("EVALSHA", "0" * 40, "0"), "NOSCRIPT"),
        ([], ("LPUSH",), "ERR"),
    ],
)
def test_a_refusal_keeps_the_servers_code(
    own_server: RedisServer, prepare: list[tuple[str, ...]], command: tuple[str, ...], code: str
) -> None:
    store = own_server.store()
    for each in prepare:
        store.call(*each)

    with pytest.raises(RedisRefused) as refusal:
        store.call(*command)

    assert refusal.value.code == code


def test_a_missing_password_is_refused_whatever_the_database(store: Store, redis_server: RedisServer) -> None:
    store.call("CONFIG", "SET", "requirepass", "secret")
    try:
        for address in (redis_server.url, redis_server.url.replace("/0", "/1")):
            for commands in ([("PING",)], [("SADD", "set", "x"), ("LPUSH", "list", "x")]):
                with pytest.raises(RedisRefused) as refusal:
                    Store(address).pipeline(commands)
                assert refusal.value.code == "NOAUTH"
    finally:
        Store(redis_server.url.replace("//", "//:secret@")).call("CONFIG", "SET", "requirepass", "")


def test_what_is_no_reply_counts_as_a_lost_one(store: Store) -> None:
    connection = store.connection()
    connection.exchange([("PING",)])
    assert connection._wire is not None
    connection._wire._reader.feed(b"no protocol at all\r\n")

    with pytest.raises(ReplyLost):
        connection.exchange([("PING",)])

    assert connection.exchange([("PING",)]) == [b"PONG"]


def test_replies_that_nobody_has_read_are_not_taken_for_those_of_the_next_call(store: Store) -> None:
    """A signal handler that raises may tear a caller away between sending and reading."""
    connection = store.connection(trust=5.0)
    connection.exchange([("PING",)])
    connection.begin([("ECHO", "first")])

    assert connection.exchange([("ECHO", "second")]) == [b"second"]


def test_a_node_of_a_cluster_is_refused_with_what_is_supported() -> None:
    with RedisServer(settings=["--cluster-enabled", "yes"]) as server:
        store = server.store()

        with pytest.raises(RedisRefused, match=r"Redis Cluster.*Sentinel"):
            store.check()

        store.call("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        wait_until(lambda: b"cluster_state:ok" in store.call("CLUSTER", "INFO"), "the cluster")
        with pytest.raises(RedisRefused, match=r"CROSSSLOT.*Redis Cluster"):
            store.call("EXISTS", "queue:a", "queue:b")


@pytest.mark.parametrize(
    ("rename", "words"), [("eval", ""), ("blmove", "BLMOVE"), ("smismember", "SMISMEMBER"), ("info", "")]
)
def test_a_server_that_lacks_what_is_needed_is_refused_at_boot(rename: str, words: str) -> None:
    """A renamed EVAL or INFO is a host's choice: scripts run by EVALSHA as well, and INFO is only looked at."""
    with RedisServer(settings=["--rename-command", rename, ""]) as server:
        store = server.store()
        if words:
            with pytest.raises(RedisRefused, match=words):
                store.check()
        elif rename == "info":
            assert store.check() == {}


def test_links_that_a_crowd_has_needed_once_are_closed_when_they_stay_unused(store: Store) -> None:
    with store.borrowed() as first, store.borrowed() as second, store.borrowed() as third:
        for connection in (first, second, third):
            connection.exchange([("PING",)])
    store.call("PING")  # over the one that came back last

    store.close_idle(60.0)
    assert [connection.fileno() >= 0 for connection in (first, second, third)] == [True] * 3
    used_at = first.used_at
    wait_until(lambda: time.monotonic() > used_at, "the moment to pass")
    store.call("PING")
    store.close_idle(time.monotonic() - used_at)

    assert [connection.fileno() >= 0 for connection in (first, second, third)] == [True, False, False]
    store.call("PING")


def test_a_client_closes_by_itself_what_only_its_largest_crowd_needed(
    redis_server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat does it for a web process.  As its pushes go on, each closes some."""
    client = Store(redis_server.url)
    with ExitStack() as crowd:
        borrowed = [crowd.enter_context(client.borrowed()) for _ in range(30)]
        for connection in borrowed:
            connection.exchange([("PING",)])
    client.call("PING")
    assert sum(each.fileno() >= 0 for each in borrowed) == 30  # they may be needed again soon

    later = time.monotonic() + 2 * IDLE_SECONDS
    monkeypatch.setattr("kiqcluster.store.connection.monotonic", lambda: later)
    for _ in range(5):
        client.call("PING")

    assert sum(each.fileno() >= 0 for each in borrowed) == 1
    client.close()


def test_a_connection_asks_for_no_right_that_redis_7_0_does_not_know(store: Store) -> None:
    """CLIENT SETINFO came with 7.2: an ACL rule that names it is refused as a whole by 7.0."""
    assert {b"lib-name=", b"lib-ver="} <= set(store.call("CLIENT", "INFO").split())
