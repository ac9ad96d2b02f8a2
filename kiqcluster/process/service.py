"""Service: a thread with a name, a stop event and a join with a deadline.  Every thread of a worker is one.

run_coroutine  runs a coroutine to its end where there is no event loop for it: `perform_inline`, and jobs of tests
beside_loops   calls a function in a thread of its own if this one runs a loop (is_in_loop)
snapshot       what is in a deque that other threads change
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

from kiqcluster.errors import as_exception
from kiqcluster.ipc.forks import exit_forked_children
from kiqcluster.ipc.thread_frames import frames_by_thread

__all__ = ["NoThread", "OnCrash", "Service", "beside_loops", "is_in_loop", "run_coroutine", "snapshot", "thread_stacks"]

T = TypeVar("T")


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

    @property
    def native_id(self) -> int:
        """The number that the kernel gives the thread; 0 before its start."""
        thread = self._thread
        return 0 if thread is None else thread.native_id or 0

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

    def start_or_raise(self) -> None:
        """Start the thread as `start` does.  Raises NoThread each time that the system refuses one."""
        self.start()
        if self._thread is None:
            raise NoThread(
                "the system has no thread to give, so nothing was done; raise the limit of processes (ulimit -u)"
            )

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
            self._on_crash(self.name, as_exception(error))


def snapshot(items: deque[T]) -> list[T]:
    """Return what is in a deque that other threads change meanwhile.

    With the interpreter lock `list` is one step.  Without it, it raises if the deque changes: then it is tried again,
    which succeeds once nothing comes in for some microseconds.
    """
    while True:
        try:
            return list(items)
        except RuntimeError:
            continue


def thread_stacks(doings: Mapping[str, str] | None = None) -> str:
    """Return the stack of every thread of this process; those that do something come first.

    doings: what threads are at, in words, by their names.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks, doings = [], doings or {}
    for ident, frame in frames_by_thread().items():
        lines = "".join(traceback.format_stack(frame)).rstrip()
        name = str(names.get(ident, ident))
        doing = f": {doings[name]}" if name in doings else ""
        stacks.append((name not in doings, f"--- {name}{doing}\n{lines}"))
    return "\n".join(text for _, text in sorted(stacks, key=lambda each: each[0]))


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own; return what it returns.  It sees the caller's context variables."""
    raised: list[BaseException] = []

    async def run() -> T | None:
        try:
            return await coroutine
        except asyncio.CancelledError:  # Ctrl-C, for one; asyncio.run raises a KeyboardInterrupt for it
            raise
        except BaseException as error:  # noqa: BLE001  # raised again below
            # asyncio asks an error for its class, which may be code: if that raises, the loop never ends.
            raised.append(error)
            return None

    returned = beside_loops(lambda: asyncio.run(run()))
    if raised:
        raise raised.pop()
    return cast("T", returned)


def beside_loops(run: Callable[[], T]) -> T:
    """Call run in this thread, or in a new thread if this one runs an event loop.

    A worker's threads have no loop, and a job may call asyncio.run, which refuses to run within another.
    """
    __tracebackhide__ = True
    if not is_in_loop():
        return run()
    aside = _Aside(run)
    aside.start_or_raise()
    aside.join(threading.TIMEOUT_MAX)  # an ordinary call has no time limit either
    return aside.returned()


def is_in_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Aside(Service, Generic[T]):
    """Calls a function in a thread, with the caller's context variables."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__("jobs beside a loop", lambda _name, _error: None)
        self._function = function
        self._context = copy_context()
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned.append(self._context.run(self._function))
        except BaseException as error:  # noqa: BLE001  # raised again in the caller
            self._raised = error

    def returned(self) -> T:
        """Return the function's result, or raise its exception."""
        __tracebackhide__ = True
        if self._raised is not None:
            raise self._raised
        return self._returned[0]
