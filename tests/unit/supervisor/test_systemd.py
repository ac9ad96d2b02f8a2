"""Systemd: which messages it gets, and when, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from kiqcluster.ipc.frames import Channel
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, Roll, RollPhase
from kiqcluster.supervisor.systemd import (
    EXTENSION_INTERVAL_SECONDS,
    EXTENSION_SECONDS,
    RETRY_SECONDS,
    STATUS_INTERVAL_SECONDS,
    SystemdNotifier,
    status_line,
    unknown_limit,
)
from tests.kit import ManualClock

START = 1_000.0


class Manager:
    """What systemd does with its end: it reads datagrams."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[dict[str, str]]:
        """Return the assignments of each datagram since the last call."""
        messages = []
        while True:
            try:
                text = self.socket.recv(65_536).decode()
            except BlockingIOError:
                return messages
            messages.append(dict(line.split("=", 1) for line in text.split("\n")))

    def names(self) -> list[str]:
        """Return the names of the assignments, but for the status, since the last call."""
        return [name for message in self.heard() for name in message if name != "STATUS"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A service manager that listens."""
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.socket.close()


@pytest.fixture
def environ(manager: Manager) -> dict[str, str]:
    """What it gives its service."""
    return {"NOTIFY_SOCKET": manager.socket.getsockname(), "PATH": "/bin"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def state() -> Iterator[ClusterState]:
    """Four slots, with children that are ready and run three jobs each."""
    pairs = [socket.socketpair() for _ in range(4)]
    slots = []
    for number, (ours, _) in enumerate(pairs):
        slot = Slot(SlotPlan(number, parse_group("*"), {}, "random", 1))
        slot.child = Child(1, Channel(ours), START, LastBeat(START, busy=3), ready_at=START)
        slots.append(slot)
    yield ClusterState(started_at=START, slots=slots)
    for pair in pairs:
        for each in pair:
            each.close()


def ready(environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager) -> SystemdNotifier:
    """Return a notifier that has sent that, and discard the messages."""
    notifier = SystemdNotifier(environ, clock)
    notifier.report(state, True)
    clock.time += STATUS_INTERVAL_SECONDS
    manager.heard()
    return notifier


class TestReady:
    def test_nothing_is_ready_before_the_slots_are(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = SystemdNotifier(environ, clock)

        notifier.report(state, False)
        assert "READY" not in manager.names()

        notifier.report(state, True)
        assert manager.heard() == [{"READY": "1", "STATUS": "4 of 4 slots ready, 12 busy"}]

    def test_it_is_said_once_whatever_becomes_of_the_slots(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)

        for is_ready in (True, False, True):
            clock.time += 1.0
            notifier.report(state, is_ready)

        assert manager.names() == []

    def test_while_slots_boot_systemd_is_asked_for_patience(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = SystemdNotifier(environ, clock)
        asked = 0

        for _ in range(100):
            notifier.report(state, False)
            asked += manager.names().count("EXTEND_TIMEOUT_USEC")
            clock.time = max(clock.time + 0.1, notifier.next_due())

        assert asked == pytest.approx((clock.time - START) / EXTENSION_INTERVAL_SECONDS, abs=1)
        assert EXTENSION_SECONDS >= 2 * EXTENSION_INTERVAL_SECONDS  # one of them may be lost

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract addresses")
    def test_an_abstract_address_will_do(self, clock: ManualClock, state: ClusterState) -> None:
        manager = Manager(f"\0kiqcluster-test-{os.getpid()}")

        SystemdNotifier({"NOTIFY_SOCKET": f"@kiqcluster-test-{os.getpid()}"}, clock).report(state, True)

        assert manager.names() == ["READY"]
        manager.socket.close()


class TestWithoutSystemd:
    @pytest.mark.parametrize("name", [None, "", "vsock:2:9999", "relative/path"])
    def test_nothing_is_sent_and_nothing_is_due(
        self, name: str | None, clock: ManualClock, state: ClusterState
    ) -> None:
        notifier = SystemdNotifier(
            {"WATCHDOG_USEC": "2000000"} | ({} if name is None else {"NOTIFY_SOCKET": name}), clock
        )

        notifier.report(state, True)

        assert notifier.next_due() == inf

    def test_children_see_none_of_its_variables(self, environ: dict[str, str], clock: ManualClock) -> None:
        environ |= {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}

        SystemdNotifier(environ, clock)

        assert environ == {"PATH": "/bin"}

    def test_a_child_that_closes_it_sends_nothing(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = SystemdNotifier(environ, clock)
        notifier.close()
        notifier.close()

        notifier.report(state, True)

        assert manager.heard() == []
        assert notifier.next_due() == inf


class TestReload:
    def test_it_begins_with_the_time_and_ends_with_ready(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        clock.time = 1_234.5

        notifier.report(state, True, reloading=True)
        (begun, patience) = manager.heard()
        notifier.report(state, True, reloading=True)
        again = manager.heard()
        state.reloads["done"] += 1
        notifier.report(state, True)
        ended = manager.names()

        assert (begun["RELOADING"], begun["MONOTONIC_USEC"]) == ("1", "1234500000")
        assert list(patience) == ["EXTEND_TIMEOUT_USEC"]
        assert again == []
        assert ended == ["READY"]

    def test_one_that_is_over_within_a_turn_is_told_all_the_same(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)

        state.reloads["failed"] += 1
        notifier.report(state, True)
        assert manager.names() == ["RELOADING", "MONOTONIC_USEC", "READY"]

        notifier.report(state, True)
        assert manager.names() == []

    def test_a_rolling_restart_is_one_too(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)

        state.roll = Roll("a", done=1, of=4)
        notifier.report(state, True)
        begun = manager.heard()[0]
        state.roll.phase = RollPhase.FAILED
        state.rolls["failed"] += 1
        notifier.report(state, True)

        assert begun["RELOADING"] == "1"
        assert begun["STATUS"] == "4 of 4 slots ready, 12 busy, rolling restart: 1 of 4"
        assert manager.names() == ["READY"]

    def test_one_before_ready_is_part_of_the_start(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = SystemdNotifier(environ, clock)

        notifier.report(state, False, reloading=True)
        state.reloads["done"] += 1
        notifier.report(state, True)
        notifier.report(state, True)

        assert manager.names() == ["EXTEND_TIMEOUT_USEC", "READY"]


class TestStop:
    def test_it_is_said_once_with_pleas_for_time_while_jobs_are_waited_for(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        state.stop_by = clock.time + 35.0
        words, until = [], state.stop_by

        while clock.time < until + 60.0:
            notifier.report(state, False)
            words += [(word, clock.time) for word in manager.names()]
            clock.time += 1.0

        assert [word for word, _ in words].count("STOPPING") == 1
        pleas = [at for word, at in words if word == "EXTEND_TIMEOUT_USEC"]
        assert len(pleas) == 35 / EXTENSION_INTERVAL_SECONDS
        assert max(pleas) < until  # what hangs longer is systemd's to kill

    def test_nothing_is_due_at_once_when_its_time_is_over(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        state.stop_by = clock.time

        notifier.report(state, False)

        assert notifier.next_due() > clock.time

    def test_a_stop_ends_a_reload_and_no_ready_follows(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        notifier.report(state, True, reloading=True)
        manager.heard()

        state.stop_by = clock.time + 35.0
        notifier.report(state, True, reloading=True)
        state.reloads["done"] += 1
        notifier.report(state, True)

        assert manager.names() == ["STOPPING", "EXTEND_TIMEOUT_USEC"]


class TestWatchdog:
    def test_a_sign_of_life_comes_at_half_of_the_interval(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        environ |= {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = ready(environ, clock, state, manager)

        assert notifier.next_due() == START + 15.0
        notifier.report(state, True)
        assert manager.names() == []
        clock.time = START + 15.0
        notifier.report(state, True)
        assert manager.names() == ["WATCHDOG"]

    def test_there_is_none_from_a_loop_that_does_not_turn(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        ready(environ | {"WATCHDOG_USEC": "30000000"}, clock, state, manager)

        clock.time += 3_600.0

        assert manager.heard() == []

    @pytest.mark.parametrize(
        "variables",
        [
            {},
            {"WATCHDOG_USEC": "0"},
            {"WATCHDOG_USEC": "soon"},
            {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},  # it is somebody else's
        ],
    )
    def test_nobody_asks_for_one(
        self,
        variables: dict[str, str],
        environ: dict[str, str],
        clock: ManualClock,
        state: ClusterState,
        manager: Manager,
    ) -> None:
        notifier = ready(environ | variables, clock, state, manager)

        clock.time += 3_600.0
        notifier.report(state, True)

        assert "WATCHDOG" not in manager.names()
        assert notifier.next_due() == inf


class TestManagerThatDoesNotListen:
    def test_what_could_not_be_sent_is_sent_later_and_in_order(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        fill(manager)

        state.reloads["failed"] += 1
        for _ in range(3):
            notifier.report(state, True)
        manager.socket.recv(65_536)
        notifier.report(state, True)  # there is room for one word
        clock.time += RETRY_SECONDS
        heard = [message for message in manager.heard() if "X_FILL" not in message]
        notifier.report(state, True)
        heard += manager.heard()

        assert [name for message in heard for name in message if name != "STATUS"] == [
            "RELOADING",
            "MONOTONIC_USEC",
            "READY",
        ]

    def test_the_loop_is_not_kept_spinning(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ | {"WATCHDOG_USEC": "2000000"}, clock, state, manager)
        fill(manager)
        clock.time += 10.0
        state.stop_by = clock.time + 10.0

        notifier.report(state, True)

        assert notifier.next_due() == clock.time + RETRY_SECONDS

    def test_one_that_is_gone_troubles_nobody(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager, tmp_path: Path
    ) -> None:
        notifier = SystemdNotifier(environ, clock)
        (tmp_path / "notify").unlink()

        notifier.report(state, True)

        assert manager.heard() == []

    def test_an_address_that_is_too_long_troubles_nobody(self, clock: ManualClock, state: ClusterState) -> None:
        notifier = SystemdNotifier({"NOTIFY_SOCKET": f"/{'x' * 200}"}, clock)

        notifier.report(state, True)

        assert notifier.next_due() == clock.time + RETRY_SECONDS


def fill(manager: Manager) -> None:
    """Let no further word in: the queue of a datagram socket holds a few only."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            while True:
                sender.sendto(b"X_FILL=1", manager.socket.getsockname())
        except BlockingIOError:
            return


class TestStatus:
    def test_only_a_change_is_sent_and_not_at_every_turn(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = ready(environ, clock, state, manager)
        heard = 0

        for turn in range(1_000):
            assert state.slots[0].child is not None
            state.slots[0].child.beat.busy = turn
            notifier.report(state, True)
            heard += len(manager.heard())
            clock.time += 0.01

        assert heard == pytest.approx(10.0 / STATUS_INTERVAL_SECONDS, abs=1)

    def test_a_change_that_came_too_soon_is_due(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        notifier = SystemdNotifier(environ, clock)
        notifier.report(state, True)
        state.restart_needed = "version 2 is installed"
        notifier.report(state, True)
        manager.heard()

        assert notifier.next_due() == START + STATUS_INTERVAL_SECONDS
        clock.time = notifier.next_due()
        notifier.report(state, True)

        assert [message["STATUS"] for message in manager.heard()] == [status_line(state, clock.time)]
        assert notifier.next_due() == inf

    def test_it_is_one_line_whatever_users_call_things(
        self, environ: dict[str, str], clock: ManualClock, state: ClusterState, manager: Manager
    ) -> None:
        state.restart_needed = "1.2\nMAINPID=1\r\nX=\udcff \u2028"

        SystemdNotifier(environ, clock).report(state, True)

        (message,) = manager.heard()
        assert message.keys() == {"READY", "STATUS"}
        assert message["STATUS"].endswith("1.2 MAINPID=1 X=")

    def test_it_says_how_it_stands(self, state: ClusterState) -> None:
        assert status_line(state, START) == "4 of 4 slots ready, 12 busy"
        assert status_line(ClusterState(), START) == "the application is being imported"

        state.quiet.begin("kiqctl@host", 900.0, START, START)
        assert status_line(state, START + 61.0) == "4 of 4 slots ready, 12 busy, quiet for 14 min more"
        assert status_line(state, START + 890.5).endswith("quiet for 10 s more")

        state.quiet.begin("kiqctl@host", 0.0, START, START)
        assert status_line(state, START).endswith("quiet without an end")

    def test_it_says_what_is_amiss(self, state: ClusterState) -> None:
        state.slots[2].child = None
        assert status_line(state, START) == "3 of 4 slots ready, 9 busy, slot 2 is in backoff"

        child = state.slots[1].child
        assert child is not None
        child.ready_at, child.waits_for = None, "Redis is away"
        assert status_line(state, START) == "2 of 4 slots ready, 9 busy, slot 1 is in booting: Redis is away"

    def test_it_counts_what_runs_in_workers_that_are_being_replaced(self, state: ClusterState) -> None:
        old = state.slots[0].child
        assert old is not None
        state.slots[0].leaving.append(old)
        state.slots[0].child = replace(old, beat=LastBeat(START, busy=1))

        assert status_line(state, START) == "4 of 4 slots ready, 13 busy"

    def test_it_says_how_long_a_stop_may_take(self, state: ClusterState) -> None:
        state.stop_by = START + 35.0
        state.slots[0].child = None

        assert status_line(state, START + 1.5) == "stopping, at most 34 s more: 3 workers left, 9 busy"


class TestUnknownLimit:
    @pytest.mark.parametrize(
        ("environ", "limit"),
        [
            ({"NOTIFY_SOCKET": "/run/systemd/notify"}, "TimeoutStopSec"),
            ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "terminationGracePeriodSeconds"),
        ],
    )
    def test_where_something_kills_us_at_a_time_that_we_do_not_know(self, environ: dict[str, str], limit: str) -> None:
        warning = unknown_limit(0.0, environ)

        assert warning is not None
        assert limit in warning
        assert unknown_limit(45.0, environ) is None

    def test_a_shell_kills_nobody(self) -> None:
        assert unknown_limit(0.0, {"PATH": "/bin"}) is None
