"""A real cluster: the command `kiqcluster` with its worker processes, watched through its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from kiqcluster.process.clock import SystemClock
from kiqcluster.process.service import Service
from kiqcluster.testing.server import free_port, is_alive
from kiqcluster.testing.waiting import DEFAULT_TIMEOUT_SECONDS, NEVER_SET, POLL_SECONDS

__all__ = ["Cluster"]

LOG_TAIL_LINES = 40  # lines of the log that a failure shows
LOG_CLOSE_SECONDS = 5.0  # for the processes to close the log, after they have ended or were killed
LOG_FLAGS = ("--log-format", "json", "--log-level", "debug")
EVENT_BEGIN = '{"ts":"'  # of a line of the log
DECODER = json.JSONDecoder()
LOG_PIPE_BYTES = 1 << 20  # by which we may read late; the most that Linux gives every user


class Cluster:
    """`kiqcluster ARGUMENTS…` as a separate process, with real workers; the constructor starts it.

    arguments: of the command, such as `-r APP`, `--redis URL` and groups of queues; Cluster adds those for listening
    and logging.  environ: variables added to this process'.  cwd: its directory, ours by default.
    through: a program that runs the command.

    `events` are the events in its log so far, `{"event": name, "pid": …, …}` (docs/reference/log_events.md has the
    names), `lines` the raw log, with the output of jobs.  `port` serves /metrics and the probes.  A `with` block closes
    the cluster.
    """

    timeout_seconds: ClassVar[float] = DEFAULT_TIMEOUT_SECONDS  # of its waits; a suite may set another one
    _popen: ClassVar[type[subprocess.Popen[Any]]] = subprocess.Popen

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        through: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._gap = ""  # a line which shows that events are missing
        self._changed = threading.Condition()  # guards these
        is_told = any(word.startswith("--listen") for word in arguments)
        listen = [] if is_told else ["--listen", f"127.0.0.1:{self.port}"]
        self.process = self._popen(
            [*through, sys.executable, "-m", "kiqcluster", *arguments, *listen, *LOG_FLAGS],
            cwd=cwd, env={**os.environ, **(environ or {})}, stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        with suppress(ImportError, AttributeError, OSError):  # not on Linux, or the user has too many large pipes
            import fcntl  # Windows has none

            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, LOG_PIPE_BYTES)
        self._reader = _Reader(self)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The pid of the supervisor."""
        return self.process.pid

    def note(self, line: str) -> None:
        """Record a line of the log, and wake threads that wait for an event."""
        with self._changed:
            self.lines.append(line)
            events, is_torn = _events_in(line)
            self.events += events
            if is_torn or any(each["event"] == "lines_dropped" for each in events):
                self._gap = line
            self._changed.notify_all()

    # what has happened

    def seen(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events so far with that name and those fields.

        A job's jid, class and queue, which its events have under "ctx", count as fields as well.  Raises AssertionError
        if lines of the log were dropped or torn: then nobody knows which events there were.
        """
        __tracebackhide__ = True
        with self._changed:
            named = [each for each in self.events if each["event"] == event]
        if self._gap:
            self._fail(f"lines of the log are missing, for it was read too late: {self._gap}")
        return [each for each in named if fields.items() <= {**each.get("ctx", {}), **each}.items()]

    def wait_for(self, event: str, seconds: float | None = None, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Return the `count`-th event with that name and those fields; wait until it happens.

        Raises AssertionError with the end of the log after the deadline, or when the cluster ends without the event.
        """
        __tracebackhide__ = True
        deadline = SystemClock.monotonic() + (self.timeout_seconds if seconds is None else seconds)
        while True:
            has_ended = not self._reader.is_alive and self.process.poll() is not None  # read before the events
            found = self.seen(event, **fields)
            if len(found) >= count:
                return found[count - 1]
            left = deadline - SystemClock.monotonic()
            if left <= 0 or has_ended:
                self._fail(f"waited in vain for event {event} {fields} ({len(found)}/{count})")
            with self._changed:
                self._changed.wait(min(left, 0.1))

    def wait_done(self, jid: str | None, seconds: float | None = None) -> dict[str, Any]:
        """Wait until the job with that jid has run without an error; return its event.

        This cannot wait for a job with a log_level above info, because such a job logs no line at its end.
        """
        __tracebackhide__ = True
        if jid is None:
            raise AssertionError("there is no job to wait for: middleware has stopped the push, which returned None")
        return self.wait_for("job_done", seconds, jid=jid)

    def wait_ready(self, slots: int | None = None) -> dict[int, int]:
        """Wait until `slots` slots are ready, all by default; return slot → pid of its latest worker process."""
        __tracebackhide__ = True
        if slots is None:
            slots = self.wait_for("supervisor_started")["slots"]
        for slot in range(slots):
            self.wait_for("child_ready", slot=slot)
        return self.pids()

    def pids(self) -> dict[int, int]:
        """Return slot → pid of the worker process that became ready last."""
        return {each["slot"]: each["child"] for each in self.seen("child_ready")}

    # its end

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal (docs/reference/signals.md)."""
        self.process.send_signal(number)

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the end and the last events; return the exit code.  Raises AssertionError after the deadline."""
        __tracebackhide__ = True
        seconds = self.timeout_seconds if seconds is None else seconds
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._fail(f"the supervisor did not end within {seconds:g} s")
        if code >= 0:  # else it was killed, and its workers still write to the log
            self._reader.join(LOG_CLOSE_SECONDS)
        return code

    def stop(self) -> int:
        """Send TERM, after which running jobs may finish; return the exit code."""
        __tracebackhide__ = True
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes that still run, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        killed: set[int] = set()
        deadline = SystemClock.monotonic() + LOG_CLOSE_SECONDS
        while self._reader.is_alive and SystemClock.monotonic() < deadline:  # while a process has its output open
            for pid in self._children() - killed:
                killed.add(pid)
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            self._reader.join(POLL_SECONDS)
        # One that ends closes its output first, and its connections last: Redis might still give it the next push.
        while any(map(is_alive, self._children())) and SystemClock.monotonic() < deadline:
            NEVER_SET.wait(POLL_SECONDS)
        if not self._reader.is_alive and self.process.stdout is not None:
            self.process.stdout.close()

    def _children(self) -> set[int]:
        """Return the pids of the workers so far."""
        with self._changed:
            return {each["child"] for each in self.events if each["event"] == "child_started"}

    def _fail(self, said: str) -> NoReturn:
        __tracebackhide__ = True
        tail = "\n".join(self.lines[-LOG_TAIL_LINES:])
        raise AssertionError(f"{said}; the log ends:\n{tail}")


def _events_in(line: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the events of a line, and whether one is torn: more was written at once than the pipe has room for.

    A job may have printed text before them whose line was not at its end yet.
    """
    with suppress(ValueError):
        fields = json.loads(line)
        return [fields] if isinstance(fields, dict) and "event" in fields else [], False
    found, is_torn, at = list[dict[str, Any]](), False, line.find(EVENT_BEGIN)
    while at >= 0:
        try:
            fields, at = DECODER.raw_decode(line, at)
            found += [fields] if "event" in fields else []
        except ValueError:
            is_torn, at = True, at + 1
        at = line.find(EVENT_BEGIN, at)
    return found, is_torn or (not found and '"event":"' in line)


class _Reader(Service):
    """Passes on each line of a cluster's log, until all its processes have closed it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("log reader", lambda name, error: cluster.note(f"{name} crashed: {error!r}"))
        self._cluster = cluster

    def run(self) -> None:
        output = self._cluster.process.stdout
        assert output is not None
        for raw in output:
            self._cluster.note(raw.decode(errors="replace").rstrip())
