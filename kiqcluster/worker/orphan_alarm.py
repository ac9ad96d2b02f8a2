"""Orphan alarm: the kernel ends a worker that gives no sign of life and whose supervisor is gone.

While the supervisor lives it judges silence, and kills; a worker has this alarm for the time after that.  It needs
neither the interpreter, which a job may hold, nor anybody else.  The kernel counts two strikes (docs/adr/0014):
1. silence             a timer of the kernel, which is set anew at every tick, has run out: it sends ALARM_SIGNAL
2. supervisor's death  the kernel sends the same signal (PR_SET_PDEATHSIG)
The first one is caught, which resets the signal's action to the default one (SA_RESETHAND); the second one kills.  So a
host that stands still kills nobody: at the thaw all timers have run out, but the supervisor is there.

Where the platform lacks one of these, the alarm is the timer alone (ITIMER_REAL), and a standstill may kill.
Runs in: the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from kiqcluster.ipc.signal_pipe import catch

__all__ = ["ALARM_SIGNAL", "OrphanAlarm", "make_alarm"]

MACHINES = ("x86_64", "aarch64")  # of which the structures below are known
SPARE_SECONDS = 5.0  # after its deadline in which an orphan that stood still may go on by itself
PR_SET_PDEATHSIG, CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 1, 0
SA_RESETHAND = 0x80000000
ALARM_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 1


class Sigaction(ctypes.Structure):
    """struct sigaction, of glibc and of musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )  # fmt: skip


class Sigevent(ctypes.Structure):
    """struct sigevent."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_int * 12),
    )  # fmt: skip


class Itimerspec(ctypes.Structure):
    """struct itimerspec: seconds and nanoseconds."""

    _fields_ = (
        ("interval", ctypes.c_long), ("interval_ns", ctypes.c_long), ("value", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )  # fmt: skip


class OrphanAlarm:
    """Without the kernel's help: ends the process unless it is set anew in time."""

    def set(self, seconds: float) -> None:
        """Expect to be called again within so many seconds; 0 calls it off."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds and seconds + SPARE_SECONDS)  # the supervisor comes first

    def set_last(self, seconds: float) -> None:
        """Expect the process to end within so many seconds: its supervisor is gone."""
        self.set(seconds)


class KernelAlarm(OrphanAlarm):
    """With it, as the module says.  parent: the supervisor's pid.  Raises OSError, AttributeError where it lacks."""

    def __init__(self, parent: int) -> None:
        # Not CDLL, which lets go of the interpreter for every call: these block nowhere.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._parent = parent
        self._action = Sigaction()
        catch([ALARM_SIGNAL])  # type: ignore[list-item]  # the interpreter's own handler is one in C: it waits for nobody
        self._check(self._libc.sigaction(ALARM_SIGNAL, None, ctypes.byref(self._action)))
        self._action.flags |= SA_RESETHAND
        self._timer = ctypes.c_void_p()
        event = Sigevent(signo=ALARM_SIGNAL, notify=SIGEV_SIGNAL)
        self._check(_of_librt("timer_create")(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))
        self._settime = _of_librt("timer_settime")
        self._pardon()
        self._check(self._libc.prctl(PR_SET_PDEATHSIG, ALARM_SIGNAL, 0, 0, 0))
        if os.getppid() != parent:  # it died before the line above took hold
            os.kill(os.getpid(), ALARM_SIGNAL)

    def set(self, seconds: float) -> None:
        if os.getppid() == self._parent:  # else its death is a strike that stays
            self._pardon()
            if os.getppid() != self._parent:  # it died meanwhile, and that strike is gone
                os.kill(os.getpid(), ALARM_SIGNAL)
        self._start(seconds, 0.0)

    def set_last(self, seconds: float) -> None:
        self._start(seconds, SPARE_SECONDS)  # first: a job may take the interpreter before the next line, for ever
        self._pardon()

    def _pardon(self) -> None:
        """Have no strike against this process."""
        self._check(self._libc.sigaction(ALARM_SIGNAL, ctypes.byref(self._action), None))

    def _start(self, seconds: float, interval: float) -> None:
        spec = Itimerspec(*_timespec(interval), *_timespec(seconds))
        self._check(self._settime(self._timer, 0, ctypes.byref(spec), None))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def make_alarm(parent: int) -> OrphanAlarm:
    """Return the best alarm that this platform has.  parent: the supervisor's pid."""
    if sys.platform == "linux" and os.uname().machine in MACHINES:
        try:
            return KernelAlarm(parent)
        except (OSError, AttributeError):  # a sandbox that forbids one of the calls, or a C library without it
            signal.signal(ALARM_SIGNAL, signal.SIG_IGN)
    return OrphanAlarm()


def _of_librt(name: str) -> Callable[..., int]:
    """Return a function of the timers', which are in a library of their own before glibc 2.34."""
    libc = ctypes.PyDLL(None, use_errno=True)
    try:
        function: Callable[..., int] = getattr(libc, name)
    except AttributeError:
        function = getattr(ctypes.PyDLL("librt.so.1", use_errno=True), name)
    return function


def _timespec(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * 1e9)
