"""Catalogue: the jobs and queues of the application, from a short-lived child that imports it.

The supervisor never imports the application (invariant 2): a broken import is only an error message, and the next
catalogue has the new code.  The child has its own deadline and process group.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from kiqcluster.application import loading
from kiqcluster.application.definitions import cron_queue
from kiqcluster.application.registry import current_registry
from kiqcluster.errors import ApplicationError, ExitCode, KiqError, UsageError
from kiqcluster.features.cron import declared_entries
from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.site_hooks import run_put_off
from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import current_setup
from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq.routing import Rules, parse_rules, routed
from kiqcluster.sidekiq.selectors import JobAttributes, attributes_of, described
from kiqcluster.store.shards import check_shard
from kiqcluster.supervisor.cluster.child import Death
from kiqcluster.supervisor.fork import fork_with_socket
from kiqcluster.supervisor.preflight import Known, Preflight, PreflightReport

__all__ = ["Catalogue", "CatalogueChild", "CatalogueQuery", "StartPreflight", "Superseded", "ask"]

DEADLINE_CHECK_SECONDS = 1.0  # between checks of the deadline, by a clock without standstills of the host

MAX_POLLS, POLL_SECONDS = 20, 0.01  # for a child that is about to end, or to write its stacks
T = TypeVar("T")

StartPreflight = Callable[[], Preflight]  # reads the configuration; returns what judges it once the queues are known


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The jobs and queues of an application.

    jobs: (name, declared queue) of each.  version: of the kiqcluster that is installed now, which may be another than
    runs.  preflight: what its configuration would change, if that was requested.  attributes: of each job.
    rules: the routing rules of its code, which hold where the configuration has none.
    cron: (job, queue) of each cron entry of the configuration, "" for a queue that the job decides.
    """

    jobs: tuple[tuple[str, str], ...]
    version: str = VERSION
    preflight: PreflightReport = field(default_factory=PreflightReport)
    attributes: tuple[JobAttributes, ...] = ()
    rules: Rules = ()
    cron: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        reports: Sequence[Mapping[str, Any]],
        version: str = VERSION,
        preflight: PreflightReport | None = None,
        rules: Rules = (),
        cron: Sequence[Sequence[str]] = (),
    ) -> Catalogue:
        """Return the catalogue of jobs that `application.loading.describe` has described."""
        attributes = tuple(map(described, reports))
        jobs = tuple((job["name"], job["queue"]) for job in reports)
        entries = tuple((job, queue) for job, queue in cron)
        return cls(jobs, version, preflight or PreflightReport(), attributes, rules, entries)

    def rules_in_force(self, config: Config) -> Rules:
        """Return the routing rules of the configuration, else those of the application."""
        return config.routing if config.is_declared("routing") else self.rules

    def routed(self, config: Config) -> tuple[tuple[str, str], ...]:
        """Return (name, queue) of each job, by the routing rules."""
        rules = self.rules_in_force(config)
        if not rules:
            return self.jobs
        return tuple(
            (name, routed(rules, job).queue) for (name, _), job in zip(self.jobs, self.attributes, strict=True)
        )

    def known(self, config: Config) -> Known:
        """Return the queues of the jobs and of the configuration, and what selectors select from.

        A queue of the configuration that no job goes to counts as a job without a name that declares nothing.
        """
        queues = self.known_queues(config)
        rules = self.rules_in_force(config)
        jobs = [routed(rules, job) for job in self.attributes] if rules else self.attributes
        others = sorted(queues - {queue for _, queue in self.routed(config)})
        return queues, (*jobs, *(attributes_of(None, queue, {}) for queue in others))

    def queues_in(self, shard: str, config: Config) -> frozenset[str]:
        """Return the queue names of a shard: of the jobs that are routed there, and of the configuration."""
        rules = self.rules_in_force(config)
        jobs = [routed(rules, job) for job in self.attributes] if rules else []
        own = {queue for _, queue in self.jobs} if not (shard or rules) else set()
        cron = {queue for queue, place in self._cron_queues(config) if place == shard}
        return frozenset({job.queue for job in jobs if job.shard == shard} | own | cron | set(config.queues))

    def known_queues(self, config: Config) -> frozenset[str]:
        """Return the queue names of the jobs and of the configuration."""
        cron = {queue for queue, _ in self._cron_queues(config)}
        return frozenset({queue for _, queue in self.routed(config)} | cron | set(config.queues))

    def _cron_queues(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield queue and shard of the jobs of each cron entry."""
        by_name = {name: job for (name, _), job in zip(self.jobs, self.attributes, strict=False)}
        rules = self.rules_in_force(config)
        for name, queue in self.cron:
            job = by_name.get(name)
            if job is None:
                yield queue, ""
            else:
                route = routed(rules, job)
                yield queue or cron_queue(name, route.queue, is_declared=route.is_queue_declared), route.shard


Then = Callable[[Catalogue], None]
Failed = Callable[[ApplicationError | UsageError], None]


class CatalogueChild:
    """A child that imports the application.  close_inherited: closes the supervisor's descriptors in it.

    logical, directory: the path by which the application is known, and the directory to which it led.
    """

    def __init__(
        self,
        config: Config,
        logical: Path,
        directory: Path,
        clock: Clock,
        close_inherited: Callable[[], None],
        start_preflight: StartPreflight | None = None,
    ) -> None:
        stacks = self._stacks = ThreadStacks()

        def run(parent: socket.socket) -> int:
            stacks.install_handlers()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return _describe_application(config, logical, directory, parent, start_preflight)

        try:
            self.pid, ours = fork_with_socket(run, close_inherited, "catalogue")
        except OSError:
            stacks.close()
            raise
        self.channel = Channel(ours)
        self.deadline = clock.monotonic() + config.health_boot_timeout
        self._boot_timeout = config.health_boot_timeout

    def result(self) -> Catalogue | None:
        """Return the catalogue, None while it has not arrived.  Raises ApplicationError if the import failed."""
        for frame in self.channel.receive():
            if frame["type"] == "catalogue":
                if "error" in frame:
                    raise ApplicationError(frame["error"])
                settings = {name: tuple(value) for name, value in frame.get("outlook", {}).items() if name != "error"}
                error = frame.get("outlook", {}).get("error", "")
                report = PreflightReport(error, **settings)
                rules = parse_rules(frame.get("routing", ()))
                version, cron = frame.get("version", VERSION), frame.get("cron", ())
                return Catalogue.of(frame["jobs"], version, report, rules, cron)
        if self.channel.closed:
            how = self._death() or "closed its connection to the supervisor"
            raise ApplicationError(
                f"the process that imports the application {how} before it was done{self._format_stacks()}"
            )
        return None

    def expire(self) -> ApplicationError:
        """Kill a child that is too late; return an error with its stacks."""
        with suppress(OSError):  # it has died
            self._stacks.request(self.pid)
            _poll(self._stacks.read)
        self.kill()
        late = f"the application took more than {self._boot_timeout:g} s to import (health.boot_timeout)"
        return ApplicationError(f"{late}{self._format_stacks()}")

    def kill(self) -> None:
        """Kill the child with its process group."""
        os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Release what was shared with the child."""
        self.channel.close()
        self._stacks.close()

    def _death(self) -> str:
        """Return how the child ended, empty if it has not; it still has to be reaped."""
        how = _poll(lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        if how is None:
            return ""
        is_exit = how.si_code == os.CLD_EXITED
        return str(Death(how.si_status if is_exit else None, None if is_exit else how.si_status))

    def _format_stacks(self) -> str:
        stacks = self._stacks.read()
        return f"; its threads were at\n{stacks}" if stacks else ""


class Superseded(ApplicationError):
    """Nobody waits for this answer any more: something else was asked."""


class CatalogueQuery:
    """The supervisor's question to the application: at most one at a time.

    logical: the path by which the application is known.  close_inherited: closes, in the child, the supervisor's
    descriptors.  ended: told the pid of each child that is done and has to be reaped.
    """

    def __init__(
        self,
        logical: Path,
        selector: selectors.BaseSelector,
        clock: Clock,
        close_inherited: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        self._logical = logical
        self._selector = selector
        self._clock = clock
        self._close_inherited = close_inherited
        self._ended = ended
        self._child: CatalogueChild | None = None
        self._then: Then | None = None
        self._failed: Failed | None = None

    @property
    def is_asking(self) -> bool:
        return self._child is not None

    @property
    def child(self) -> CatalogueChild | None:
        """The child that imports the application now, if any."""
        return self._child

    def ask(
        self,
        config: Config,
        directory: Path,
        then: Then,
        failed: Failed,
        start_preflight: StartPreflight | None = None,
    ) -> None:
        """Ask the application in a directory; `then` or `failed` is called later.  Raises OSError.

        An error that `then` raises goes to `failed`.  start_preflight: begins to check the release's configuration, in
        the child.
        """
        self.interrupt("another question came before the answer")
        child = CatalogueChild(config, self._logical, directory, self._clock, self._close_inherited, start_preflight)
        self._child, self._then, self._failed = child, then, failed
        self._selector.register(child.channel, selectors.EVENT_READ, self._on_answer)

    def _on_answer(self) -> None:
        assert self._child is not None
        try:
            catalogue = self._child.result()
        except (ApplicationError, UsageError) as error:
            self._fail(error)
            return
        if catalogue is None:
            return
        then, failed = self._then, self._failed
        self._end()
        if then is not None and failed is not None:
            try:
                then(catalogue)
            except (ApplicationError, UsageError) as error:
                failed(error)

    def check_deadline(self) -> None:
        """Give up a child that takes too long."""
        if self._child is not None and self._clock.monotonic() >= self._child.deadline:
            self._fail(self._child.expire())

    def interrupt(self, why: str) -> None:
        """End a question that is open; its `failed` gets Superseded."""
        if self._child is not None:
            self._child.kill()
            self._fail(Superseded(why))

    def give_up(self) -> None:
        """End a question that is open; nothing is called."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def close_in_child(self) -> None:
        """Close, in a new process, the supervisor's connection to the child."""
        if self._child is not None:
            self._child.close()

    def _fail(self, error: ApplicationError | UsageError) -> None:
        failed = self._failed
        self._end()
        if failed is not None:
            failed(error)

    def _end(self) -> None:
        if self._child is not None:
            self._selector.unregister(self._child.channel)
            self._child.close()
            self._ended(self._child.pid)
            self._child = self._then = self._failed = None


def _poll(look: Callable[[], T | None]) -> T | None:
    """Call `look` until it returns something, for a moment; return that, or None."""
    for _ in range(MAX_POLLS):
        if found := look():
            return found
        select.select([], [], [], POLL_SECONDS)
    return None


def ask(config: Config, directory: Path, clock: Clock) -> Catalogue:
    """Wait for the catalogue and return it; for commands that start no cluster.  Raises ApplicationError."""
    child = CatalogueChild(config, directory, directory, clock, lambda: None)
    try:
        while True:
            left = child.deadline - clock.monotonic()
            if left <= 0:
                raise child.expire()
            select.select([child.channel], [], [], min(left, DEADLINE_CHECK_SECONDS))
            catalogue = child.result()
            if catalogue is not None:
                return catalogue
    finally:
        os.waitpid(child.pid, 0)
        child.close()


def _describe_application(
    config: Config, logical: Path, directory: Path, parent: socket.socket, start_preflight: StartPreflight | None
) -> int:
    """Import the application and send what it declares.  Runs in the child."""
    channel = Channel(parent)
    preflight = None
    if start_preflight is not None:
        preflight = start_preflight()
        os.chdir(directory)
    run_put_off()
    try:
        loading.load(config.require, directory, logical)
        jobs = loading.describe(config.require)
        rules = parse_rules(current_setup().settings.get("routing", ()))
        for rule in rules:
            check_shard(rule.shard, config.shards)
        cron = [(each.job, each.queue) for each in declared_entries(config, current_registry(), directory)]
    except KiqError as error:
        channel.send("catalogue", error=str(error))
        _flush(channel)
        return ExitCode.APPLICATION
    report = PreflightReport() if preflight is None else preflight(Catalogue.of(jobs, rules=rules, cron=cron).known)
    routing = [rule.as_list() for rule in rules]
    version, outlook = _installed_version(), asdict(report)
    channel.send("catalogue", jobs=jobs, version=version, outlook=outlook, routing=routing, cron=cron)
    _flush(channel)
    return ExitCode.STOPPED


def _flush(channel: Channel) -> None:
    """Wait until the supervisor has read everything; it kills this process at the deadline."""
    while channel.pending:
        select.select([], [channel], [])
        channel.flush()


def _installed_version() -> str:
    """Return the version that a new supervisor would have; that of this process, if none is installed."""
    try:
        return metadata.version("kiqcluster")
    except metadata.PackageNotFoundError:
        return VERSION
