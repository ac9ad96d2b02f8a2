"""Fork: where processes come from, what a child does before anything else, and how the dead are reaped.

In the parent signals are blocked around the fork; in the child they stay blocked until it has handlers of its own.
The child leads a process group (a terminal's Ctrl-C reaches the supervisor only), reads /dev/null, dies with
its parent where the platform can arrange that, and never returns: it leaves through runtime.exit_process.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from kiqcluster.errors import ExitCode
from kiqcluster.ipc.stdio import flush_output
from kiqcluster.process.runtime import exit_process
from kiqcluster.supervisor.signals import blocked, reset_in_child

__all__ = ["Reaped", "die_with_parent", "fork", "fork_with_socket", "name_process", "reap", "reap_adopted"]

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LIBC = ctypes.CDLL(None)  # opened before any fork, so that children share it


def fork(run: Callable[[], int], close_inherited: Callable[[], None], name: str) -> int:
    """Start a process that runs `run` and exits with what it returns; return its pid.

    close_inherited: closes in the child what is not its own.  Signals are blocked when `run` begins.
    Raises OSError when the system has no process or memory to give.
    """
    assert threading.active_count() == 1, "fork needs a process with one thread (invariant 1)"
    parent = os.getpid()
    with blocked():
        flush_output()
        pid = os.fork()
        if pid == 0:
            _become_child(run, close_inherited, parent, name)
        _lead_group(pid)
    return pid


def _lead_group(pid: int) -> None:
    """Make the child lead its group, as it does itself: whoever is first, the group can be killed from here on."""
    try:
        os.setpgid(pid, pid)
    except OSError:  # it has died already
        return


def fork_with_socket(
    run: Callable[[socket.socket], int], close_inherited: Callable[[], None], name: str
) -> tuple[int, socket.socket]:
    """Start a process that holds one end of a socketpair; return its pid and our end.  Raises OSError."""
    ours, theirs = socket.socketpair()

    def run_with_their_end() -> int:
        ours.close()
        return run(theirs)

    try:
        return fork(run_with_their_end, close_inherited, name), ours
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


def _become_child(run: Callable[[], int], close_inherited: Callable[[], None], parent: int, name: str) -> None:
    code: int = ExitCode.UNEXPECTED
    try:
        os.setpgid(0, 0)
        die_with_parent(signal.SIGTERM)
        name_process(f"kiq {name}")
        if os.getppid() != parent:  # it died before the line above took hold
            exit_process(ExitCode.UNEXPECTED)
        reset_in_child()
        close_inherited()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        random.seed()
        code = run()
    except BaseException:  # noqa: BLE001  # the top of a process: whatever it was, the parent's code must not go on in here
        sys.stderr.write(f"{name} (pid {os.getpid()}):\n{traceback.format_exc()}")
    finally:  # also when these words cannot be written
        exit_process(code)


def die_with_parent(number: int) -> None:
    """Ask the kernel for a signal when the parent dies.  Linux only; elsewhere EOF on the socketpair has to do."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def name_process(name: str) -> None:
    """Have `ps -o comm`, top and the kernel's own messages tell this process from the others.  Linux only.

    The name has 15 bytes.  The command line stays that of the supervisor.
    """
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


class Reaped(NamedTuple):
    """A dead child.  status: as wait has it.  cpu: seconds that it has used, with what it has waited for."""

    status: int
    cpu: float = 0.0


def reap(pid: int) -> Reaped | None:
    """Take leave of a dead child and of all that it has left in its group; return how it ended, None while it lives."""
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # somebody else reaped it; how it ended is not known
        return Reaped(0)
    return Reaped(status, usage.ru_utime + usage.ru_stime)


def _kill_group(pid: int) -> None:
    """Kill what a dead child has started: its jobs run elsewhere from here on.

    Called before it is reaped: until then nobody else can have its number.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left
        return


def reap_adopted(known: set[int]) -> None:
    """As pid 1, reap processes whose parents have died; they are no slots.

    Looks before it reaps: how a child of ours ended must reach its slot.
    """
    try:
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in known:
                return  # it is reaped at the next turn, and the others after it
            os.waitpid(found.si_pid, os.WNOHANG)
    except ChildProcessError:
        return
