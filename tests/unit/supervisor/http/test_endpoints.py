"""Endpoints: pages and orders over real sockets, a turn of the loop at a time."""

from __future__ import annotations

import gzip
import json
import resource
import selectors
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process.events import Events
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.http.endpoints import ORDERS, Endpoints
from kiqcluster.supervisor.http.server import ACCEPT_PAUSE_SECONDS, MAX_CONNECTIONS, REQUEST_TIMEOUT_SECONDS
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from tests.kit import ManualClock, wait_until


class Supervisor:
    """A loop in small, with the pages in it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.control = str(folder / "http.sock"), str(folder / "control.sock")
        self.state = ClusterState()
        self.clock = TickingClock()
        self.selector = selectors.DefaultSelector()
        self.messages: list[Mapping[str, object]] = []
        self.refusal: str | None = None
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        events = Events()
        events.listen(lambda event, fields: self.events.append((event, fields)))
        self.metrics = ClusterMetrics(self.state, self.clock, events)
        self.probes = Endpoints(
            self.state, "here:1:abc", lambda: None, self.metrics, self._take, self.selector, self.clock, events
        )
        self.probes.listen(f"unix:{self.path}")
        self.probes.open_control_socket(self.control, is_required=True)

    def _take(self, message: Mapping[str, object]) -> str | None:
        self.messages.append(message)
        return self.refusal

    def add_slot(self, *, is_ready: bool) -> Slot:
        slot = Slot(SlotPlan(0, parse_group("*"), {}, "random", 1))
        slot.child = Child(1 << 22, None, started_at=0.0, beat=LastBeat(0.0, redis=True))  # type: ignore[arg-type]  # it has no socket
        slot.child.ready_at = 1.0 if is_ready else None
        slot.history = replace(slot.history, ever_ready=is_ready)
        self.state.slots.append(slot)
        return slot

    def add_slots(self, count: int) -> None:
        for _ in range(count):
            self.add_slot(is_ready=True)

    def turn(self) -> None:
        for key, _ in self.selector.select(0.0):
            key.data()
        self.probes.advance()

    def connect(self, path: str = "") -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path or self.path)
        sock.setblocking(False)
        return sock

    def receive(self, sock: socket.socket) -> bytes:
        """Turn until the other side has closed; return what came."""
        data = bytearray()

        def is_closed() -> bool:
            self.turn()
            try:
                chunk = sock.recv(1 << 20)
            except BlockingIOError:
                return False
            data.extend(chunk)
            return not chunk

        wait_until(is_closed, "the connection to be closed")
        sock.close()
        return bytes(data)

    def ask(self, path: str, method: str = "GET", headers: str = "", at: str = "") -> tuple[int, dict[str, str], bytes]:
        sock = self.connect(at)
        sock.sendall(f"{method} {path} HTTP/1.1\r\n{headers}\r\n".encode())
        head, _, body = self.receive(sock).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body

    def order(self, path: str) -> tuple[int, Any]:
        status, _, body = self.ask(path, "POST", at=self.control)
        return status, json.loads(body)


class TickingClock(ManualClock):
    """Every look at it takes a millisecond, so that slices end."""

    def monotonic(self) -> float:
        self.time += 0.001
        return self.time


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """One that has just begun to listen."""
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.probes.close()
    supervisor.selector.close()


class TestPages:
    def test_a_page_is_made_over_several_turns_and_the_loop_is_told_not_to_sleep(self, supervisor: Supervisor) -> None:
        supervisor.add_slots(20)
        sock = supervisor.connect()
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert not supervisor.probes.is_busy

        supervisor.turn()
        assert supervisor.probes.is_busy
        turns = 0
        while supervisor.probes.is_busy:
            supervisor.turn()
            turns += 1

        assert turns > 3
        assert b"kiqcluster_children" in supervisor.receive(sock)

    def test_gzip_is_the_same_page(self, supervisor: Supervisor) -> None:
        _, _, plain = supervisor.ask("/metrics")
        status, headers, body = supervisor.ask("/metrics", headers="Accept-Encoding: deflate, gzip\r\n")

        assert (status, headers["Content-Encoding"], int(headers["Content-Length"])) == (200, "gzip", len(body))
        assert names(gzip.decompress(body)) == names(plain)

    @pytest.mark.parametrize(
        ("accept", "content_type", "end"),
        [
            ("text/plain", "text/plain; version=0.0.4; charset=utf-8", b"\n"),
            (
                "application/openmetrics-text",
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                b"\n# EOF\n",
            ),
        ],
    )
    def test_the_accept_header_chooses(
        self, supervisor: Supervisor, accept: str, content_type: str, end: bytes
    ) -> None:
        _, headers, body = supervisor.ask("/metrics", headers=f"Accept: {accept}\r\n")

        assert headers["Content-Type"] == content_type
        assert body.endswith(end)
        assert body.count(b"# EOF") == end.count(b"# EOF")

    def test_a_head_of_the_metrics_has_their_length(self, supervisor: Supervisor) -> None:
        status, headers, body = supervisor.ask("/metrics", "HEAD")

        assert (status, body) == (200, b"")
        assert int(headers["Content-Length"]) > 1_000

    def test_many_scrapers_at_once_are_all_answered(self, supervisor: Supervisor) -> None:
        socks = [supervisor.connect() for _ in range(30)]
        for sock in socks:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

        assert all(supervisor.receive(sock).startswith(b"HTTP/1.1 200 ") for sock in socks)

    def test_readiness_says_why_not(self, supervisor: Supervisor) -> None:
        slot = supervisor.add_slot(is_ready=True)
        assert supervisor.ask("/readiness")[0] == 200
        assert slot.child is not None
        slot.child.beat.redis = False

        status, _, body = supervisor.ask("/readiness")
        assert (status, json.loads(body)["reason"]) == (503, "slot 0 cannot reach Redis")
        assert supervisor.ask("/liveness")[0] == 200

    def test_startup_stays_once_it_was(self, supervisor: Supervisor) -> None:
        slot = supervisor.add_slot(is_ready=False)
        status, _, body = supervisor.ask("/startup")
        assert (status, json.loads(body)["status"]) == (503, "starting")

        slot.history = replace(slot.history, ever_ready=True)
        assert supervisor.ask("/startup")[0] == 200
        supervisor.add_slot(is_ready=False)  # a reload
        assert supervisor.ask("/startup")[0] == 200

    def test_status_tells_of_the_cluster(self, supervisor: Supervisor) -> None:
        supervisor.add_slot(is_ready=True)

        document = json.loads(supervisor.ask("/status")[2])
        assert (document["supervisor"], document["state"], len(document["slots"])) == ("here:1:abc", "running", 1)

    def test_a_page_that_fails_is_reported_once_and_the_others_go_on(self, supervisor: Supervisor) -> None:
        supervisor.state.slots.append(None)  # type: ignore[arg-type]  # what no page can bear

        assert [supervisor.ask("/status")[0] for _ in range(3)] == [500, 500, 500]
        assert [(event, fields["path"]) for event, fields in supervisor.events] == [("page_failed", "/status")]
        assert supervisor.ask("/liveness")[0] == 200


class TestCrowds:
    def test_a_scraper_gets_through_a_crowd_that_only_connects(self, supervisor: Supervisor) -> None:
        crowd = [supervisor.connect() for _ in range(3 * MAX_CONNECTIONS)]
        supervisor.turn()

        assert supervisor.ask("/liveness")[0] == 200
        assert open_connections(supervisor) <= MAX_CONNECTIONS
        for sock in crowd:
            sock.close()

    def test_who_takes_too_long_is_told_and_closed(self, supervisor: Supervisor) -> None:
        sock = supervisor.connect()
        sock.sendall(b"GET /met")
        supervisor.turn()
        supervisor.clock.time += REQUEST_TIMEOUT_SECONDS

        assert supervisor.receive(sock).startswith(b"HTTP/1.1 408 ")
        assert open_connections(supervisor) == 0

    def test_a_scraper_that_leaves_while_its_page_is_made_holds_nothing_up(self, supervisor: Supervisor) -> None:
        supervisor.add_slots(20)
        sock = supervisor.connect()
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        supervisor.turn()
        assert supervisor.probes.is_busy
        sock.close()

        assert supervisor.ask("/metrics")[0] == 200
        wait_until(lambda: supervisor.turn() or open_connections(supervisor) == 0, "its connection to be closed")

    def test_one_that_waits_for_its_page_may_have_to_go(self, supervisor: Supervisor) -> None:
        """Its deadline comes although the loop is busy with other things."""
        supervisor.add_slots(20)
        sock = supervisor.connect()
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        supervisor.turn()
        supervisor.clock.time += REQUEST_TIMEOUT_SECONDS
        supervisor.turn()

        assert not supervisor.probes.is_busy
        assert supervisor.receive(sock) == b""


class TestOrders:
    @pytest.mark.parametrize("action", ORDERS)
    def test_an_order_goes_to_the_supervisor_and_the_answer_is_the_status(
        self, supervisor: Supervisor, action: str
    ) -> None:
        status, document = supervisor.order(f"/{action}?by=Ann%20B&id=x1")

        assert (status, document["supervisor"]) == (ORDERS[action], "here:1:abc")
        assert supervisor.messages == [{"action": action, "scope": "cluster", "lease": None, "by": "Ann B", "id": "x1"}]

    @pytest.mark.parametrize(
        ("query", "lease"),
        [("", None), ("?lease=", None), ("?lease=15m", 900.0), ("?lease=90", 90.0), ("?lease=0", 0.0)],
    )
    def test_a_lease_is_written_as_people_do(self, supervisor: Supervisor, query: str, lease: float | None) -> None:
        assert supervisor.order(f"/quiet{query}")[0] == 200
        assert supervisor.messages[0]["lease"] == lease

    @pytest.mark.parametrize("lease", ["soon", "-5", "1e400", "15 m"])
    def test_a_lease_that_is_none_is_refused(self, supervisor: Supervisor, lease: str) -> None:
        status, document = supervisor.order(f"/quiet?lease={lease.replace(' ', '%20')}")

        assert status == 400
        assert "lease" in document["error"]
        assert supervisor.messages == []

    @pytest.mark.parametrize(
        ("path", "hint"),
        [("/quiet?leese=3s", "did you mean lease?"), ("/roll?lease=3s", "by, id"), ("/resume?x%0A=1&by=Ann", "'x'")],
    )
    def test_a_parameter_that_there_is_not_is_refused_and_nothing_is_done(
        self, supervisor: Supervisor, path: str, hint: str
    ) -> None:
        status, document = supervisor.order(path)

        assert status == 400
        assert hint in document["error"]
        assert supervisor.messages == []

    def test_whose_quiet_a_resume_may_end_is_handed_on(self, supervisor: Supervisor) -> None:
        assert supervisor.order("/resume?whose=deploy")[0] == 200

        assert supervisor.messages[0]["whose"] == "deploy"

    def test_what_cannot_be_done_is_a_conflict_that_says_why(self, supervisor: Supervisor) -> None:
        supervisor.refusal = "a roll is under way"

        assert supervisor.order("/roll") == (409, {"error": "a roll is under way"})

    def test_who_gives_an_order_cannot_write_lines_of_the_log(self, supervisor: Supervisor) -> None:
        assert supervisor.order(f"/quiet?by=Ann%0AERROR%1b[2J&id={'x' * 999}")[0] == 200

        assert supervisor.messages[0]["by"] == "AnnERROR[2J"
        assert len(str(supervisor.messages[0]["id"])) == 200

    def test_every_order_has_an_id_of_its_own(self, supervisor: Supervisor) -> None:
        for _ in range(3):
            supervisor.order("/roll")

        assert len({message["id"] for message in supervisor.messages}) == 3
        assert {message["by"] for message in supervisor.messages} == {"control socket"}

    def test_the_control_socket_serves_every_page(self, supervisor: Supervisor) -> None:
        supervisor.add_slot(is_ready=True)

        for path in ("/metrics", "/liveness", "/readiness", "/startup", "/status"):
            assert supervisor.ask(path, at=supervisor.control)[0] == 200

    @pytest.mark.parametrize(
        ("method", "path", "status", "allowed"),
        [
            ("GET", "/quiet", 405, "POST"),
            ("POST", "/status", 405, "GET, HEAD"),
            ("POST", "/nowhere", 404, None),
            ("DELETE", "/quiet", 405, "POST"),
        ],
    )
    def test_everything_has_its_method(
        self, supervisor: Supervisor, method: str, path: str, status: int, allowed: str | None
    ) -> None:
        answer = supervisor.ask(path, method, at=supervisor.control)

        assert (answer[0], answer[1].get("Allow")) == (status, allowed)

    @pytest.mark.parametrize("action", ORDERS)
    def test_nobody_gives_orders_where_everybody_asks(self, supervisor: Supervisor, action: str) -> None:
        status, headers, _ = supervisor.ask(f"/{action}", "POST")

        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert supervisor.messages == []


class TestSockets:
    def test_a_control_socket_that_cannot_be_is_said_where_nobody_named_it(self, supervisor: Supervisor) -> None:
        supervisor.probes.open_control_socket("/nonexistent/control.sock", is_required=False)

        ((event, fields),) = supervisor.events
        assert (event, fields["path"]) == ("control_off", "/nonexistent/control.sock")
        with pytest.raises(UsageError, match="control"):
            supervisor.probes.open_control_socket("/nonexistent/control.sock", is_required=True)

    def test_in_a_child_closing_removes_no_file_and_at_the_end_all_are_removed(self, supervisor: Supervisor) -> None:
        supervisor.probes.close()
        assert Path(supervisor.path).exists()
        assert Path(supervisor.control).exists()
        supervisor.probes.remove()

        assert not Path(supervisor.path).exists()
        assert not Path(supervisor.control).exists()


def names(page: bytes) -> list[str]:
    """Return the series of a page."""
    return [line.rpartition(" ")[0] for line in page.decode().splitlines()]


def open_connections(supervisor: Supervisor) -> int:
    """Return how many connections the loop looks after."""
    return sum(len(listener.connections) for listener in supervisor.probes._listeners)


@pytest.mark.parametrize(
    "raw", [b"no json", b'{"type":"metrics","values":[[1]],"rows":[[0,7,7]]}', b'{"type":"metrics","families":5}']
)
def test_a_frame_that_makes_no_sense_is_reported_and_dropped(supervisor: Supervisor, raw: bytes) -> None:
    slot = supervisor.add_slot(is_ready=True)
    assert slot.child is not None
    for _ in range(3):
        supervisor.metrics.add_frame(slot, slot.child, {"type": "metrics", "raw": raw})

    wait_until(lambda: supervisor.turn() or not supervisor.probes.is_busy, "the frames to be dropped")

    assert [(event, fields["path"]) for event, fields in supervisor.events] == [("page_failed", "/metrics")]
    assert supervisor.ask("/metrics")[0] == 200


def test_frames_and_pages_share_the_time_of_a_turn(supervisor: Supervisor) -> None:
    slot = supervisor.add_slot(is_ready=True)
    assert slot.child is not None
    for number in range(200):
        rows = [[each, 0, 0, "worker", f"{number} {each}"] for each in range(5)]
        frame = {
            "type": "metrics",
            "families": [[0, f"sold_{number}", "counter", "x", "", "all"]],
            "layouts": [[0, [["_total"]]]],
            "rows": rows,
        }
        supervisor.metrics.add_frame(slot, slot.child, {"type": "metrics", "raw": ruby_json.encode(frame)})
    assert supervisor.probes.is_busy

    before, turns = supervisor.clock.time, 0
    while supervisor.probes.is_busy:
        supervisor.turn()
        turns += 1

    assert turns > 10
    assert (supervisor.clock.time - before) / turns < 0.02


def test_a_listener_without_descriptors_rests_and_does_not_keep_the_loop_awake(supervisor: Supervisor) -> None:
    sock = supervisor.connect()
    sock.sendall(b"GET /liveness HTTP/1.1\r\n\r\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        supervisor.turn()
        ready = supervisor.selector.select(0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert ready == []
    supervisor.clock.time += ACCEPT_PAUSE_SECONDS
    assert b"200 OK" in supervisor.receive(sock)
