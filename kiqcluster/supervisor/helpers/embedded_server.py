"""EmbeddedServer: the server of --embedded, and the guardian process that runs it and outlives the workers.

The guardian locks the folder (a second supervisor's guardian waits for the lock), starts the server in its own process
group, and starts it again if it dies.  The supervisor and every worker, and no other process, hold the write end of a
pipe.  When the last of them has closed it, the guardian stops the server: so the server is there until the last outcome
is settled.  Guardian and server are started again like workers that never became ready: after 1, 2, 4 … 30 s.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.ipc.operating_system import die_with_parent
from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.store import embedded
from kiqcluster.supervisor.cluster.child import Death
from kiqcluster.supervisor.cluster.respawn import HEALTHY_SECONDS, History, after_death
from kiqcluster.supervisor.fork import fork, reap

__all__ = ["EmbeddedServer"]

POLL_SECONDS = 0.1  # between two tries to lock the folder, or two checks of the server
SHUTDOWN_SECONDS = 10.0  # for the server to write its data at the end, without standstills of the host


class RestartBackoff:
    """When a process that keeps dying is started next."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._history = History()
        self._began = 0.0

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._history.not_before

    def begin(self) -> None:
        """Record a start."""
        self._began = self._clock.monotonic()

    def end(self) -> float:
        """Record a death; return the seconds until the next start."""
        now = self._clock.monotonic()
        lived = now - self._began
        self._history = after_death(
            self._history,
            ready_for=lived if lived >= HEALTHY_SECONDS else None,
            code=None,
            now=now,
            burst=1,
            rng=self._rng,
        )
        return max(0.0, self._history.not_before - now)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What the guardian runs, and where it reports."""

    program: str
    directory: Path
    events: Events
    backoff: RestartBackoff  # of the server

    def report(self, event: str, reason: object, seconds: float = 0.0) -> None:
        self.events.emit(event, reason=reason, seconds=seconds, log=self.directory / "redis.log")


class EmbeddedServer:
    """The supervisor's side: the pipe and the pid.

    close_inherited: closes the supervisor's descriptors in the guardian.

    Raises UsageError when there is no server program, or the folder cannot be used.
    """

    def __init__(
        self, address: str, close_inherited: Callable[[], None], events: Events, clock: Clock, rng: Random
    ) -> None:
        self.directory = embedded.directory_of(address)
        self._spec = ServerSpec(embedded.find_server(), self.directory, events, RestartBackoff(clock, rng))
        self._backoff = RestartBackoff(clock, rng)
        embedded.socket_path(self.directory)
        _prepare(self.directory)
        self._close_inherited = close_inherited
        self._reader, self._writer = os.pipe()  # workers hold the write end, too
        self.pid = 0

    def ensure_running(self) -> None:
        """Fork a guardian, unless there is one, or the next has to wait after a death."""
        if death := self.reap():
            self._spec.report("guardian_died", death, self._backoff.end())
        if self.pid or not self._backoff.is_due():
            return

        self._backoff.begin()
        try:
            theirs = os.dup(self._reader)  # what it is given; all that is ours is closed in it
            try:
                self.pid = fork(lambda: run_server(self._spec, theirs), self._close_inherited, "guardian")
            finally:
                os.close(theirs)
        except OSError as error:
            self._spec.report("guardian_died", f"could not be started ({error})", self._backoff.end())

    def reap(self) -> Death | None:
        """Reap a guardian that has died; return its death, None if none has died."""
        reaped = reap(self.pid) if self.pid else None
        if reaped is None:
            return None
        self.pid = 0
        return Death.of(reaped.status)

    def close_pipe(self) -> None:
        """Close the pipe: the server stops once the workers have closed it, too."""
        self.close_reader()
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close_reader(self) -> None:
        """Close the read end, in a worker, which holds the write end."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


def _prepare(directory: Path) -> None:
    """Create the folder and check that it can be used."""
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)  # its files hold the arguments of jobs
        os.close(_open_lock(directory))
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    except OSError as error:
        raise UsageError(
            f"--embedded={directory} cannot be used ({error.filename}: {error.strerror}); "
            "name a folder that you may write to, like --embedded=/tmp/kiq"
        ) from error


def _open_lock(directory: Path) -> int:
    return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def run_server(spec: ServerSpec, pipe: int) -> int:
    """Run the server until the pipe reaches EOF.  Runs in the guardian process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # only EOF on the pipe ends it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        _supervise_server(spec, pipe)
    except OSError as error:
        spec.report("embedded_failed", error)
        return ExitCode.UNEXPECTED
    return ExitCode.STOPPED


def _supervise_server(spec: ServerSpec, pipe: int) -> None:
    lock = _open_lock(spec.directory)
    os.set_inheritable(lock, True)  # the server holds it too: a new guardian waits for an orphaned server
    if not _lock(lock, pipe):
        return
    while not _wait_for_eof(pipe, 0):
        spec.backoff.begin()
        server = _start(spec, lock)
        while server.poll() is None and not _wait_for_eof(pipe, POLL_SECONDS):
            continue
        if server.returncode is not None:
            pause = spec.backoff.end()
            spec.report("embedded_died", _death(server.returncode), pause)
            _wait_for_eof(pipe, pause)
        else:
            _stop(server)


def _lock(lock: int, pipe: int) -> bool:
    """Lock the folder; return False if the pipe reached EOF before."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _wait_for_eof(pipe, POLL_SECONDS):
                return False
        else:
            return True


def _start(spec: ServerSpec, lock: int) -> subprocess.Popen[bytes]:
    command = embedded.server_command(spec.program, spec.directory)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(lock,), process_group=0,
        preexec_fn=_before_exec,  # this process has one thread
    )  # fmt: skip


def _before_exec() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(signal.SIGTERM)


def _death(returncode: int) -> Death:
    return Death(None, -returncode) if returncode < 0 else Death(returncode, None)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    for _ in range(int(SHUTDOWN_SECONDS / POLL_SECONDS)):  # a standstill of the host ends one of these waits, not all
        try:
            server.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()


def _wait_for_eof(pipe: int, seconds: float) -> bool:
    """Wait for EOF on the pipe; return whether it came: all holders of the write end are gone."""
    readable, _, _ = select.select([pipe], [], [], seconds)
    return bool(readable)
