"""Liveness: whose stacks are asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import Child, LastBeat, Responses
from kiqcluster.supervisor.cluster.liveness import DUMP_SECONDS, Liveness
from tests.kit import ManualClock, wait_until

NOW = 100.0
WAITS = "import signal, sys; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


class Asked(ThreadStacks):
    """Notes whom it asks, instead of a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def request(self, pid: int) -> None:
        self.pids.append(pid)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_that_is_stopped_is_not_asked(process: subprocess.Popen[bytes], is_stopped: bool) -> None:
    """The handler would run when it goes on, beside its threads, and reading their frames can crash it then."""
    stacks = Asked()
    child = Child(process.pid, None, 0.0, LastBeat(0.0), responses=Responses(stacks))  # type: ignore[arg-type]  # no socket
    if is_stopped:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it to be stopped")

    assert Liveness(Events(), ManualClock(NOW)).request_stacks(child) is not is_stopped
    assert stacks.pids == ([] if is_stopped else [process.pid])
    assert (child.responses.dump_due == NOW + DUMP_SECONDS) is not is_stopped
    stacks.close()
