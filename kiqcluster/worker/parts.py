"""Parts: makes the parts of a worker, and says which part is told of what.

`assemble` goes from the bottom up: each part is given those that it needs.  Where two parts need each other, what one
tells the other is made before both: `processors` (empty at first), `wakeups`, the poller's inbox, the heartbeat's bell.
Nothing starts here; worker/launcher takes the parts through their life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

from kiqcluster.application.registry import Registry
from kiqcluster.application.shared_names import shared_names
from kiqcluster.control.control_messages import Message
from kiqcluster.control.process_registry import drop_expired
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.ipc.signal_pipe import SignalPipe
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import OnCrash
from kiqcluster.sidekiq import routing
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Deferred, Retry
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.shards import shards_digest
from kiqcluster.worker.child_spec import ChildSpec
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.hand_lists import hand_seconds
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.fetch.wakeups import Wakeups
from kiqcluster.worker.heartbeat import Heartbeat, HeartbeatCallbacks
from kiqcluster.worker.identity import ProcessFingerprint, new_member
from kiqcluster.worker.interventions import Interventions
from kiqcluster.worker.maintenance.cron_sync import CronSync
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from kiqcluster.worker.maintenance.duties import fleet_duties, scope
from kiqcluster.worker.maintenance.job_watch import JobWatch
from kiqcluster.worker.maintenance.limit_upkeep import LimitUpkeep
from kiqcluster.worker.maintenance.outside_sources import SourceMover
from kiqcluster.worker.maintenance.poller import BatchSource, DueSource, Poller, sidekiq_sources
from kiqcluster.worker.maintenance.poller_inbox import PollerInbox
from kiqcluster.worker.maintenance.progress import ProgressReporter
from kiqcluster.worker.maintenance.queue_names import QueueNames
from kiqcluster.worker.maintenance.recovery import Recovery
from kiqcluster.worker.metrics.application_metrics import ApplicationMetrics
from kiqcluster.worker.metrics.execution_metrics import ExecutionMetricsWriter
from kiqcluster.worker.metrics.overflow import Overflow
from kiqcluster.worker.metrics.worker_metrics import WorkerMetrics
from kiqcluster.worker.process_entry import Status
from kiqcluster.worker.run.async_processor import AsyncProcessor, new_loop
from kiqcluster.worker.run.begins import Begins
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.feature_rows import RowsAhead
from kiqcluster.worker.run.job_log import JobLog
from kiqcluster.worker.run.manager import Manager
from kiqcluster.worker.run.processor import Processor
from kiqcluster.worker.run.processors import Processors
from kiqcluster.worker.run.timed_out import TimedOutUnits

__all__ = ["Callbacks", "Parts", "assemble"]

MakeExecution = Callable[..., Execution]  # keywords on_limit, async_jobs: as of Execution


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions of the main thread that parts call; from any thread."""

    on_member: Callable[[Member], None]
    on_recovered: Callable[[str, int], None]
    on_signal: Callable[[str], None]
    on_message: Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one worker.  Which of them are services, and their orders: SERVICES in worker/launcher."""

    order: QueueOrder
    fetch: ReliableFetch
    processors: Processors
    manager: Manager
    running_jobs: RunningJobs
    stopping: Event  # set when running jobs are told that the process stops
    job_log: JobLog
    watch: JobWatch
    progress: ProgressReporter
    metrics: WorkerMetrics
    collectors: ApplicationMetrics
    executions: ExecutionMetricsWriter
    queue_names: QueueNames
    recovery: Recovery
    limits: LimitUpkeep
    cron: CronSync
    poller: Poller
    movers: Sequence[SourceMover]
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What many parts of a worker need, made before them.

    scope: of the application, for the names of duties.  inbox: of the poller.  bell: of the heartbeat.
    """

    runtime: Runtime
    registry: Registry
    spec: ChildSpec
    scope: str
    on_crash: OnCrash
    stopping: Event
    fencing: Fencing
    processors: Processors
    inbox: PollerInbox
    bell: SignalPipe
    metrics: WorkerMetrics
    engine: Engine
    order: QueueOrder
    fingerprint: ProcessFingerprint
    wakeups: Wakeups
    callbacks: Callbacks


def assemble(runtime: Runtime, registry: Registry, spec: ChildSpec, callbacks: Callbacks) -> Parts:
    """Make the parts of a worker.  None of them runs yet, and nothing is asked of Redis."""
    shared = _shared(runtime, registry, spec, callbacks)
    fetch = _fetch(shared)
    job_log = JobLog(runtime.events, runtime.clock, shared.on_crash)
    make_execution = _make_execution(shared, fetch, job_log)
    _make_processors(shared, fetch, make_execution)
    manager = Manager(shared.processors, fetch, shared.wakeups, runtime.clock, shared.on_crash)
    recovery = _recovery(shared, fetch, make_execution)
    progress = ProgressReporter(runtime, registry, shared.processors.running, shared.fencing.is_fenced, shared.on_crash)
    limits = LimitUpkeep(runtime, registry, spec.concurrency, shared.stopping.is_set)
    cron = CronSync(runtime, registry, spec.group.shard, shared.inbox.expect, spec.cluster_queues)
    queue_names = QueueNames(runtime, shared.engine, shared.order, fetch)
    executions = _executions(shared, fetch)
    status = _status(shared, fetch, manager, cron)
    heard = _heartbeat_callbacks(shared, fetch, queue_names, partial(_on_beat, runtime, limits, executions))
    return Parts(
        order=shared.order,
        fetch=fetch,
        processors=shared.processors,
        manager=manager,
        running_jobs=spec.running_jobs,
        stopping=shared.stopping,
        job_log=job_log,
        watch=JobWatch(runtime, shared.processors, spec.running_jobs, progress),
        progress=progress,
        metrics=shared.metrics,
        collectors=shared.metrics.collectors,
        executions=executions,
        queue_names=queue_names,
        recovery=recovery,
        limits=limits,
        cron=cron,
        poller=_poller(shared, cron, limits, recovery),
        movers=[SourceMover(source, runtime, shared.on_crash, shared.scope) for source in runtime.setup.due_sources],
        heartbeat=Heartbeat(runtime, status, heard, shared.on_crash, shared.bell),
    )


def _shared(runtime: Runtime, registry: Registry, spec: ChildSpec, callbacks: Callbacks) -> SharedParts:
    config, processors, inbox = runtime.config, Processors(runtime.clock), PollerInbox(runtime)
    on_crash = partial(_report_crash, runtime)
    metrics = WorkerMetrics(runtime, registry, spec.concurrency, processors.running, on_crash)
    dead_set = DeadSetLimits(config.dead_max_jobs, config.dead_timeout)
    return SharedParts(
        runtime=runtime,
        registry=registry,
        spec=spec,
        scope=scope(config.known_cron_application(), registry),
        on_crash=on_crash,
        stopping=Event(),
        fencing=Fencing(runtime.clock, config.health_recover_after),
        processors=processors,
        inbox=inbox,
        bell=SignalPipe(),
        metrics=metrics,
        engine=Engine(runtime.store, dead_set, Overflow(runtime, metrics.jobs, inbox.trim_soon).note),
        order=QueueOrder(spec.group, spec.known_queues, runtime.rng),
        fingerprint=ProcessFingerprint.of_this_process(),
        wakeups=Wakeups(runtime.store, runtime.clock, hand_seconds(config.health_recover_after)),
        callbacks=callbacks,
    )


# units


def _fetch(shared: SharedParts) -> ReliableFetch:
    return ReliableFetch(
        runtime=shared.runtime,
        engine=shared.engine,
        order=shared.order,
        new_member=partial(new_member, shared.fingerprint),
        on_member=partial(_begin_membership, shared.fencing, shared.callbacks.on_member),
        wake_manager=shared.wakeups.wake,
        processors=shared.spec.concurrency,
        death_limits=[each.local.get("max_retries_after_interruption") for each in shared.registry],
        on_rejoined=shared.bell.wake,  # messages are sent to the new identity from now on
    )


def _make_execution(shared: SharedParts, fetch: ReliableFetch, job_log: JobLog) -> MakeExecution:
    runtime, registry, keys = shared.runtime, shared.registry, shared.runtime.store.keys
    begins = Begins(
        shared.engine.begin_units, runtime.clock, fetch.coordinator.supply.units_ahead, RowsAhead(registry, keys)
    )
    return partial(
        Execution,
        runtime,
        registry,
        shared.metrics.jobs,
        shared.stopping,
        log_done=job_log.log_done,
        is_fenced=shared.fencing.is_fenced,
        begin_run=begins.begin,
        on_due=partial(_expect_due, shared.inbox, keys),
        end_run=begins.end,
    )


def _make_processors(shared: SharedParts, fetch: ReliableFetch, make_execution: MakeExecution) -> None:
    """Make the processors; the event loop first, which each of them is given."""
    processors = shared.processors
    processors.loop = _event_loop(shared, fetch, make_execution)
    processors.threads = [
        _processor(shared, fetch, make_execution, number=number) for number in range(shared.spec.concurrency)
    ]


def _event_loop(shared: SharedParts, fetch: ReliableFetch, make_execution: MakeExecution) -> AsyncProcessor | None:
    """Return the event loop of async jobs, None if no job is async."""
    if not any(definition.is_async for definition in shared.registry):
        return None
    return AsyncProcessor(
        loop=new_loop(shared.runtime.config.event_loop),
        hand_in=fetch.coordinator.hand_in,
        execution=make_execution(),
        running_jobs=shared.spec.running_jobs,
        clock=shared.runtime.clock,
        on_crash=shared.on_crash,
    )


def _processor(shared: SharedParts, fetch: ReliableFetch, make_execution: MakeExecution, *, number: int) -> Processor:
    running_jobs, loop = shared.spec.running_jobs, shared.processors.loop
    return Processor(
        number=number,
        fetch=fetch,
        execution=make_execution(on_limit=partial(running_jobs.limit, number), async_jobs=loop),
        running_jobs=running_jobs,
        clock=shared.runtime.clock,
        on_crash=shared.on_crash,
        async_jobs=loop,
    )


def _recovery(shared: SharedParts, fetch: ReliableFetch, make_execution: MakeExecution) -> Recovery:
    return Recovery(
        runtime=shared.runtime,
        engine=shared.engine,
        fingerprint=shared.fingerprint,
        identity=partial(_identity, fetch),
        fencing=shared.fencing,
        on_uncertain=fetch.coordinator.mark_uncertain,
        on_recovered=shared.callbacks.on_recovered,
        settle_timed_out=TimedOutUnits(shared.runtime, shared.engine, make_execution, shared.on_crash).settle_soon,
        on_crash=shared.on_crash,
    )


# what is due


def _poller(shared: SharedParts, cron: CronSync, limits: LimitUpkeep, recovery: Recovery) -> Poller:
    runtime, engine = shared.runtime, shared.engine
    sources: list[DueSource | BatchSource] = [*sidekiq_sources(engine.store.keys, runtime.setup)]
    sources.append(CronTicks(runtime, shared.registry, shared.metrics.jobs, shared.scope))
    if limits.is_needed:
        sources.append(limits.source())
    duties = fleet_duties(
        shared.scope,
        cron.digest,
        drop_expired=partial(drop_expired, runtime.store),
        look_at_hands=recovery.look_at_hands,
        keep_cron=cron.keep,
        sweep_limits=limits.sweep,
    )
    return Poller(runtime, engine, shared.on_crash, sources, duties, first=[cron.keep], inbox=shared.inbox)


def _expect_due(inbox: PollerInbox, keys: Keys, outcome: Retry | Deferred) -> None:
    """Have the poller know of a job that becomes due again."""
    inbox.expect(keys.retry if isinstance(outcome, Retry) else keys.schedule, outcome.at)


# what the heartbeat says and hears


def _status(shared: SharedParts, fetch: ReliableFetch, manager: Manager, cron: CronSync) -> Status:
    config, order = shared.runtime.config, shared.order
    return Status(
        identity=partial(_identity, fetch),
        running=shared.processors.running_by_thread,
        busy=manager.occupied,
        is_quiet=lambda: fetch.coordinator.is_quiet,
        queues=lambda: (order.weights, order.mode),
        concurrency=shared.spec.concurrency,
        tag=config.known_tag(),
        application=config.known_cron_application(),
        names=shared_names(config, shared.registry),
        cron=cron.digest,
        routing=routing.digest(config.routing),
        shard=order.group.shard,
        shards=shards_digest(config.shards),
    )


def _heartbeat_callbacks(
    shared: SharedParts, fetch: ReliableFetch, queue_names: QueueNames, on_beat: Callable[[], None]
) -> HeartbeatCallbacks:
    callbacks = shared.callbacks
    interventions = Interventions(shared.runtime, shared.processors.cancel_jobs)
    return HeartbeatCallbacks(
        on_signal=callbacks.on_signal,
        on_message=callbacks.on_message,
        on_names=queue_names.learn,
        on_strikes=interventions.apply_strikes,
        on_cancelled=interventions.apply_cancelled,
        on_uncertain=fetch.coordinator.mark_uncertain,
        on_beat=on_beat,
    )


def _executions(shared: SharedParts, fetch: ReliableFetch) -> ExecutionMetricsWriter:
    keys, count = shared.runtime.store.keys, shared.metrics.jobs.executions
    return ExecutionMetricsWriter(shared.runtime, keys, count, fetch.member.identity)


def _on_beat(runtime: Runtime, limits: LimitUpkeep, executions: ExecutionMetricsWriter) -> None:
    limits.count_threads()
    with runtime.store.borrowed() as connection:
        executions.flush(connection)


# telling


def _identity(fetch: ReliableFetch) -> str:
    return fetch.member.identity


def _begin_membership(fencing: Fencing, tell: Callable[[Member], None], member: Member) -> None:
    fencing.begin(member.identity)
    tell(member)


def _report_crash(runtime: Runtime, service: str, error: Exception) -> None:
    runtime.events.emit("service_crashed", service=service, error=error)
    runtime.setup.notify_error_handlers(error, {"context": service})
