"""Forks: the processes that jobs, handlers and libraries fork off, and what these must not do.

Such a child begins as a copy of the whole worker: with its signal handlers, its sockets, its identity in Redis and its
place in the loop that runs jobs.  So
1. watch            before a fork, output is flushed and signals are held back; in the child, the worker's descriptors
                    are closed and its handlers taken away before any signal arrives (held_back: no fork meanwhile)
                    C code may fork without a word to Python: the kernel wipes a page then (Forks.page)
2. end_if_forked    called where the application's code comes back to ours: a child ends there, for nothing of ours may
                    run in it (children_end_here: the same for a `with` block)

What the application ends itself (os._exit, exec, multiprocessing) meets only the first.  The supervisor's own forks are
made before `watch`, and meet neither.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kiqcluster.ipc.exits import exit_process_after
from kiqcluster.ipc.stdio import flush_output

__all__ = ["Forks", "children_end_here", "end_if_forked", "end_in_other", "held_back", "watch", "when_forked"]

LetGo = Callable[[], object]
MADV_WIPEONFORK = 18  # see madvise(2); Python has no name for it
MAX_HOLD_SECONDS = 1.0  # that a fork waits for connections that are being made, and these for a fork


class Forks:
    """What a process knows of forks; as a whole its own, for a fork copies it.

    generation: forks between the process that called `watch` and this one; compared instead of the pid, which costs a
    system call.  page: its first byte is 0 in a process that was forked off without a word to Python (Linux; elsewhere
    it stays 1).  let_go: what a child calls first.  masks: thread → its signal mask before the fork that it is in.
    """

    generation = 0
    page: bytearray | mmap.mmap = bytearray(b"\1")
    is_watched = False
    let_go: list[LetGo] = []
    masks: dict[int, set[signal.Signals | int]] = {}
    changed = threading.Condition()  # guards the next two
    underway = 0  # forks
    holders = 0  # threads that hold forks back


def watch() -> None:
    """Have Python tell of every fork from now on, in this process and those that it forks off."""
    if not Forks.is_watched:
        Forks.is_watched = True
        if not hasattr(os, "fork"):  # Windows, where the testing kit runs jobs too
            return
        Forks.page = _page()
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
    Forks.page[0] = 1  # whoever is about to run jobs is nobody's ghost, however it was forked


def _page() -> bytearray | mmap.mmap:
    """Return memory that is zeros in a forked process; plain memory where the kernel cannot do that (before 4.14)."""
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(MADV_WIPEONFORK)
        except OSError:
            page.close()
        else:
            return page
    return bytearray(b"\1")


def when_forked(let_go: LetGo) -> None:
    """Have a child call this before anything else: it closes there what is ours alone, and waits for nothing."""
    Forks.let_go.append(let_go)


def end_if_forked(generation: int, error: BaseException | None = None) -> None:
    """End this process if it was forked off since Forks.generation was this: a child has come back to our code.

    error: what it has raised.  It ends as a program of its own would.
    """
    if Forks.generation != generation or not Forks.page[0]:
        exit_process_after(error)


@contextmanager
def children_end_here() -> Iterator[None]:
    """Call code of the application in a `with` block: a child that it forks off ends where it leaves the block."""
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        end_in_other(pid, error)
        raise
    end_in_other(pid)


def end_in_other(pid: int, error: BaseException | None = None) -> None:
    """The same if this is not that process: also after a fork that Python was not told of."""
    if os.getpid() != pid:
        exit_process_after(error)


@contextmanager
def held_back() -> Iterator[None]:
    """Have no thread fork during a `with` block, unless it has waited for MAX_HOLD_SECONDS."""
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
    flush_output()  # or the child prints it again
    with Forks.changed:
        Forks.changed.wait_for(lambda: not Forks.holders, MAX_HOLD_SECONDS)
        Forks.underway += 1
    # Until the handlers are gone a signal for the child would be taken for one of ours.
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
        for let_go in Forks.let_go:
            _try(let_go)
    finally:
        _release_signals()
        Forks.masks.clear()


def _try(let_go: LetGo) -> None:
    try:
        let_go()
    except OSError:  # it was closed already
        return
