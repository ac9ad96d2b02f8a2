"""StatsD: counts and times of runs, sent by a client that the application has: Datadog's or a plain one.

Runs in: processor threads and the event loop (runs), the worker's main thread (the last flush).
1. instrument   adds the middleware outermost, and a death handler; uninstrument removes them
2. Counts       server middleware: jobs.count, jobs.success, jobs.failure, jobs.perform
3. Sender       what a client can do: tags (DogStatsD), or names with the class at the end

Names and tags are those of Sidekiq Pro, so that dashboards show a mixed fleet.
Never: imports a library of StatsD.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiqcluster.contrib.job_names import job_class
from kiqcluster.contrib.run_errors import CANCELLED, PUT_OFF, SuppressErrors
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.sidekiq.payload import Payload

__all__ = ["Counts", "instrument", "uninstrument"]

MEANT_OTHERWISE = re.compile(r"[^\w-]+")  # characters of a class that a name of StatsD cannot have: dots, colons, |, @
FLUSHES = ("flush_aggregated_metrics", "flush_buffered_metrics", "flush")  # methods of clients, by release
SUPPRESS = SuppressErrors("statsd")


def instrument(client: Any, *, prefix: str = "sidekiq.", distributions: bool = False) -> None:
    """Send counts and times of each run of this process; call it where the application declares its jobs.

    client: of datadog (`increment`, `timing` with tags), or of statsd (`incr`, `timing`).  prefix: of all names.
    distributions: whether Datadog gets jobs.perform_dist too.  Called again, it replaces what it did before.
    Raises UsageError for a client that lacks a method which this needs.
    """
    sender = _Sender(client, prefix)
    if distributions and not hasattr(client, "distribution"):
        raise UsageError(
            "distributions=True needs a client with distribution (datadog.dogstatsd.DogStatsd), "
            f"and {client!r} has none: leave the option out"
        )
    uninstrument()
    setup = current_setup()
    setup.server_middleware.prepend(Counts(sender, distributions=distributions))
    setup.death_handlers.append(sender.on_death)
    if _end not in setup.hooks.of("exit"):
        setup.hooks.on("exit")(_end)


def uninstrument() -> None:
    """Send nothing more; nothing happens where `instrument` was not called."""
    setup = current_setup()
    setup.server_middleware.discard(Counts)
    handlers = setup.death_handlers
    handlers[:] = [each for each in handlers if not isinstance(getattr(each, "__self__", None), _Sender)]


class Counts:
    """Server middleware: counts a run at its begin and its end, and sends how long it took."""

    def __init__(self, sender: _Sender, *, distributions: bool = False) -> None:
        self.sender = sender
        self._distributions = distributions
        self._monotonic = SystemClock().monotonic

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        with self._around(run):
            return proceed()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Do the same around an async job."""
        with self._around(run):
            return await proceed()

    @contextmanager
    def _around(self, run: Run) -> Iterator[None]:
        name, started = job_class(run.payload), self._monotonic()
        with SUPPRESS:
            self.sender.count("jobs.count", name, run.queue)
        kind: type[BaseException] | None = None
        try:
            yield
        except BaseException as raised:
            kind = type(raised)  # not the error, which has this frame
            raise
        finally:
            with SUPPRESS:
                self._end(name, run.queue, kind, (self._monotonic() - started) * 1_000)

    def _end(self, name: str, queue: str, kind: type[BaseException] | None, milliseconds: float) -> None:
        if kind is None:
            self.sender.count("jobs.success", name, queue)
        elif not issubclass(kind, CANCELLED + PUT_OFF):
            self.sender.count("jobs.failure", name, queue, f"error_type:{kind.__name__}")
        self.sender.time("jobs.perform", name, queue, milliseconds)
        if self._distributions:
            self.sender.distribute("jobs.perform_dist", name, queue, milliseconds)


class _Sender:
    """A client of StatsD, with or without tags."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self._prefix = prefix
        self._has_tags = hasattr(client, "increment")
        if not (self._has_tags or hasattr(client, "incr")) or not hasattr(client, "timing"):
            raise UsageError(
                f"{client!r} is no client of StatsD that is known here: give an object with timing and increment "
                "(datadog.dogstatsd.DogStatsd) or incr (statsd.StatsClient)"
            )

    def count(self, metric: str, name: str, queue: str, *tags: str) -> None:
        if self._has_tags:
            self.client.increment(self._prefix + metric, tags=_tags(name, queue, *tags))
            return
        for each in self._names(metric, name):
            self.client.incr(each)

    def time(self, metric: str, name: str, queue: str, milliseconds: float) -> None:
        if self._has_tags:
            self.client.timing(self._prefix + metric, milliseconds, tags=_tags(name, queue))
            return
        for each in self._names(metric, name):
            self.client.timing(each, milliseconds)

    def distribute(self, metric: str, name: str, queue: str, milliseconds: float) -> None:
        self.client.distribution(self._prefix + metric, milliseconds, tags=_tags(name, queue))

    def on_death(self, payload: Payload, _error: Exception) -> None:
        """Count a job that will not be tried again."""
        with SUPPRESS:
            self.count("jobs.dead", job_class(payload), str(payload.get("queue", "")))

    def _names(self, metric: str, name: str) -> tuple[str, str]:
        return self._prefix + metric, f"{self._prefix}{metric}.{MEANT_OTHERWISE.sub('_', name)}"


def _tags(name: str, queue: str, *more: str) -> list[str]:
    return [*(":".join(pair) for pair in (("worker", name), ("queue", queue))), *more]


def _end() -> None:
    """Handler of `exit`: send what a client has buffered."""
    for middleware in current_setup().server_middleware:
        client = middleware.sender.client if isinstance(middleware, Counts) else None
        for name in FLUSHES:
            if hasattr(client, name):
                with SUPPRESS:
                    getattr(client, name)()
