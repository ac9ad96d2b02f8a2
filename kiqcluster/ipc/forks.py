"""Forks: processes that jobs, handlers and libraries fork, and what these must not do.

Such a process starts as a copy of the whole worker: with its signal handlers, its sockets, its identity in Redis and
its place in the loop that runs jobs.
1. install          before each fork, output is flushed and signals are blocked.  In the child, the worker's descriptors
                    are closed and its handlers removed before a signal arrives.  hold_forks: no fork during a block.
                    C code may fork without notice to Python: then the kernel zeroes a page (Forks.page)
2. exit_if_forked   called where the application's code returns to ours: a child ends there, since none of our code may
                    run in it.  exit_forked_children: the same for a `with` block

3. ForkLock         a lock of a client: free in a child, in every process

Where the application ends the child itself (os._exit, exec, multiprocessing), only the first applies.  The supervisor
forks before `install`: neither applies to its own children.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

from kiqcluster.ipc.exits import exit_process_after
from kiqcluster.ipc.stdio import flush_output

__all__ = [
    "ForkLock",
    "Forks",
    "call_after_fork",
    "exit_forked_children",
    "exit_if_forked",
    "exit_if_other_process",
    "hold_forks",
    "install",
]

AfterFork = Callable[[], object]
MADV_WIPEONFORK = 18  # see madvise(2); Python has no name for it
MAX_HOLD_SECONDS = 1.0  # a fork waits so long for connections that are being made, and these for a fork


class Forks:
    """The state of forks in this process; a fork copies it.

    generation: forks between the process that called `install` and this one; compared instead of the pid, which costs a
    system call.  page: its first byte is 0 in a process that C code forked without notice to Python (Linux; elsewhere
    it stays 1).  after_fork: functions that a child calls first.  masks: thread → its signal mask before its fork.
    """

    generation = 0
    page: bytearray | mmap.mmap = bytearray(b"\1")
    is_installed = False
    after_fork: list[AfterFork] = []
    masks: dict[int, set[signal.Signals | int]] = {}
    changed = threading.Condition()  # guards the next two
    underway = 0  # forks
    holders = 0  # threads that hold forks back


class ForkLock:
    """A lock that is free in a forked child, which does not have the thread that held it.

    For state of clients, which any process of the application may fork; the state has to be whole after each of its
    changes, or belong to the pid that has made it.
    """

    _all: ClassVar[WeakSet[ForkLock]] = WeakSet()

    def __init__(self) -> None:
        if not ForkLock._all and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=ForkLock._renew_all)
        ForkLock._all.add(self)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @classmethod
    def _renew_all(cls) -> None:
        for each in list(cls._all):
            each._lock = threading.Lock()


def install() -> None:
    """Handle every fork from now on, in this process and in those that it forks."""
    if not Forks.is_installed:
        Forks.is_installed = True
        if not hasattr(os, "fork"):  # Windows, where kiqcluster.testing runs jobs too
            return
        Forks.page = _page()
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
    Forks.page[0] = 1  # a process that calls this runs jobs, however it was forked


def _page() -> bytearray | mmap.mmap:
    """Return memory that a fork zeroes in the child; plain memory where the kernel cannot do that (before 4.14)."""
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(MADV_WIPEONFORK)
        except OSError:
            page.close()
        else:
            return page
    return bytearray(b"\1")


def call_after_fork(after_fork: AfterFork) -> None:
    """Have each forked child call this first: it closes descriptors of the worker, and never blocks."""
    Forks.after_fork.append(after_fork)


def exit_if_forked(generation: int, error: BaseException | None = None) -> None:
    """End this process if it was forked after Forks.generation had this value: a child has returned to our code.

    error: the exception that it raised.  It ends as a program of its own would.
    """
    if Forks.generation != generation or not Forks.page[0]:
        exit_process_after(error)


@contextmanager
def exit_forked_children() -> Iterator[None]:
    """Run code of the application in a `with` block: a child that it forks ends where it leaves the block."""
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        exit_if_other_process(pid, error)
        raise
    exit_if_other_process(pid)


def exit_if_other_process(pid: int, error: BaseException | None = None) -> None:
    """End this process if it has another pid, also after a fork that C code made."""
    if os.getpid() != pid:
        exit_process_after(error)


@contextmanager
def hold_forks() -> Iterator[None]:
    """Let no thread of a worker fork during a `with` block, unless it has waited for MAX_HOLD_SECONDS."""
    if not Forks.is_installed:
        yield
        return
    with Forks.changed:
        Forks.changed.wait_for(lambda: not Forks.underway, MAX_HOLD_SECONDS)
        Forks.holders += 1
    try:
        yield
    finally:
        with Forks.changed:
            Forks.holders -= 1
            Forks.changed.notify_all()


def _before() -> None:
    flush_output()  # otherwise the child prints it again
    with Forks.changed:
        Forks.changed.wait_for(lambda: not Forks.holders, MAX_HOLD_SECONDS)
        Forks.underway += 1
    # Until its handlers are removed, the child would take a signal for one of the worker's.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    Forks.masks[threading.get_ident()] = before


def _after() -> None:
    _release_signals()
    with Forks.changed:
        Forks.underway -= 1
        Forks.changed.notify_all()


def _release_signals() -> None:
    before = Forks.masks.pop(threading.get_ident(), None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_child() -> None:
    Forks.generation += 1
    Forks.page[0] = 1
    Forks.changed, Forks.underway, Forks.holders = threading.Condition(), 0, 0  # the other threads are not here
    try:
        for after_fork in Forks.after_fork:
            _try(after_fork)
    finally:
        _release_signals()
        Forks.masks.clear()


def _try(after_fork: AfterFork) -> None:
    try:
        after_fork()
    except OSError:  # it was closed already
        return
