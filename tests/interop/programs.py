"""Ruby programs beside the tests: real Sidekiq 6.4 processes that answer a JSON line per JSON line."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import TIMEOUT_SECONDS, RedisServer

__all__ = ["RubyClient", "RubyProgram", "RubyServer", "exact", "running_server"]

FOLDER = Path(__file__).resolve().parent / "ruby"


class RubyError(Exception):
    """What the Ruby program raised."""


class RubyProgram:
    """One of the programs in `ruby/`; it boots once and answers until it is closed."""

    def __init__(self, program: str, redis_url: str) -> None:
        self._process = subprocess.Popen(
            ["ruby", str(FOLDER / program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "REDIS_URL": redis_url, "LANG": "C.UTF-8"},
        )
        self.version = self._answer()

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the program's answer; raise RubyError for what it raised."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)[0]:
            pytest.fail("the Ruby program does not answer")
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the Ruby program ended with {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RubyError(reply["error"] + "\n" + "\n".join(reply["backtrace"]))
        return reply["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class RubyClient:
    """A Ruby application that enqueues Echo jobs: `ruby_client("perform_in", 5, "x", set={"queue": "low"})`."""

    def __init__(self, program: RubyProgram) -> None:
        self._program = program

    def __call__(self, verb: str, *arguments: Any, **more: Any) -> Any:
        """Call one of the verbs of the job class, and return what it returned."""
        return self.of("Echo", verb, *arguments, **more)

    def of(self, name: str, verb: str, *arguments: Any, **more: Any) -> Any:
        """The same for another of its classes: Hold or Acme::Fragile."""
        return self._program.ask({"class": name, "verb": verb, "arguments": arguments, **more})

    def push(self, item: dict[str, Any]) -> Any:
        """Push a payload as it is, and return its jid."""
        return self._program.ask({"push": item})

    def push_bulk(self, item: dict[str, Any]) -> list[str]:
        """Push a payload for each list in its `args`, and return their jids."""
        jids: list[str] = self._program.ask({"push_bulk": item})
        return jids


class RubyServer:
    """A real Sidekiq server process; by default with the jobs of `ruby/server.rb`, on the queue `ruby`."""

    def __init__(
        self,
        redis_url: str,
        application: Path = FOLDER / "server.rb",
        *,
        queue: str = "ruby",
        threads: int = 3,
        timeout: int = 8,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """queue: one, or several with commas.  timeout: seconds that running jobs get when it stops."""
        start = "require 'sidekiq/cli'; cli = Sidekiq::CLI.instance; cli.parse; cli.run"
        queues = [word for name in queue.split(",") for word in ("-q", name)]
        options = ["-r", str(application), "-c", str(threads), "-t", str(timeout), "-e", "test", *queues]
        self._process = subprocess.Popen(
            ["ruby", "-e", start, "--", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "REDIS_URL": redis_url, "LANG": "C.UTF-8", **(environ or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Have it stop as a deploy does, by TERM; return its exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        try:
            return self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail("the Ruby server does not end")

    def close(self) -> None:
        """End it at once: a polite end waits for its blocking pops, and nothing of it is needed any more."""
        self._process.kill()
        self._process.wait()


@contextmanager
def running_server(redis: RedisServer, application: str = "server.rb") -> Iterator[RubyServer]:
    """A Sidekiq server on the queue `ruby`; what it leaves in Redis is gone afterwards.

    application: a file of `ruby/`.
    """
    server = RubyServer(redis.url, FOLDER / application)
    yield server
    server.close()
    redis.store().call("FLUSHALL")


def exact(value: Any) -> str:
    """Return a text that differs wherever values do: 1 from 1.0 and true, -0.0 from 0.0, the order of keys."""
    return json.dumps(value)
