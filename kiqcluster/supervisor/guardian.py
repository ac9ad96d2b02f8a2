"""Guardian: the process that runs the server of --embedded, and outlives the workers.

It locks the folder (a second supervisor's guardian waits for it), starts the server in a process group of its
own, starts it again if it dies, and stops it when the last holder of its pipe is gone: the supervisor and
every worker hold the write end, so the server is there until the last outcome is settled.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from kiqcluster.errors import ExitCode
from kiqcluster.store import embedded
from kiqcluster.supervisor.fork import die_with_parent, fork

__all__ = ["Guardian"]

LOCK_POLL = 0.1  # seconds between tries to lock the folder, or looks at the server
RESTART_PAUSE = 1.0  # seconds before a server that died is started again
LAST_WORDS = 10.0  # seconds that the server gets to write its data at the end


class Guardian:
    """The supervisor's side: the pipe and the pid.  forget: closes in the guardian what is the supervisor's."""

    def __init__(self, address: str, forget: Callable[[], None]) -> None:
        self.directory = embedded.directory_of(address)
        self._program = embedded.find_server()
        embedded.socket_path(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._forget = forget
        self._reader, self._writer = os.pipe()  # the write end is inherited by workers, on purpose
        self.pid = 0

    def start(self) -> None:
        """Fork the guardian; also after its death.  Raises OSError."""

        def run() -> int:
            os.close(self._writer)
            return guard(self._program, self.directory, self._reader)

        self.pid = fork(run, self._forget, "guardian")

    def release(self) -> None:
        """Let go of the pipe: the server stops once the workers have, too."""
        self.forget_reader()
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def forget_reader(self) -> None:
        """Close the read end, in a worker: what it holds is the write end."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


def guard(program: str, directory: Path, pipe: int) -> int:
    """Run the server until the pipe reaches EOF.  Runs in the guardian process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # it ends with the pipe, and with nothing else
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(lock, True)  # the server holds it too: a new guardian waits for an orphaned server
    if not _lock(lock, pipe):
        return ExitCode.STOPPED
    while not _is_over(pipe, 0):
        server = _start(program, directory, lock)
        while server.poll() is None and not _is_over(pipe, LOCK_POLL):
            continue
        _stop(server)
        _is_over(pipe, RESTART_PAUSE)
    return ExitCode.STOPPED


def _lock(lock: int, pipe: int) -> bool:
    """Lock the folder; return False when nobody waits for that any more."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _is_over(pipe, LOCK_POLL):
                return False
        else:
            return True


def _start(program: str, directory: Path, lock: int) -> subprocess.Popen[bytes]:
    command = embedded.server_command(program, directory)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(lock,), process_group=0,
        preexec_fn=_before_exec,  # this process has one thread
    )  # fmt: skip


def _before_exec() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(signal.SIGTERM)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(LAST_WORDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _is_over(pipe: int, seconds: float) -> bool:
    """Return whether every holder of the pipe's write end is gone, waiting for that a little."""
    readable, _, _ = select.select([pipe], [], [], seconds)
    return bool(readable)
