"""Launcher: builds the parts of a worker and takes them through its life.

Runs in: the worker's main thread.
1. join       become a member, give back the units of dead processes, learn the queues
2. start      manager, recovery, heartbeat, poller
3. quiet      fetch no more, give reserved units back; polling goes on
4. resume     fetch again
5. stop       quiet, wait for running jobs until the deadline, put back the jobs that still run, leave

Counterpart: sidekiq launcher.rb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from kiqcluster.application.registry import Registry
from kiqcluster.application.shared_names import shared_names
from kiqcluster.control.control_messages import Message
from kiqcluster.control.process_registry import drop_expired
from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.sidekiq import routing
from kiqcluster.sidekiq.outcome import Deferred, Retry
from kiqcluster.sidekiq.queue_groups import Group
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.shards import shards_digest
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.queue_order import QueueOrder, describe_queues
from kiqcluster.worker.fetch.wakeups import Wakeups
from kiqcluster.worker.heartbeat import Heartbeat, HeartbeatCallbacks
from kiqcluster.worker.identity import ProcessFingerprint, new_member
from kiqcluster.worker.interventions import Interventions
from kiqcluster.worker.job_watch import JobWatch
from kiqcluster.worker.leaving import LAST_STEP_SECONDS, leave
from kiqcluster.worker.maintenance.cron_sync import CronSync
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from kiqcluster.worker.maintenance.duties import fleet_duties, scope
from kiqcluster.worker.maintenance.limit_upkeep import LimitUpkeep
from kiqcluster.worker.maintenance.outside_sources import SourceMover
from kiqcluster.worker.maintenance.poller import BatchSource, DueSource, Poller, sidekiq_sources
from kiqcluster.worker.maintenance.progress import ProgressReporter
from kiqcluster.worker.maintenance.recovery import Recovery
from kiqcluster.worker.metrics.execution_metrics import ExecutionMetricsWriter
from kiqcluster.worker.metrics.metrics_delta import Frame
from kiqcluster.worker.metrics.worker_metrics import WorkerMetrics
from kiqcluster.worker.process_entry import Status
from kiqcluster.worker.run.async_processor import AsyncProcessor, new_loop
from kiqcluster.worker.run.begins import Begins
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.feature_rows import RowsAhead
from kiqcluster.worker.run.job_log import JobLog
from kiqcluster.worker.run.manager import Manager
from kiqcluster.worker.run.overflow import Overflow
from kiqcluster.worker.run.processor import Processor
from kiqcluster.worker.run.timed_out import TimedOutUnits

__all__ = ["Callbacks", "Launcher"]

MakeExecution = Callable[..., Execution]  # keyword on_limit: as of Execution


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions of the main thread that a launcher calls; from any thread."""

    on_member: Callable[[Member], None]
    on_recovered: Callable[[str, int], None]
    on_signal: Callable[[str], None]
    on_message: Callable[[Message], None]


class Launcher:
    """One worker's parts."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        group: Group,
        known_queues: Iterable[str],
        concurrency: int,
        shared_jobs: RunningJobs,
        callbacks: Callbacks,
        cluster_queues: frozenset[str],
    ) -> None:
        self._runtime = runtime
        self._shared_jobs = shared_jobs
        self._stopping = Event()
        fencing = Fencing(runtime.clock, runtime.config.recover_after)
        self._on_member = partial(_begin_membership, fencing, callbacks.on_member)
        self._metrics = WorkerMetrics(
            runtime, registry, concurrency, lambda: self._manager.running(), self._on_service_crash
        )
        self._engine = self._make_engine()
        self._job_log = JobLog(runtime.events, runtime.clock, self._on_service_crash)
        self.order = QueueOrder(group, known_queues, runtime.rng)
        fingerprint = ProcessFingerprint.of_this_process()
        self._fetch = self._make_fetch(registry, concurrency, fingerprint)
        begins = Begins(
            self._engine.begin_units, runtime.clock, self._fetch.units_ahead, RowsAhead(registry, runtime.store.keys)
        )
        make_execution = partial(
            Execution,
            *(runtime, registry, self._metrics.jobs, self._stopping, self._job_log.log_done, fencing.is_fenced),
            begin_run=begins.begin,
            on_due=self._expect_due,
            end_run=begins.end,
        )
        async_processor = self._make_async_processor(registry, make_execution)
        self._manager = self._make_manager(concurrency, make_execution, async_processor)
        reporter = ProgressReporter(runtime, registry, self._manager.running, fencing.is_fenced, self._on_service_crash)
        self._watch = JobWatch(runtime, self._manager, shared_jobs, reporter)
        self._recovery = self._make_recovery(fingerprint, fencing, callbacks.on_recovered, make_execution)
        self._execution_metrics = ExecutionMetricsWriter(
            runtime, runtime.store.keys, self._metrics.jobs.executions, self._identity()
        )
        self._shared_names = shared_names(runtime.config, registry)
        self._limits = LimitUpkeep(runtime, registry, concurrency, self._stopping.is_set)
        self._cron = CronSync(runtime, registry, self.order.group.shard, self._expect_tick, cluster_queues)
        self._poller = self._make_poller(registry)
        self._movers = self._make_movers(registry)
        self._heartbeat = self._make_heartbeat(callbacks, concurrency)

    @property
    def is_quiet(self) -> bool:
        return self._fetch.is_quiet

    @property
    def is_connected(self) -> bool:
        """Whether the last exchange with Redis had an answer."""
        return self._fetch.is_connected

    def join(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Become a member, give back the units of dead processes, learn the queues.

        Units go back before this process fetches, so they run before younger ones.
        Raises StoreError while Redis is away: call it again then.  Raises UsageError if another application has a cron
        entry of this one.
        """
        self._cron.refuse_held()
        self._on_member(self._fetch.member)
        self._engine.join(self._fetch.member)
        self._recovery.catch_up(orphans)
        self._learn_queues()

    def announce(self) -> None:
        """Have the fleet see this worker, from the moment that it is ready on, and count the threads of the fleet."""
        self._heartbeat.announce()
        try:
            self._limits.count_threads()
        except StoreError as error:  # it is counted with a beat
            self._runtime.trouble("limits", error)

    def start(self) -> None:
        """Start the threads: from here on jobs run, and may end this process."""
        self._metrics.start(self.order.weights)
        # The many processors come last: if there are not threads for all, fewer of them will do.
        for service in (self._job_log, self._recovery, self._heartbeat, self._poller, *self._movers):
            service.start()
        self._manager.start()

    def restart_crashed_services(self) -> None:
        """Start services again that have crashed; called at each tick of the main loop."""
        others: tuple[Service, ...] = (self._recovery, self._heartbeat, self._poller, self._job_log, *self._movers)
        for service in (self._manager, *others, *self._metrics.services()):
            if not service.is_alive:
                service.start()

    def descriptors(self) -> dict[str, tuple[int, ...]]:
        """Return the descriptors that the services wait on, by their purpose."""
        return {"bells": self._manager.descriptors(), "heartbeat": self._heartbeat.descriptors()}

    def recover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Give the units of dead processes back; orphans: identity → tokens that were running."""
        self._recovery.recover(orphans)

    def quiet(self) -> None:
        """Fetch no more.  Reversible."""
        if self.is_quiet:
            return
        returned = self._fetch.quiet()
        self._heartbeat.beat_soon()
        self._runtime.events.emit("worker_quiet", returned=returned)
        self._runtime.run_hooks("quiet")

    def resume(self) -> None:
        """End a quiet."""
        if not self.is_quiet or self._stopping.is_set():
            return
        self._fetch.resume()
        self._heartbeat.beat_soon()
        self._runtime.events.emit("worker_resumed")
        self._runtime.run_hooks("resume")

    def learn_queues(
        self, known: Iterable[str], chosen: dict[str, int] | None = None, left_behind: dict[str, int] | None = None
    ) -> None:
        """Serve new queue names, on a live worker.

        chosen, left_behind: queue → weight, if the group is a selector (SelectorGroup).
        """
        if self.order.learn(known) if chosen is None else self.order.choose(chosen, left_behind or {}):
            self._runtime.events.emit("queues_changed", queues=describe_queues(self.order.weights))
            self._fetch.on_wakeup()

    def begin_stop(self) -> None:
        """Quiet for good, and tell running jobs that the process stops."""
        self.quiet()
        self._stopping.set()
        self._poller.stop()
        self._runtime.run_hooks("shutdown")

    def running(self, timed_out: Collection[str] = ()) -> int:
        """Return the number of units that run or are not settled yet, without those of these tokens."""
        others = sum(run.unit.token in timed_out for run in self._manager.running()) if timed_out else 0
        return max(self._fetch.running(), self.busy()) - others

    def progress(self) -> int:
        """Return a number that grows while the worker fetches."""
        return self._fetch.progress

    def busy(self) -> int:
        """Return the number of jobs that run at this moment."""
        return len(self._manager.running())

    def occupied(self) -> int:
        """Return the number of jobs that run; while quiet, of all units that are held: at 0 none will run here.

        At most one for each thread: Redis may take long to take back what was fetched ahead.
        """
        return min(self.running(), self._manager.places()) if self.is_quiet else self.busy()

    def tally(self) -> dict[str, float]:
        """Return the fields of a beat to the supervisor: counts since the start, and the units of this moment."""
        return {
            "processed": self._metrics.jobs.processed(),
            "prefetched": self._fetch.prefetched(),
            "round_trips": self._fetch.round_trips,
            "round_trip_seconds": self._fetch.round_trip_seconds,
            "drained": self._fetch.is_drained(),
        }

    def changed_metrics(self, *, is_last: bool = False) -> Iterator[Frame]:
        """Return the frames that tell the supervisor which series have changed; each is to be sent."""
        return self._metrics.changed(is_last=is_last)

    def publish_cluster(self, state: Mapping[str, Any]) -> None:
        """Publish the supervisor's state."""
        self._heartbeat.publish_cluster(state)

    def publish_stacks(self, identity: str, stacks: str) -> None:
        """Publish the stacks of a process of this cluster that does not respond, or of this one: ""."""
        self._heartbeat.publish_stacks(identity, stacks)

    def watch_jobs(self) -> None:
        """Tell the supervisor since when everything runs, the log what takes too long, and Redis how far jobs are."""
        self._watch.look()

    def publish_busy(self) -> None:
        """Publish how many jobs run, before the next beat is due."""
        self._heartbeat.beat_soon()

    def finish_stop(self, *, is_requested: bool = True, timed_out: Collection[str] = ()) -> bool:
        """Put back the jobs that still run, settle, leave the membership and the registry.

        is_requested: whether anybody has asked for this stop.  If nobody did, a job that still runs may have caused it,
        and counts as in a death (docs/adr/0016).  timed_out: tokens of the units because of which it stops.
        No thread is killed: a job that still runs ends with the process (invariant 6).
        Returns whether Redis has it all; if not, the units are recovered like those of the dead (R7).
        """
        self._manager.stop()
        self._fetch.end()
        self._watch.stop()
        ending: tuple[Service, ...] = (self._heartbeat, self._recovery, *self._movers)
        for service in ending:
            service.stop()
        until = self._runtime.clock.monotonic() + LAST_STEP_SECONDS
        for service in ending:
            service.join(max(0.0, until - self._runtime.clock.monotonic()))
        try:
            self._heartbeat.withdraw(LAST_STEP_SECONDS)
        except StoreError as error:
            self._runtime.trouble("stop", error)  # the heartbeat expires by itself
        if is_requested:  # if Redis is away now, or this process is killed as it leaves, that is no job's doing
            # But the supervisor must remember which jobs were overdue: a hook of theirs may hang in the next step.
            self._shared_jobs.clear(keep=timed_out)
        # Nearly last: from here on others may run the jobs that still run here.
        has_left = leave(self._runtime, self._manager, self._fetch, is_requested=is_requested, timed_out=timed_out)
        if has_left and not self._heartbeat.is_alive:  # else Redis is away, or the heartbeat is at it
            self._execution_metrics.finish(self._runtime.store.connection(timeout=LAST_STEP_SECONDS))
        if has_left and is_requested:
            self._shared_jobs.clear()
        self.end_job_log()
        self._runtime.run_hooks("exit")
        return has_left

    def close_after_fork(self) -> None:
        """Close the worker's descriptors and connections in a forked process."""
        self._manager.close_after_fork()
        self._heartbeat.close_after_fork()
        self._runtime.store.close_after_fork()
        self._runtime.setup.close_after_fork()

    def end_job_log(self) -> None:
        """Write the lines of jobs that are done, if somebody reads them."""
        self._job_log.end()

    # making

    def _make_engine(self) -> Engine:
        config = self._runtime.config
        limits = DeadSetLimits(config.dead_max_jobs, config.dead_timeout)
        overflow = Overflow(self._runtime, self._metrics.jobs, lambda: self._poller.trim_soon())
        return Engine(self._runtime.store, limits, overflow.note)

    def _make_fetch(self, registry: Registry, concurrency: int, fingerprint: ProcessFingerprint) -> ReliableFetch:
        return ReliableFetch(
            self._runtime,
            self._engine,
            self.order,
            lambda: new_member(fingerprint),
            self._on_member,
            lambda: self._manager.wake(),
            concurrency,
            [definition.local.get("max_retries_after_interruption") for definition in registry],
            lambda: self._heartbeat.beat_soon(),  # messages are sent to the new identity from now on
        )

    def _make_manager(
        self, concurrency: int, make_execution: MakeExecution, async_processor: AsyncProcessor | None
    ) -> Manager:
        clock, waits = self._runtime.clock, self._fetch.hand_lists
        wakeups = Wakeups(self._runtime.store, clock, (waits.wait_seconds, waits.grace_seconds))
        make = partial(self._make_processor, make_execution, async_processor)
        return Manager(concurrency, self._fetch, wakeups, clock, make, self._on_service_crash, async_processor)

    def _make_async_processor(self, registry: Registry, make_execution: MakeExecution) -> AsyncProcessor | None:
        """Return what runs async jobs, None if there are none."""
        if not any(definition.is_async for definition in registry):
            return None
        parts = (self._shared_jobs, self._runtime.clock, self._on_service_crash)
        loop = new_loop(self._runtime.config.event_loop)
        return AsyncProcessor(loop, self._fetch.hand_in, make_execution(), *parts)

    def _make_processor(
        self, make_execution: MakeExecution, async_jobs: AsyncProcessor | None, number: int
    ) -> Processor:
        execution = make_execution(on_limit=partial(self._shared_jobs.limit, number), async_jobs=async_jobs)
        parts = (self._shared_jobs, self._runtime.clock, self._on_service_crash, async_jobs)
        return Processor(number, self._fetch, execution, *parts)

    def _expect_due(self, outcome: Retry | Deferred) -> None:
        """Have the poller know of a job that becomes due again."""
        keys = self._runtime.store.keys
        self._poller.expect(keys.retry if isinstance(outcome, Retry) else keys.schedule, outcome.at)

    def _expect_tick(self, key: str, at: float) -> None:
        """Have the poller know of a tick that this process has written."""
        self._poller.expect(key, at)

    def _make_recovery(
        self,
        fingerprint: ProcessFingerprint,
        fencing: Fencing,
        on_recovered: Callable[[str, int], None],
        make_execution: MakeExecution,
    ) -> Recovery:
        timed_out = TimedOutUnits(self._runtime, self._engine, make_execution, self._on_service_crash)
        return Recovery(
            self._runtime,
            self._engine,
            fingerprint,
            self._identity,
            fencing,
            self._fetch.mark_uncertain,
            on_recovered,
            timed_out.settle_soon,
            self._on_service_crash,
        )

    def _make_poller(self, registry: Registry) -> Poller:
        runtime, parts = self._runtime, (self._runtime, self._engine, self._on_service_crash)
        known = scope(runtime.config.known_cron_application(), registry)
        sources: list[DueSource | BatchSource] = [*sidekiq_sources(self._engine.store.keys, runtime.setup)]
        sources.append(CronTicks(runtime, registry, self._metrics.jobs, known))
        if self._limits.is_needed:
            sources.append(self._limits.source())
        duties = fleet_duties(
            known,
            self._cron.digest,
            drop_expired=partial(drop_expired, runtime.store),
            look_at_hands=self._recovery.look_at_hands,
            keep_cron=self._cron.keep,
            sweep_limits=self._limits.sweep,
        )
        return Poller(*parts, sources, duties, first=[self._cron.keep])

    def _make_movers(self, registry: Registry) -> list[SourceMover]:
        runtime = self._runtime
        known = scope(runtime.config.known_cron_application(), registry)
        return [SourceMover(source, runtime, self._on_service_crash, known) for source in runtime.setup.due_sources]

    def _make_heartbeat(self, callbacks: Callbacks, concurrency: int) -> Heartbeat:
        status = Status(
            identity=self._identity,
            running=self._manager.running_by_thread,
            busy=self.occupied,
            is_quiet=lambda: self.is_quiet,
            queues=lambda: (self.order.weights, self.order.mode),
            concurrency=concurrency,
            tag=self._runtime.config.known_tag(),
            application=self._runtime.config.known_cron_application(),
            names=self._shared_names,
            cron=self._cron.digest,
            routing=routing.digest(self._runtime.config.routing),
            shard=self.order.group.shard,
            shards=shards_digest(self._runtime.config.shards),
        )
        interventions = Interventions(self._runtime, self._manager.cancel_jobs)
        heartbeat_callbacks = HeartbeatCallbacks(
            on_signal=callbacks.on_signal,
            on_message=callbacks.on_message,
            on_names=self.learn_queues,
            on_strikes=interventions.apply_strikes,
            on_cancelled=interventions.apply_cancelled,
            on_uncertain=self._fetch.mark_uncertain,
            on_beat=self._on_beat,
        )
        return Heartbeat(self._runtime, status, heartbeat_callbacks, self._on_service_crash)

    # telling

    def _on_beat(self) -> None:
        self._limits.count_threads()
        with self._runtime.store.borrowed() as connection:
            self._execution_metrics.flush(connection)

    def _identity(self) -> str:
        return self._fetch.member.identity

    def _learn_queues(self) -> None:
        try:
            names = set(self._engine.queue_names())
        except RedisRefused as error:  # a broken key: the queues that the group names are served all the same
            if is_outage(error):
                raise
            self._runtime.trouble("queue names", error)
            names = set()
        self.order.learn(names)
        if not self.order.weights:
            self._runtime.events.emit("no_queues", group=self.order.group.text)

    def running_by_thread_name(self) -> dict[str, str]:
        """Return a description of each thread's job, by thread name: class, jid, and for how long it has run."""
        return self._manager.running_by_thread_name()

    def _on_service_crash(self, service: str, error: Exception) -> None:
        self._runtime.events.emit("service_crashed", service=service, error=error)
        self._runtime.setup.notify_error_handlers(error, {"context": service})


def _begin_membership(fencing: Fencing, tell: Callable[[Member], None], member: Member) -> None:
    fencing.begin(member.identity)
    tell(member)
