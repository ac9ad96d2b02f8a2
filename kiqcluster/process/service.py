"""Service: a thread with a name, a stop event and a join with a deadline.  Every thread of a worker is one."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping

from kiqcluster.ipc.forks import exit_forked_children

__all__ = ["NoThread", "OnCrash", "Service", "thread_stacks"]


OnCrash = Callable[[str, Exception], None]  # called with a service's name and the error that ended it


class NoThread(RuntimeError):
    """The limit of processes and threads is reached, or the address space is full."""


class Service:
    """Base of the worker's threads.

    A subclass implements `run`, which returns soon after `self.stopping` is set.  `run` waits only with
    `self.pause(seconds)`, or for something that `wake` interrupts.  start and stop may each be called twice, and in any
    order.

    on_crash: called in the dying thread with the error that `run` raised; by `start` if the system has no thread.
    """

    def __init__(self, name: str, on_crash: OnCrash) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._on_crash = on_crash
        self._thread: threading.Thread | None = None
        self._is_denied = False  # whether the system refused a thread, and on_crash was called for it
        self._lock = threading.Lock()

    def run(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Interrupt the wait of `run`; called by stop."""

    @property
    def thread_name(self) -> str:
        return f"kiq.{self.name}"

    @property
    def ident(self) -> int:
        """The thread's id; 0 before its start."""
        thread = self._thread
        return 0 if thread is None else thread.ident or 0

    def start(self) -> None:
        """Start the thread, unless it runs or was stopped; a crashed thread starts again.

        If the system refuses a thread, on_crash is called once; the caller tries again later.
        """
        refusal = None
        with self._lock:
            if not self.is_alive and not self.stopping.is_set():
                refusal = self._try_to_start()
        if refusal is not None:
            self._on_crash(self.name, NoThread(f"the system has no thread to give ({refusal})"))

    def _try_to_start(self) -> RuntimeError | None:
        """Start a thread; return why that failed, None where it did not or was told before."""
        self._thread = threading.Thread(target=self._guarded, name=self.thread_name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            was_told, self._is_denied = self._is_denied, True
            return None if was_told else error
        self._is_denied = False
        return None

    def stop(self) -> None:
        """Ask the thread to end; returns at once."""
        self.stopping.set()
        self.wake()

    def join(self, seconds: float) -> bool:
        """Wait for the end; return whether it came within the deadline."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def pause(self, seconds: float) -> bool:
        """Wait, or until stopped; return whether to go on."""
        return not self.stopping.wait(seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            with exit_forked_children():
                self.run()
        except BaseException as error:  # noqa: BLE001  # the top of a service: reported, and its owner starts another
            # Python would end a thread without a word where code of the application calls sys.exit.
            self._on_crash(self.name, error if isinstance(error, Exception) else RuntimeError(repr(error)))


def thread_stacks(doings: Mapping[str, str] | None = None) -> str:
    """Return the stack of every thread of this process.  doings: what threads are at, in words, by their names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame)).rstrip()
        name = str(names.get(ident, ident))
        doing = f": {doings[name]}" if doings and name in doings else ""
        stacks.append(f"--- {name}{doing}\n{lines}")
    return "\n".join(stacks)
