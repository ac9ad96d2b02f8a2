"""Stage: where a run takes place: a server, and for each run an empty database, a ledger, workers and a pusher.

Whatever is started here is gone when its `with` block ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks import ledger, processes
from benchmarks.ledger import Ledger
from benchmarks.peers import Peer, Shape
from benchmarks.server import Server

__all__ = ["Failed", "Pusher", "Stage", "Workers", "wait_until"]

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.01  # between two looks at what is waited for
NO_PROGRESS_SECONDS = 60.0  # without any progress after which a run has failed


class Failed(Exception):
    """A run that came to nothing; the message says why."""


class Stage:
    """A server, and a folder for all that a run writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server = Server(folder)
        self.ledger = Ledger(folder / "ledger")

    def clear(self) -> None:
        """Empty the database and the ledger."""
        self.server.redis.flushall()
        self.ledger.clear()

    def queued(self, peer: Peer) -> int:
        """Return the length of the peer's queue, a list or a stream."""
        redis = self.server.redis
        return int(redis.xlen(peer.queue) if redis.type(peer.queue) == "stream" else redis.llen(peer.queue))

    def environment(self, peer: Peer, url: str) -> dict[str, str]:
        """Return what workers and pushers find there.  A checkout named in PYTHONPATH comes before this one."""
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        addresses = {"REDIS_URL": url, "RQ_REDIS_URL": url}
        return {
            **os.environ,
            **addresses,
            "PYTHONPATH": path,
            ledger.VARIABLE: str(self.ledger.path),
            **peer.environment,
        }

    @contextmanager
    def pusher(self, peer: Peer) -> Iterator[Pusher]:
        pusher = Pusher(peer, self.environment(peer, self.server.url), self._folder)
        try:
            yield pusher
        finally:
            pusher.close()

    @contextmanager
    def workers(self, peer: Peer, shape: Shape, url: str | None = None) -> Iterator[Workers]:
        """Run workers for a `with` block.  url: the way to Redis, if it is not the direct one."""
        workers = Workers(peer, shape, self.environment(peer, url or self.server.url), self._folder)
        try:
            yield workers
        finally:
            workers.kill()

    def wait_for_lines(self, wanted: int, workers: Workers) -> None:
        """Return once the ledger has so many lines.  Raises Failed when it does not grow any more."""
        seen, since = 0, time.monotonic()
        while (lines := self.ledger.lines()) < wanted:
            if lines > seen:
                seen, since = lines, time.monotonic()
            workers.check()
            if time.monotonic() - since > NO_PROGRESS_SECONDS:
                raise Failed(
                    f"{lines} of {wanted} lines were written, then none for {NO_PROGRESS_SECONDS:g} s; {workers.tail()}"
                )
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        self.server.close()


class Workers:
    """The running workers of one peer."""

    def __init__(self, peer: Peer, shape: Shape, environment: dict[str, str], folder: Path) -> None:
        self._commands = peer.start_commands(shape)
        self._environment = environment
        self._folder = folder
        self._output = folder / "workers.log"
        self._output.write_bytes(b"")
        self.roots: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self.roots = [
                subprocess.Popen(
                    command, cwd=self._folder, env=self._environment, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )
                for command in self._commands
            ]  # fmt: skip

    def processes(self) -> list[processes.Process]:
        """Return all processes of the trees, roots first."""
        trees = [processes.tree(root) for root in self.roots]
        return [each[0] for each in trees] + [process for each in trees for process in each[1:]]

    def check(self) -> None:
        """Raises Failed when one of the roots has ended."""
        for root in self.roots:
            if root.poll() is not None:
                raise Failed(f"a worker ended with {root.returncode}; {self.tail()}")

    def tail(self) -> str:
        """Return the end of what they have printed."""
        lines = self._output.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(["their log ends:", *lines])

    def kill(self) -> None:
        processes.kill_trees(self.roots)


class Pusher:
    """A program that enqueues jobs of one peer when it is told to (pusher.py, ruby/pusher.rb).

    description: what it says of itself: version and driver.
    """

    def __init__(self, peer: Peer, environment: dict[str, str], folder: Path) -> None:
        self._log = (folder / "pusher.log").open("w+b")
        try:
            self._process = subprocess.Popen(
                peer.pusher_command(), env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._log,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise Failed(f"{error.filename} is not installed") from error
        self.description: str = self._answer()

    def push(self, job: str, *arguments: Any, count: int = 1) -> float:
        """Enqueue a job so many times, one by one; return the seconds that took."""
        seconds: float = self._ask("push", job, arguments, count)
        return seconds

    def push_bulk(self, job: str, *arguments: Any, count: int) -> float:
        """Enqueue a job so many times, by the peer's fastest way; return the seconds that took."""
        seconds: float = self._ask("push_bulk", job, arguments, count)
        return seconds

    def stamp(self) -> None:
        """Enqueue a `stamp` job that is told when its push began."""
        self._ask("stamp")

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").splitlines()
            reasons = [line for line in lines if "Error" in line]
            raise Failed(reasons[-1] if reasons else f"the pusher ended with {self._process.returncode}")
        return json.loads(line)

    def close(self) -> None:
        processes.kill_trees([self._process])
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether the condition became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
