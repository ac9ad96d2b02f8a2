"""Jobs for chaos tests.  When they begin and when they end is written to the ledger (tests/chaos/ledger.py)."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from kiqcluster import job
from tests.chaos.ledger import VARIABLE, noted


@job(name="Work")  # as Ruby names it: tests/chaos/server.rb has the same
def work(milliseconds: float, *ballast: str) -> None:
    """Takes its time as most jobs do, waiting for somebody else.  ballast: to make the payload heavy."""
    with noted():
        time.sleep(milliseconds / 1_000)


@job()
def hold(gate: str) -> None:
    """Runs until the test opens a gate (`Ledger.open_gate`), whatever the process wants."""
    with noted():
        wait_at(gate)


@job(retry=3, retry_in=lambda *_: 3_600)
def hold_and_fail(gate: str, *ballast: str) -> None:
    """The same, and fails at its end; it is not tried again while the test lasts."""
    hold(gate)
    raise ValueError(f"broken behind {gate}")


def wait_at(gate: str) -> None:
    while not (Path(os.environ[VARIABLE]).parent / gate).exists():
        time.sleep(0.005)


@job()
def kill(way: str, milliseconds: float = 0) -> None:
    """Ends its process, by the way that it is told."""
    with noted():
        time.sleep(milliseconds / 1_000)
        if way == "exit":
            os._exit(7)
        if way == "segfault":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel ends a process that has taken too much memory


@job(name="Acme::Fragile")  # with the next one: whom tests/interop/bad_input.py has in mind
def fragile(*args: object) -> None:
    raise ValueError("broken")


@job(retry=5)
def strict(word: str, number: int) -> None:
    """Takes two arguments, and no others."""
