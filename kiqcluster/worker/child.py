"""Child: the entry of a worker process, and its main thread.

Runs in: the main thread of the worker, from just after the fork until `exit_process`.
1. boot       signals, the application, Redis (waited for while it is away), startup handlers, launcher
2. loop       signals, frames of the supervisor and messages from Redis → quiet, resume, stop, recover, queues, dump;
              messages for the cluster go up
3. tick       once a second: a beat that counts only when jobs can run; the metrics that changed, unless that is much;
              a check whether a job has closed descriptors that this process cannot go on without
4. stop       wait for running jobs until the deadline, then put back and leave

Death of the supervisor is EOF on the socketpair; it means stop.
"""

from __future__ import annotations

import gc
import os
import selectors
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from kiqcluster.application import loading
from kiqcluster.application.registry import current_registry
from kiqcluster.control.control_messages import Message
from kiqcluster.errors import ExitCode, KiqError
from kiqcluster.ipc import forks
from kiqcluster.ipc.frames import Channel, Frame
from kiqcluster.ipc.site_hooks import run_put_off
from kiqcluster.process.boundary.beat_guard import BeatGuard
from kiqcluster.process.clock import WorkerClock
from kiqcluster.process.config import STOP_GRACE_SECONDS
from kiqcluster.process.config_sources import with_configured
from kiqcluster.process.events import Events
from kiqcluster.process.logs import log
from kiqcluster.process.runtime import Runtime, current_setup
from kiqcluster.process.service import thread_stacks
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Member
from kiqcluster.worker.child_spec import ChildSpec
from kiqcluster.worker.descriptors import Descriptors
from kiqcluster.worker.exit_handlers import disown_finalizers, run_exit_handlers
from kiqcluster.worker.fetch.queue_order import describe_queues
from kiqcluster.worker.inbox import REMOTE_ACTIONS, Inbox
from kiqcluster.worker.launcher import Launcher
from kiqcluster.worker.memory import MemoryProbe
from kiqcluster.worker.metrics.throttle import Throttle
from kiqcluster.worker.orphan_alarm import OrphanAlarm, make_alarm
from kiqcluster.worker.parts import Callbacks, assemble
from kiqcluster.worker.redis_wait import KiqStopped, RedisWait, features_in_use

__all__ = ["run_child"]

TICK_SECONDS = 1.0  # between beats to the supervisor
MAX_METRICS_CPU_SHARE = 0.05  # of one core, which telling the supervisor what has changed may take
MAX_METRICS_INTERVAL_SECONDS = 10.0  # between two such tellings, at most
EXIT_HANDLERS_SECONDS = 3.0  # that functions of atexit get at the end
LOG_GRACE_SECONDS = 0.1  # for a line that is being written at the end
STOP_POLL_SECONDS = 0.02  # between looks at the last running jobs
BOOT_POLL_SECONDS = 0.1  # between tries to reach Redis while booting
MAX_REASON_CHARACTERS = 4_000  # of last words; a traceback begins with what says most


@dataclass(slots=True)
class Stopping:
    """What is known of the end of this process.

    at: monotonic seconds by which jobs may run; None while it goes on.  is_requested: by the supervisor, its end, or
    somebody in Redis; not by a mere signal.  timed_out: tokens of units that have run for longer than their
    `timeout_hard`.
    """

    at: float | None = None
    is_requested: bool = False
    timed_out: frozenset[str] = frozenset()


def run_child(spec: ChildSpec) -> int:
    """Run a worker process until it ends; return its exit code.  Signals are blocked on entry."""
    child, code = Child(spec), int(ExitCode.UNEXPECTED)
    try:
        code = _run(child)
    finally:
        child.end(code)
    return code


def _run(child: Child) -> int:
    try:
        child.boot()
        return child.loop()
    except KiqStopped:
        child.send_bye()
        return ExitCode.STOPPED
    except KiqError as error:
        log.LOGGER.error("slot %d cannot start: %s", child.slot, error)  # the message says it all
        child.send_last_words(str(error))
        child.send_bye()
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # the top of the process
        log.LOGGER.exception("slot %d: the main loop failed; the supervisor starts another", child.slot)
        child.send_last_words(f"the main loop failed ({error!r})")
        return ExitCode.UNEXPECTED
    except BaseException as error:  # the application has called sys.exit
        child.send_last_words(f"{error!r} was raised")
        raise


class Child:
    """One worker process.  All methods run in its main thread; others post to its inbox."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._channel = Channel(spec.parent)
        self._clock = WorkerClock()
        self._selector = selectors.DefaultSelector()
        self._inbox = Inbox()
        self._supervisor = os.getppid()
        self._alarm = OrphanAlarm()  # until there is a better one; not set before
        self._launcher: Launcher | None = None
        self._next_tick = inf  # until it is ready: nothing is started, so nothing ticks
        self._metrics_throttle = Throttle(self._clock, MAX_METRICS_CPU_SHARE, MAX_METRICS_INTERVAL_SECONDS)
        self._memory = MemoryProbe(spec.config, self._clock)
        self._last_beat = (0, 0)  # progress, and jobs that ran
        self._announced_identity = ""
        self._descriptors: Descriptors | None = Descriptors({})  # None: some are lost, perhaps those of signals as well
        self._stopping = Stopping()
        self._events = Events()

    @property
    def slot(self) -> int:
        return self._spec.slot

    # 1. boot

    def boot(self) -> None:
        """Get ready to run jobs.  Raises KiqError with its exit code if that fails."""
        spec = self._spec
        runtime = self._set_up()
        self._launcher = self._make_launcher(runtime)
        if spec.quiet:  # before Redis is waited for: it may be over by then
            self._launcher.quiet()
        features = features_in_use(current_registry(), runtime.config)
        redis_wait = RedisWait(runtime.store, features, self._channel, self._events, self._clock, self._wait_a_moment)
        redis_wait.reach()
        runtime.run_hooks("fork")
        self._start_up(runtime)
        gc.freeze()  # the objects of the boot live as long as the process; collections need not look at it
        runtime.begin_to_beat()
        redis_wait.retry(lambda: self.launcher.join(spec.orphans))
        self._run_once(0.0)  # a quiet or a stop that came during the boot holds from the first reserve on
        if self._stopping.at is not None:
            return
        self._next_tick = 0.0
        self._launcher.announce()
        order = self._launcher.parts.order
        # Told before the first reserve: a job that kills this process must not look like a boot that failed.
        pss = self._memory.proportional_bytes()
        self._channel.send("ready", queues=list(order.weights), concurrency=spec.concurrency, pss=pss)
        redis_wait.report_end()
        self._descriptors = self._own_descriptors()
        self._launcher.parts.watch.look()
        self._alarm.set(spec.config.health_silence_timeout)  # the first job may take the interpreter for ever
        self._launcher.start()
        self._events.emit("worker_ready", concurrency=spec.concurrency, queues=describe_queues(order.weights))
        runtime.run_hooks("ready")

    def _set_up(self) -> Runtime:
        """Take over signals and frames, import the application, and return the shared objects of this process."""
        spec = self._spec
        disown_finalizers()
        forks.install()
        forks.call_after_fork(self._close_after_fork)
        self._inbox.open()
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._on_inbox)
        self._selector.register(self._channel.socket, selectors.EVENT_READ, self._on_frames)
        log.word_events(self._events)
        rng = Random()  # seeded from the operating system, after the fork
        os.environ["KIQ_SLOT"] = os.environ["SIDEKIQ_WORKER_ID"] = str(spec.slot)
        setup = current_setup()
        setup.config, setup.delivery = spec.config, None
        run_put_off()
        if not spec.config.preload:  # the supervisor has done it; a function that is called twice sets up all twice
            loading.load(spec.config.require, spec.directory, spec.config.known_directory())
        self._inbox.trap()
        self._alarm = make_alarm(self._supervisor)
        config = setup.config = with_configured(spec.config, setup.settings)
        ruby_json.write_floats_as(config.ruby_json)
        setup.store, setup.shards = Store(config.known_redis()), {}
        setup.beat_guard = BeatGuard(lambda name, error: setup.notify_error_handlers(error, {"context": name}))
        levels = (definition.options.get("log_level") for definition in current_registry())
        log.adopt_root(level for level in levels if level is not None)
        return Runtime(config, setup.shard(spec.group.shard), setup, self._events, self._clock, rng, spec.slot)

    def _own_descriptors(self) -> Descriptors:
        main = (self._channel.fileno(), *self._inbox.descriptors())
        return Descriptors({"main loop": main, **self.launcher.descriptors()})

    def _make_launcher(self, runtime: Runtime) -> Launcher:
        post = self._inbox.post
        callbacks = Callbacks(
            on_member=lambda member: self._announce_identity(member),
            on_recovered=lambda identity, units: post(
                lambda: self._channel.send("recovered", identity=identity, units=units)
            ),
            on_signal=lambda name: post(lambda: self._act_on_remote_signal(name)),
            on_message=lambda message: post(lambda: self._act_on_message(message)),
        )
        return Launcher(runtime, assemble(runtime, current_registry(), self._spec, callbacks))

    def _start_up(self, runtime: Runtime) -> None:
        """Run the startup handlers.  The kernel ends a process whose handlers hang, if the supervisor is gone."""
        self._alarm.set(self._spec.config.health_boot_timeout)
        try:
            runtime.run_hooks("startup")
            self._inbox.trap()
        finally:
            self._alarm.set(0)

    def _wait_a_moment(self) -> None:
        """Wait during the boot, and obey the supervisor.  Raises KiqStopped."""
        self._run_once(BOOT_POLL_SECONDS)
        if self._stopping.at is not None:
            raise KiqStopped

    def _close_after_fork(self) -> None:
        """Close the worker's descriptors in a process that a job or a handler has forked (forks.py)."""
        self._inbox.close_after_fork()
        self._selector.close()
        self._channel.close()
        if self._launcher is not None:
            self._launcher.close_after_fork()

    # 2. loop

    @property
    def launcher(self) -> Launcher:
        assert self._launcher is not None, "the launcher is made in boot"
        return self._launcher

    def loop(self) -> int:
        """Act on signals and frames until it is time to go; return the exit code."""
        while self._stopping.at is None:
            self._run_once(max(0.0, self._next_tick - self._clock.monotonic()))
        return self._stop()

    def _run_once(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()
        self._inbox.run_posted()
        self._channel.flush()
        if self._clock.monotonic() >= self._next_tick:
            self._tick()

    def _on_inbox(self) -> None:
        for action, name in self._inbox.take():
            self._act(action, name)

    def _on_frames(self) -> None:
        for frame in self._channel.receive():
            self._on_frame(frame)
        if self._channel.closed:
            self._selector.unregister(self._channel.socket)
            self._events.emit("worker_orphaned")
            self._stopping.is_requested = True
            # Nobody is left to kill this process if a job holds the interpreter, or a shutdown handler hangs: the
            # kernel does, by default action.
            self._alarm.set_last(self._spec.config.stop_timeout + STOP_GRACE_SECONDS)
            self._act("stop", "EOF")

    def _on_frame(self, frame: Frame) -> None:
        match frame["type"]:
            case "quiet" | "resume" | "dump" as action:
                self._act(action, "supervisor", is_own=False)
            case "cluster":
                self.launcher.parts.heartbeat.publish_cluster(frame["state"])
            case "stacks":
                self.launcher.parts.heartbeat.publish_stacks(frame["identity"], frame["stacks"])
            case "stop":
                self._stopping.is_requested = True
                self._begin_stop(frame["seconds"])
            case "timed_out":
                self._stopping.timed_out = frozenset(frame["tokens"])
            case "recover":
                self.launcher.parts.recovery.recover(frame["orphans"])
            case "queues":
                self.launcher.parts.queue_names.learn(frame["known"], frame.get("chosen"), frame.get("left_behind"))

    def _act_on_remote_signal(self, name: str) -> None:
        action = REMOTE_ACTIONS.get(name, "unknown")
        self._stopping.is_requested |= action == "stop"
        self._act(action, name)

    def _act_on_message(self, message: Message) -> None:
        """Obey an order of kiqctl to this process; pass an order to the cluster on to the supervisor."""
        if message.scope == "cluster":
            self._channel.send("control", message=message.as_json())
        else:
            self._stopping.is_requested |= message.action in ("stop", "stop_now")
            self._act(message.action, message.by, lease=message.lease)

    def _act(self, action: str, cause: str, *, lease: float | None = None, is_own: bool = True) -> None:
        """cause: a signal's name, or who has sent a message.  lease: see Message.

        is_own: this process is meant alone; the supervisor has not asked for it.
        """
        match action:
            case "stop":
                self._begin_stop(self._spec.config.stop_timeout)
            case "stop_now":
                self._begin_stop(0.0)
            case "quiet" | "resume" if self._launcher is not None:
                self._launcher.quiet() if action == "quiet" else self._launcher.resume()
                # The end of a quiet is the supervisor's affair, also of one that is this process' own.
                self._channel.send("quiet", quiet=self._launcher.is_quiet, own=is_own, lease=lease, by=cause)
            case "dump":
                running = {} if self._launcher is None else self._launcher.parts.processors.running_by_thread_name()
                self._events.emit("threads", stacks=(stacks := thread_stacks(running)), running=running)
                if self._launcher is not None:
                    self._launcher.parts.heartbeat.publish_stacks("", stacks)
            case _:
                self._events.emit("unknown_signal", signal=cause)

    # 3. tick

    def _tick(self) -> None:
        self._next_tick = self._clock.monotonic() + TICK_SECONDS
        if self._descriptors is not None:
            if lost := self._descriptors.lost():
                self._stop_without_descriptors(lost)
            else:
                self._inbox.trap()  # handlers of the application run in this thread: ready, quiet, resume
        if self._stopping.at is None:  # a stop has a deadline of its own
            self._alarm.set(self._spec.config.health_silence_timeout)
        parts = self.launcher.parts
        parts.watch.look()
        self.launcher.restart_crashed_services()
        busy, occupied, progress = parts.manager.busy(), parts.manager.occupied(), parts.fetch.progress
        (progress_before, occupied_before), self._last_beat = self._last_beat, (progress, occupied)
        self._channel.send(
            "beat",
            progress=progress != progress_before or busy >= self._spec.concurrency or self.launcher.is_quiet,
            busy=occupied,
            redis=parts.fetch.is_connected,
            quiet=self.launcher.is_quiet,
            pss=self._memory.proportional_bytes(),
            **self.launcher.tally(),
        )
        if self.launcher.is_quiet and occupied != occupied_before:  # somebody may wait for the last job to end
            parts.heartbeat.beat_soon()
        self._send_metrics()

    def _stop_without_descriptors(self, lost: Sequence[str]) -> None:
        """Stop, so that a new process takes over: a job has closed descriptors that this one waits on."""
        self._descriptors = None  # said once
        if "main loop" in lost:
            # Another file may have the number by now and must not get our bytes.  The supervisor sees the end.
            self._channel.closed = True
        self._events.emit("descriptors_lost", lost=", ".join(lost))
        self._stopping.is_requested = True  # the jobs that run now need not have closed them
        self._begin_stop(self._spec.config.stop_timeout)

    def _send_metrics(self, *, is_last: bool = False) -> None:
        # Changes wait while the supervisor has not read the last frames, and where they cost much.
        if not is_last and (self._channel.pending or not self._metrics_throttle.is_due):
            return
        with self._metrics_throttle:
            for frame in self.launcher.parts.metrics.changed(is_last=is_last):
                self._channel.send("metrics", **frame)

    # 4. stop

    def _begin_stop(self, seconds: float) -> None:
        """Set the deadline; a second call can only bring it nearer."""
        deadline = self._clock.monotonic() + seconds
        if self._stopping.at is not None:
            self._stopping.at = min(self._stopping.at, deadline)
            return
        self._stopping.at = deadline
        set_alarm = self._alarm.set_last if self._channel.closed else self._alarm.set
        set_alarm(seconds + STOP_GRACE_SECONDS + TICK_SECONDS)  # the supervisor kills a moment earlier, if it is there
        if self._launcher is not None:
            running = self._launcher.parts.manager.busy()
            self._events.emit("worker_stopping", running=running, seconds=seconds)
            self._launcher.begin_stop()

    def _stop(self) -> int:
        stopping = self._stopping
        while self._clock.monotonic() < (stopping.at or 0.0) and self.launcher.parts.manager.held(stopping.timed_out):
            self._run_once(STOP_POLL_SECONDS)
        self._run_once(0.0)  # an order to recover a worker that has died just now
        has_left = self.launcher.finish_stop(is_requested=stopping.is_requested, timed_out=stopping.timed_out)
        self._send_metrics(is_last=True)
        if not has_left:  # no bye: the supervisor asks another worker, if there is one, to give the units back
            return ExitCode.UNEXPECTED
        self.send_bye()
        self._events.emit("worker_left")
        return ExitCode.STOPPED

    def send_last_words(self, reason: str) -> None:
        """Tell the supervisor why this process ends, and give it a moment to read that."""
        self._send_and_flush("last_words", reason=reason[:MAX_REASON_CHARACTERS])

    def send_bye(self) -> None:
        """Tell the supervisor that this process leaves nothing behind, and give it a moment to read that."""
        self._inbox.run_posted()  # a report of a recovery, for example
        self._send_and_flush("bye")

    def _send_and_flush(self, kind: str, **fields: object) -> None:
        self._channel.send(kind, **fields)
        deadline = self._clock.monotonic() + TICK_SECONDS
        while self._channel.pending and not self._channel.closed and self._clock.monotonic() < deadline:
            self._selector.select(STOP_POLL_SECONDS)
            self._channel.flush()

    def end(self, code: int) -> None:
        """Write the last lines of the log, and run exit handlers; the process ends without waiting for any thread."""
        if (guard := current_setup().beat_guard) is not None:
            guard.leave()
            guard.finish(self._seconds_to_end() / 2)
        if self._launcher is not None:
            self._launcher.parts.job_log.end()
        log.give_up_stuck_handlers(LOG_GRACE_SECONDS)
        run_exit_handlers(
            self._seconds_to_end(), code, lambda seconds: self._events.emit("exit_handlers_overdue", seconds=seconds)
        )

    def _seconds_to_end(self) -> float:
        """Return how long handlers may take at the end of this process."""
        if self._stopping.at is None:
            return EXIT_HANDLERS_SECONDS
        killed_at = self._stopping.at + STOP_GRACE_SECONDS  # by the supervisor
        return max(0.0, min(EXIT_HANDLERS_SECONDS, killed_at - TICK_SECONDS - self._clock.monotonic()))

    def _announce_identity(self, member: Member) -> None:
        """Tell the supervisor an identity before its first reserve."""
        if member.identity == self._announced_identity:  # a join is tried again while Redis is away
            return
        self._announced_identity = member.identity
        if threading.current_thread() is threading.main_thread():
            self._channel.send("hello", identity=member.identity)
            return
        told = threading.Event()

        def tell() -> None:
            self._channel.send("hello", identity=member.identity)
            told.set()

        self._inbox.post(tell)
        told.wait(TICK_SECONDS)
