"""Threads: the stacks of a process as pages show them: by thread, those that run jobs first, without our frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiqcluster.control.stacks import Stacks

__all__ = ["ShownStacks", "ShownThread", "shown_stacks"]

HEAD = "--- "  # before the name of a thread
OWN_FRAMES = "/kiqcluster/worker/run/"  # in the path of a frame below that of a job
FRAME = "  File "


@dataclass(frozen=True, slots=True)
class ShownThread:
    """head: its name, and what it is at.  left_out: how many frames, of ours, lead to those that are shown."""

    head: str
    text: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ShownStacks:
    """busy: the threads that run jobs.  idle: the others.  rest: a text that has no threads, of a handler in C."""

    at: float
    is_own: bool
    busy: Sequence[ShownThread]
    idle: Sequence[ShownThread]
    rest: str = ""


def shown_stacks(told: Stacks) -> ShownStacks:
    """Return the stacks as they are shown.  Pure."""
    before, *parts = f"\n{told.text}".split(f"\n{HEAD}")
    threads = [_thread(each) for each in parts]
    busy = [each for each in threads if ": " in each.head]
    idle = [each for each in threads if ": " not in each.head]
    return ShownStacks(told.at, told.is_own, busy, idle, before.strip("\n"))


def _thread(part: str) -> ShownThread:
    head, _, text = part.partition("\n")
    lines = text.splitlines()
    ours = [at for at, line in enumerate(lines) if line.startswith(FRAME) and OWN_FRAMES in line]
    after = [at for at, line in enumerate(lines) if line.startswith(FRAME) and ours and at > ours[-1]]
    if ": " not in head or not after:
        return ShownThread(head, text)
    first = after[0]
    left_out = sum(line.startswith(FRAME) for line in lines[:first])
    return ShownThread(head, "\n".join(lines[first:]), left_out)
