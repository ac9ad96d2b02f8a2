"""Job timeouts: which worker is asked to stop or killed for a job that runs too long."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiqcluster.ipc.running_jobs import TIMED_OUT, RunningJobs
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.job_timeouts import JobTimeouts, cpu_by_thread
from kiqcluster.supervisor.cluster.liveness import UNRESPONSIVE_SECONDS
from kiqcluster.supervisor.cluster.slots import Slot
from tests.kit import ManualClock, wait_until

SLOT = cast(Slot, SimpleNamespace(number=0))


class Table:
    """One worker with two threads, and what was done to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sent: list[tuple[str, Any]] = []
        self.done: list[str] = []
        channel = SimpleNamespace(send=lambda kind, **fields: self.sent.append((kind, fields)))
        self.child = Child(7, cast(Any, channel), 0.0, LastBeat(0.0), running_jobs=RunningJobs(3))
        self.events: list[str] = []
        events = Events()
        events.listen(lambda event, _: self.events.append(event))
        self.rates: list[float] | None = []  # of each thread, CPU seconds a second; None: the process is stopped
        self._totals: dict[int, float] = {}
        self.timeouts = JobTimeouts(Config, self._stop, self._kill, events, self.clock, self._used)

    def _used(self, pid: int) -> dict[int, float] | None:
        assert pid == self.child.pid
        return None if self.rates is None else dict(self._totals)

    def _stop(self, child: Child, seconds: float, reason: str) -> None:
        child.ending.stop_deadline, child.ending.stop_reason = self.clock.monotonic() + seconds, reason
        self.done.append("stop")

    def _kill(self, child: Child, _text: str, reason: str) -> None:
        child.ending.kill_reason = reason
        self.done.append("kill")

    def begin(self, token: str, limit: float | None, processor: int = 0) -> None:
        self.child.running_jobs.start(processor, token, b'{"class":"slow","jid":"j"}')
        if limit is not None:
            self.child.running_jobs.limit(processor, token, limit)

    def look(self, after: float = 0.0, *, is_silent: bool = False) -> list[str]:
        """Let time go by, and look; return what was done since the last look."""
        self.clock.time += after
        for thread, rate in enumerate(self.rates or ()):
            self._totals[thread] = self._totals.get(thread, 0.0) + rate * after
        if not is_silent:
            self.child.responses.last_frame_at = self.clock.monotonic()
        self.done.clear()
        self.timeouts.check([(SLOT, self.child)])
        return list(self.done)


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table()
    yield table
    table.child.close()


def test_a_worker_is_asked_to_stop_once_and_told_which_job_it_is(table: Table) -> None:
    table.begin("a", 10.0)
    table.begin("b", None, processor=1)

    assert [table.look(), table.look(9.9), table.look(0.2), table.look(1.0)] == [[], [], ["stop"], []]
    assert table.sent == [("timed_out", {"tokens": ("a",)})]
    assert table.events == ["job_timed_out"]
    assert table.child.ending.stop_reason == "job_timeout"


def test_a_second_overdue_job_is_told_as_well(table: Table) -> None:
    table.begin("a", 10.0)
    table.begin("b", 12.0, processor=1)
    table.look()

    assert [table.look(11), table.look(2)] == [["stop"], []]
    assert [fields["tokens"] for _, fields in table.sent] == [("a",), ("a", "b")]


def test_a_limit_counts_for_its_own_unit_only(table: Table) -> None:
    table.begin("a", 10.0)
    table.look()

    table.child.running_jobs.finish(0)
    table.begin("b", None)

    assert table.look(100) == []


def test_the_next_unit_of_a_thread_has_all_of_its_time(table: Table) -> None:
    table.begin("a", 10.0)
    table.look()
    table.look(9)
    table.child.running_jobs.finish(0)

    table.begin("b", 10.0)

    assert [table.look(2), table.look(9)] == [[], []]
    assert table.look(1) == ["stop"]


def test_a_worker_that_does_not_respond_is_killed(table: Table) -> None:
    table.begin("a", 1.0)
    table.look()

    assert table.look(1.0, is_silent=True) == ["stop"]  # it may still respond
    assert table.look(UNRESPONSIVE_SECONDS, is_silent=True) == ["kill"]
    assert table.look(10.0, is_silent=True) == []


@pytest.mark.parametrize("kill_reason", ["job_timeout", "overdue"])
def test_only_the_overdue_job_is_to_blame_for_the_end(table: Table, kill_reason: str) -> None:
    table.begin("a", 1.0)
    table.begin("b", None, processor=1)
    table.child.ending.timed_out = ("a",)
    table.child.ending.kill_reason = kill_reason

    assert table.child.suspects(table.child.running_jobs.jobs()) == (f"a{TIMED_OUT}",)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_death_that_has_another_reason_makes_all_suspects(table: Table, is_killed: bool) -> None:
    table.begin("b", None, processor=1)
    table.child.ending.timed_out = ("a",)
    if is_killed:
        table.child.ending.kill_reason = "job_timeout"  # a has ended meanwhile, and b hangs
        table.child.ending.holders = frozenset({"b"})
    else:
        table.begin("a", 1.0)

    assert set(table.child.suspects(table.child.running_jobs.jobs())) == ({"b"} if is_killed else {"a", "b"})


class TestHolders:
    """A worker that cannot react: one of its jobs holds the interpreter, and nobody says which."""

    @pytest.mark.parametrize(
        ("used", "suspects"),
        [
            ((0.0, 0.01, 0.01), ["b", "c"]),  # nobody calculates: one may wait for a lock of its own
            ((1.0, 0.01, 0.01), []),  # the overdue one calculates, the others wait for the interpreter
            ((0.0, 1.0, 0.01), ["b"]),  # another one does: it would come back without a count for ever
            ((1.0, 0.01, 1.0), ["c"]),
            ((0.2, 0.06, 0.01), []),  # on a crowded host
            ((0.01, 0.02, 0.0), ["b", "c"]),
            ((), ["b", "c"]),  # the system does not tell
            (None, []),  # the process is stopped, by SIGSTOP or a debugger
        ],
    )
    def test_who_uses_the_processor_is_a_suspect_and_all_are_if_nobody_does(
        self, table: Table, used: tuple[float, ...] | None, suspects: list[str]
    ) -> None:
        self.hang(table, used)

        assert table.look(UNRESPONSIVE_SECONDS, is_silent=True) == ["kill"]

        found = table.child.suspects(table.child.running_jobs.jobs())
        assert found == (f"a{TIMED_OUT}", *suspects)

    def test_an_overdue_job_that_has_ended_since_says_nothing_about_the_others(self, table: Table) -> None:
        self.hang(table, (0.0, 1.0, 0.01))
        table.look(UNRESPONSIVE_SECONDS, is_silent=True)

        table.child.running_jobs.finish(0)

        assert table.child.suspects(table.child.running_jobs.jobs()) == ("b",)

    def test_two_looks_are_needed(self, table: Table) -> None:
        """The first one may find an overdue job in a worker that has been silent for long."""
        table.begin("a", 10.0)
        table.look()

        assert table.look(UNRESPONSIVE_SECONDS + 10, is_silent=True) == ["stop"]
        assert table.look(1.0, is_silent=True) == ["kill"]

    def test_only_what_was_used_since_the_last_frame_counts(self, table: Table) -> None:
        self.hang(table, (9.0, 0.01, 0.01))
        table.look(1.0)
        table.look(1.0, is_silent=True)
        table.rates = [0.0, 0.0, 1.0]

        table.look(UNRESPONSIVE_SECONDS, is_silent=True)

        assert table.child.ending.holders == {"c"}

    @staticmethod
    def hang(table: Table, used: tuple[float, ...] | None) -> None:
        """Have an overdue job and two others run, and nothing happen any more.  used: CPU seconds a second of each."""
        for processor, (token, limit) in enumerate((("a", 1.0), ("b", None), ("c", None))):
            table.begin(token, limit, processor)
            table.child.running_jobs.thread(processor, processor)
        table.rates = None if used is None else list(used)
        table.look()
        table.look(1.0, is_silent=True)


def test_the_threads_of_a_process_are_told_apart() -> None:
    numbers: list[int] = []
    ready, end = threading.Event(), threading.Event()

    def calculate() -> None:
        numbers.append(threading.get_native_id())
        while not end.is_set():
            ready.set()

    thread = threading.Thread(target=calculate)
    thread.start()
    ready.wait()
    before = cpu_by_thread(os.getpid())
    assert before is not None
    wait_until(
        lambda: (cpu_by_thread(os.getpid()) or {})[numbers[0]] > before[numbers[0]] + 0.05, "CPU time to be used"
    )
    end.set()
    thread.join()
    assert cpu_by_thread(2**22 + 1) == {}


def test_a_worker_that_left_for_it_but_could_not_say_so_to_redis_leaves_a_failed_job(table: Table) -> None:
    """It has put nothing back; the records of its other jobs are cleared, since they did no harm."""
    table.begin("a", 1.0)
    table.child.ending.timed_out, table.child.ending.stop_reason = ("a",), "job_timeout"

    assert table.child.suspects(table.child.running_jobs.jobs()) == (f"a{TIMED_OUT}",)


def test_a_process_that_is_stopped_holds_no_interpreter() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: cpu_by_thread(process.pid) is None, "it to be stopped")
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: cpu_by_thread(process.pid) == {process.pid: 0.0}, "it to go on")
    finally:
        process.kill()
        process.wait()
