"""The cluster fixture: a real command with real workers, for jobs of an application in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from kiqcluster import Client, Store
from kiqcluster.process.clock import SystemClock
from kiqcluster.testing import Cluster, RedisServer, wait_until
from kiqcluster.testing.server import free_port, is_alive
from kiqcluster.testing.waiting import DEFAULT_TIMEOUT_SECONDS
from tests import forkserver

APPLICATION = """
from kiqcluster import current_job, job
from kiqcluster.process.runtime import current_setup

@job(queue="notes")
def note(value):
    print("noted", value)
    current_setup().current_store().call("SADD", "notes", value)

@job(queue="notes", retry=5)
def fail_once():
    if "retry_count" not in current_job().payload:
        raise ValueError("once")
"""
STARTED_AS_BY_USERS = ("test_a_pushed_job_runs_there", "test_close_leaves_no_process_behind")


@pytest.fixture
def start(
    kiq_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., Cluster]:
    """Start a cluster with the application; by way of the fork server, where the test is not about its start."""
    if request.node.originalname not in STARTED_AS_BY_USERS:
        monkeypatch.setattr(Cluster, "_popen", forkserver.Popen)
    (tmp_path / "app.py").write_text(dedent(APPLICATION))
    return lambda *arguments, **more: kiq_cluster(*arguments, require="app", cwd=tmp_path, **more)


def push(name: str, *args: object, **keys: object) -> str:
    jid = Client().push({"class": name, "args": list(args), "queue": "notes", **keys})
    assert jid is not None
    return jid


def test_a_pushed_job_runs_there(start, kiq_store: Store) -> None:
    cluster = start("notes", "-c", "2")

    jid = push("note", "a")
    event = cluster.wait_done(jid)

    assert event["ctx"]["jid"] == jid
    assert kiq_store.call("SMEMBERS", "notes") == [b"a"]
    assert "noted a" in cluster.lines
    assert cluster.stop() == 0


def test_it_is_ready_when_it_is_there_with_all_its_slots(start) -> None:
    cluster = start("notes", "other,third")

    pids = cluster.pids()

    assert set(pids) == {0, 1}
    assert all(map(is_alive, pids.values()))
    assert len(cluster.seen("child_ready")) == 2


def test_scheduled_jobs_run_when_they_are_due(start, kiq_store: Store) -> None:
    cluster = start("notes")

    cluster.wait_done(push("note", "later", at=kiq_now(kiq_store) + 0.5))

    assert kiq_store.call("SMEMBERS", "notes") == [b"later"]


def kiq_now(store: Store) -> float:
    return float(store.call("TIME")[0])


def test_a_failed_job_is_waited_for_by_its_event(start, kiq_store: Store) -> None:
    cluster = start("notes")

    jid = push("fail_once")
    event = cluster.wait_for("job_failed", jid=jid)

    assert "ValueError: once" in event["error"]
    wait_until(lambda: kiq_store.call("ZCARD", "retry") == 1, "the retry to be written")


def test_variables_and_settings_are_handed_on(start) -> None:
    cluster = start("notes", environ={"KIQ_CONCURRENCY": "3"})

    assert cluster.wait_for("worker_ready")["concurrency"] == 3


def test_two_clusters_share_the_database(start) -> None:
    first, second = start("notes"), start("others")

    jid = push("note", "x")

    first.wait_done(jid)
    assert second.seen("job_done", jid=jid) == []


def test_waiting_in_vain_shows_the_log_and_waiting_for_what_has_ended_does_not_last(start) -> None:
    cluster = start("notes")

    with pytest.raises(AssertionError, match=r"waited in vain for event never .*the log ends:\n") as caught:
        cluster.wait_for("never", seconds=0.1)
    assert "child_ready" in str(caught.value)

    cluster.stop()
    with pytest.raises(AssertionError, match="waited in vain for event never"):
        cluster.wait_for("never", seconds=1_000)


def test_a_reader_that_stands_still_holds_up_nobody_and_misses_nothing(start, kiq_redis: RedisServer) -> None:
    store, cluster = kiq_redis.store(), start("notes")
    word = "x" * 200_000  # more than a pipe usually takes

    with cluster._changed:  # which the reader needs for each line
        jid = push("note", word)
        wait_until(lambda: store.call("SISMEMBER", "notes", word), "the job to have printed")

    cluster.wait_done(jid)
    assert any(line.startswith(f"noted {word}") for line in cluster.lines)
    store.close()


@pytest.mark.parametrize("line", ['{"event":"lines_dropped","lines":3}', '{"ts":"{"ts":"2","event":"child_ready"}'])
def test_a_log_that_lacks_lines_is_an_error_wherever_events_are_asked_for(start, line: str) -> None:
    cluster = start("notes")
    cluster.wait_ready()

    cluster.note(line)

    with pytest.raises(AssertionError, match="lines of the log are missing"):
        cluster.pids()
    with pytest.raises(AssertionError, match="lines of the log are missing"):
        cluster.wait_for("child_ready")


def test_an_event_behind_text_without_the_end_of_its_line_is_read(start) -> None:
    cluster = start("notes")
    cluster.wait_ready()

    cluster.note('a job prints{"ts":"1","event":"first"}{"ts":"2","event":"second"}')

    assert cluster.seen("first")
    assert cluster.seen("second")


def test_a_push_that_was_stopped_is_not_waited_for(start) -> None:
    with pytest.raises(AssertionError, match="middleware has stopped the push"):
        start("notes").wait_done(None)


def test_clusters_do_not_meet_at_the_places_that_the_applications_settings_name(start, tmp_path: Path) -> None:
    places = (tmp_path / "app.pid", tmp_path / "app.sock")
    (tmp_path / "kiqcluster.toml").write_text('pidfile = "{}"\ncontrol = "{}"\n'.format(*places))

    first, second = start("notes"), start("notes")

    assert first.stop() == second.stop() == 0
    assert not any(place.exists() for place in places)


def test_close_leaves_no_process_behind(start) -> None:
    cluster = start("notes")
    (worker,) = cluster.pids().values()
    os.kill(worker, signal.SIGSTOP)  # it cannot even be asked

    cluster.close()

    wait_until(lambda: not is_alive(cluster.pid) and not is_alive(worker), "all processes to be gone")


def test_no_worker_takes_a_push_after_close(start, kiq_redis: RedisServer) -> None:
    """A process that ends closes its connections after its output, by which the log is over."""
    store = kiq_redis.store()
    cluster = start("notes")
    cluster.wait_ready()
    wait_until(lambda: waiting_clients(store), "the worker to wait for a push")

    cluster.close()

    assert not any(map(is_alive, cluster.pids().values()))
    store.call("PING")  # Redis has read of all connections by then
    assert waiting_clients(store) == []
    store.close()


def waiting_clients(store: Store) -> list[bytes]:
    """Return what Redis says of the clients that wait for an element of a list."""
    return [line for line in store.call("CLIENT", "LIST").splitlines() if b" cmd=bl" in line]


def test_a_free_port_is_given_to_nobody_else_for_a_while_and_a_server_can_have_it() -> None:
    """Clusters of several test processes start at once, each some time after it was given its port."""
    ports = {free_port() for _ in range(500)}

    assert len(ports) == 500
    socket.create_server(("127.0.0.1", ports.pop())).close()


class TestServer:
    def test_a_stalled_one_answers_afterwards_and_a_killed_one_when_it_is_started_again(self) -> None:
        with RedisServer(durable=True) as server:
            store = server.store()
            store.call("SET", "a", 1)
            with server.stalled():
                connection = store.connection(timeout=0.1)
                with pytest.raises(Exception, match=r"(did not answer|cannot reach)"):
                    connection.exchange([("GET", "a")])
            server.kill()
            server.start()

            assert store.call("GET", "a") == b"1"

        assert not server.directory.exists()

    def test_one_that_does_not_start_says_why_at_once_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        started = SystemClock.monotonic()

        with pytest.raises(AssertionError, match="No such file or directory"):
            RedisServer(settings=["--unixsocket", "/no/such/folder/redis.sock", "--aclfile", "/no/such/file"])

        assert SystemClock.monotonic() - started < DEFAULT_TIMEOUT_SECONDS / 2
        assert list(tmp_path.iterdir()) == []

    def test_clear_empties_every_database(self, kiq_server: RedisServer) -> None:
        for db in (0, 3):
            kiq_server.store(db).call("SET", "a", 1)

        kiq_server.clear()

        assert [kiq_server.store(db).call("DBSIZE") for db in (0, 3)] == [0, 0]
