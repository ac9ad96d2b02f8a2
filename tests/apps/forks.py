"""Jobs that start processes in every way there is.

A child that goes on as a worker shows by what it runs next: that job's lines in the ledger have its pid.
"""

from __future__ import annotations

import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from kiqcluster import Client, current_job, job
from tests.apps.chaos import work
from tests.chaos.ledger import write

__all__ = ["WAYS", "start_processes", "work"]

MISSING = "/nonexistent/program"


def nothing() -> None:
    """What a process of multiprocessing runs; found by import, so that any start method can."""


def sleep_long() -> None:
    time.sleep(600)


def child_of(then: Callable[[], object]) -> bool:
    """Fork; in the child do that and return True, in the parent wait for its end and return False."""
    pid = os.fork()
    if pid == 0:
        then()
        return True
    os.waitpid(pid, 0)
    return False


def fork_and_raise() -> None:
    if child_of(nothing):
        raise ValueError("in the child")


def fork_and_exit() -> None:
    if child_of(nothing):
        sys.exit(3)


def fork_and_fail_to_exec() -> None:
    child_of(lambda: os.execv(MISSING, [MISSING]))


def fork_and_compute() -> None:
    """The child goes on by itself for a while, as a program of its own would."""
    child_of(lambda: sum(range(200_000)))


def fork_twice() -> None:
    child_of(lambda: child_of(nothing))


def fork_in_a_thread() -> None:
    thread = threading.Thread(target=child_of, args=(nothing,))
    thread.start()
    thread.join()


def become_daemon() -> None:
    """As daemon libraries do it, but for the end of the parent, which would be the worker's."""

    def detach() -> None:
        os.setsid()
        if os.fork():
            os._exit(0)

    child_of(detach)


def fork_a_terminal() -> None:
    pid, master = pty.fork()
    if pid:
        os.waitpid(pid, 0)
        os.close(master)


def run_process(method: str) -> None:
    process = get_context(method).Process(target=nothing)
    process.start()
    process.join()
    process.close()


def terminate_process(method: str) -> None:
    """Fails unless the signal ends the process, and no other."""
    process = get_context(method).Process(target=sleep_long)
    process.start()
    process.terminate()
    process.join(60)
    if process.exitcode != -signal.SIGTERM:
        raise RuntimeError(f"terminate left it with {process.exitcode}")


def use_pool(method: str) -> None:
    with get_context(method).Pool(2) as pool:  # its end terminates the processes
        pool.map(abs, range(10))


def give_up_pool() -> None:
    pool = multiprocessing.get_context("fork").Pool(2)
    pending = pool.map_async(time.sleep, [600, 600])
    try:
        pending.get(0.1)
    except multiprocessing.TimeoutError:
        pool.terminate()
        pool.join()


def use_executor() -> None:
    with ProcessPoolExecutor(2, get_context("fork")) as executor:
        list(executor.map(abs, range(10)))


def run_program(**options: object) -> None:
    subprocess.run([sys.executable, "-Sc", ""], check=True, **options)  # type: ignore[call-overload]


def fail_in_preexec() -> None:
    try:
        run_program(preexec_fn=sys.exit)
    except (subprocess.SubprocessError, OSError):
        return


def push_from_child() -> None:
    """The child enqueues with the application's own client; its connection has to be another one."""

    def push() -> None:
        running = current_job()
        assert running is not None
        Client().push({"class": "Work", "args": [0], "jid": f"by-{running.jid}"})
        os._exit(0)

    child_of(push)


WAYS: dict[str, Callable[[], object]] = {
    "return": lambda: child_of(nothing),
    "raise": fork_and_raise,
    "exit": fork_and_exit,
    "_exit": lambda: child_of(lambda: os._exit(0)),
    "no exec": fork_and_fail_to_exec,
    "compute": fork_and_compute,
    "fork twice": fork_twice,
    "thread": fork_in_a_thread,
    "daemon": become_daemon,
    "terminal": fork_a_terminal,
    "process": lambda: run_process("fork"),
    "terminate": lambda: terminate_process("fork"),
    "pool": lambda: use_pool("fork"),
    "pool given up": give_up_pool,
    "executor": use_executor,
    "subprocess": run_program,
    "preexec": lambda: run_program(preexec_fn=nothing),
    "preexec fails": fail_in_preexec,
    "system": lambda: os.system("true"),
    "spawnv": lambda: os.spawnv(os.P_WAIT, "/bin/true", ["true"]),
    "spawnv fails": lambda: os.spawnv(os.P_WAIT, MISSING, ["true"]),
    "posix_spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "client": push_from_child,
    "spawn": lambda: run_process("spawn"),
    "spawn terminated": lambda: terminate_process("spawn"),
    "spawn pool": lambda: use_pool("spawn"),
    "forkserver": lambda: run_process("forkserver"),
}


@job(retry=0)
def start_processes(way: str) -> None:
    """Starts processes by one of the WAYS; is buried when that raises in the worker."""
    running, pid = current_job(), os.getpid()
    assert running is not None
    write("begin", running.jid)
    WAYS[way]()
    if os.getpid() == pid:
        write("end", running.jid)
