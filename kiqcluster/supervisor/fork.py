"""Fork: starts processes, sets up each child, and reaps dead ones.

Signals are blocked in the parent during the fork, and in the child until it has its own handlers.  The child leads a
process group (Ctrl-C in a terminal reaches the supervisor only), reads /dev/null, dies with its parent where the
platform supports that, and never returns: it ends by exits.exit_process.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

from kiqcluster.errors import ExitCode
from kiqcluster.ipc.exits import exit_process
from kiqcluster.ipc.operating_system import die_with_parent, name_process
from kiqcluster.ipc.stdio import flush_output
from kiqcluster.supervisor.signals import blocked, reset_in_child

__all__ = ["Reaped", "fork", "fork_with_socket", "reap", "reap_adopted"]


def fork(run: Callable[[], int], close_inherited: Callable[[], None], name: str) -> int:
    """Start a process that runs `run` and exits with what it returns; return its pid.

    close_inherited: closes in the child what is not its own.  Signals are blocked when `run` begins.
    Raises OSError when the system has no process or memory to give.  This process has one thread (invariant 1:
    Supervisor._refuse_threads).
    """
    parent = os.getpid()
    with blocked():
        flush_output()
        pid = os.fork()
        if pid == 0:
            _become_child(run, close_inherited, parent, name)
        _lead_group(pid)
    return pid


def _lead_group(pid: int) -> None:
    """Make the child lead its group, as it does itself: after this the group can be killed, whoever was first."""
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
        if os.getppid() != parent:  # it died before die_with_parent was called
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


class Reaped(NamedTuple):
    """A dead child.  status: as wait has it.  cpu: seconds that it has used, with what it has waited for."""

    status: int
    cpu: float = 0.0


def reap(pid: int) -> Reaped | None:
    """Reap a dead child and kill the rest of its group; return how it ended, None while it lives."""
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # it was reaped elsewhere; its status is lost
        return Reaped(0)
    return Reaped(status, usage.ru_utime + usage.ru_stime)


def _kill_group(pid: int) -> None:
    """Kill the processes that a dead child has started: its jobs run elsewhere from now on.

    Call it before the child is reaped: until then no other process can get its pid.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the group is empty
        return


def reap_adopted(known: set[int]) -> None:
    """As pid 1, reap orphaned processes that belong to no slot.

    known: pids of this cluster, which are left to their owners.
    """
    try:
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in known:
                return  # its owner reaps it at the next turn, and this function the others after that
            os.waitpid(found.si_pid, os.WNOHANG)
    except ChildProcessError:
        return
