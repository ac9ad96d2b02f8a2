"""Heartbeat: publishes this process in Sidekiq's process registry, and receives orders of web pages and of kiqctl.

Runs in: its own thread, independent of jobs; one beat every 10 s, and at once on `beat_soon`.
1. publish    `processes`, `<identity>` and the running jobs (process_entry.py); the supervisor's state, for kiqctl;
              stacks that somebody has asked for;
              the same round trip reads the strikes, and which jobs and batches are cancelled
2. watch      the set of queue names; the connection, for a fail-over comes with a new one and brings settled units back
3. write      the execution metrics (metrics/execution_metrics.py)
4. listen     BLPOP on control messages and `<identity>-signals` until the next beat, so that a button acts at once

An idle fleet beats as well, so a beat sends no more than it must: running jobs only while there are any, or were;
`info` when it has changed or Redis has lost it, and with every BEATS_PER_CHECK-th beat.

Counterpart: sidekiq launcher.rb.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kiqcluster.control.control_messages import CANCEL, Message
from kiqcluster.control.stacks import STACKS_TTL_SECONDS, Stacks, encode_stacks
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.ipc.signal_pipe import SignalPipe
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.keys import HEARTBEAT_TTL_SECONDS
from kiqcluster.store import Connection, is_outage
from kiqcluster.store.engine.engine import MAX_NAMES
from kiqcluster.store.scripts import PUBLISH, Call, Word, run_scripts
from kiqcluster.store.wire import Command, ErrorReply, Reply
from kiqcluster.worker.fleet_checks import FleetChecks
from kiqcluster.worker.process_entry import ProcessEntry, Status, withdrawal
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["BEAT_SECONDS", "Heartbeat", "HeartbeatCallbacks"]

BEAT_SECONDS = 10.0  # between beats (sidekiq launcher.rb, since 7.0)
BEAT_AFTER_SIGNAL_SECONDS = 0.5  # from a remote signal to the beat that shows what it has changed
MIN_BLPOP_SECONDS = 0.001  # BLPOP takes 0 for ever
BLPOP_MARGIN_SECONDS = 5.0  # that a BLPOP's reply may be late
IDLE_CONNECTION_SECONDS = 30.0  # after which an unused connection is closed: a fleet has many
BEATS_PER_CHECK = 6  # beats between checks of what Redis holds for us, and of others
FIRST_CURSOR = b"0"
MAX_NAME_PAGES = 20  # of queue names that one beat reads, MAX_NAMES each
MAX_LOGGED_MESSAGE_BYTES = 100  # of a malformed message

Ids = list[bytes] | bytes  # or why nobody can read them
Lend = Callable[[], AbstractContextManager[Connection]]  # a connection to beat over


@dataclass(frozen=True, slots=True)
class HeartbeatCallbacks:
    """Functions that a heartbeat calls.

    on_signal: with the name of a remote signal.  on_message: with a control message.
    on_names: with the queue names that Redis knows.
    on_strikes: with the strikes that Redis holds, id → value; and why these are not all, "" if they are.
    on_cancelled: with the ids of cancelled jobs, and of cancelled batches, that Redis holds; and why some cannot be
    read, "" if all can.
    on_uncertain: when Redis may hold other units for this process than it thinks.  on_beat: at each beat.
    """

    on_signal: Callable[[str], None]
    on_message: Callable[[Message], None]
    on_names: Callable[[Sequence[str]], None]
    on_strikes: Callable[[Mapping[bytes, bytes], str], None]
    on_cancelled: Callable[[Sequence[str], Sequence[str], str], None]
    on_uncertain: Callable[[], None]
    on_beat: Callable[[], None]


class Heartbeat(Service):
    """Publishes one process, and listens for it."""

    def __init__(
        self,
        runtime: Runtime,
        status: Status,
        callbacks: HeartbeatCallbacks,
        on_crash: Callable[[str, Exception], None],
        bell: SignalPipe | None = None,
    ) -> None:
        """bell: its `wake` has it beat soon, from any thread; None for one of its own."""
        super().__init__("heartbeat", on_crash)
        self._runtime = runtime
        self._store = runtime.store
        self._status = status
        self._callbacks = callbacks
        self._entry = ProcessEntry(status, runtime.clock)
        self._checks = FleetChecks(runtime, status.application, status.names)
        self._connection = runtime.store.connection()
        self._connect_count = 0  # of the connection, at the last beat
        self._beats = 0
        self._published: str | None = None
        self._info = b""  # as Redis has it, if nobody has tampered with it
        self._refusals: dict[str, str] = {}  # by the request that Redis refuses
        self._names_cursor = FIRST_CURSOR  # where the next look at the queue names begins
        self._has_shown_work = False  # there may be running jobs of ours in Redis
        self._is_announced = False
        self._bell = SignalPipe() if bell is None else bell

    def run(self) -> None:
        self._runtime.begin_to_beat()
        while not self.stopping.is_set():
            beat_at = self._runtime.clock.monotonic() + BEAT_SECONDS
            try:
                self.beat()
                self._refusals.pop("heartbeat", None)
                self._listen(beat_at)
            except StoreError as error:
                self._log_refusal("heartbeat", error)
                self.pause(1.0)
        self._connection.close()  # what waits on the server must take no message any more

    def announce(self) -> None:
        """Publish this process before its first beat, so that it is visible once it is ready.  One round trip."""
        try:
            self._is_announced = self._publish(self._status.identity(), self._lend_own)
        except StoreError as error:
            self._log_refusal("heartbeat", error)

    def beat(self) -> None:
        """Publish this process, and look at what others have published.  Two round trips, now and then a few more."""
        self._beat(self._lend_own)

    def close_after_fork(self) -> None:
        """Close the bell in a forked process; the store closes the connection."""
        self._bell.close()

    def descriptors(self) -> tuple[int, int]:
        """Return the numbers of the descriptors that wake it."""
        return self._bell.descriptors()

    def beat_soon(self) -> None:
        """Beat soon; from any thread."""
        self._bell.wake()

    def publish_cluster(self, state: Mapping[str, Any]) -> None:
        """Publish the supervisor's state: at once if it has changed, else with the next beat; from any thread."""
        if self._entry.set_cluster(state):
            self.beat_soon()

    def publish_stacks(self, identity: str, stacks: str) -> None:
        """Keep the stacks of a process in Redis for a while; identity: "" for this one.  From any thread."""
        told = Stacks(self._runtime.clock.now(), stacks, is_own=not identity)
        self._entry.stacks[identity or self._status.identity()] = encode_stacks(told)
        self.beat_soon()

    def _lend_own(self) -> AbstractContextManager[Connection]:
        return nullcontext(self._connection)

    def _beat(self, lend: Lend) -> None:
        identity = self._status.identity()
        if self._published not in (None, identity):
            self._withdraw(str(self._published))
        is_new = self._publish(identity, lend) or self._is_announced
        self._is_announced = False
        is_known, self._published = self._published == identity, identity
        self._write_stacks(lend)
        self._read_queue_names(lend)
        is_check_due = self._beats % BEATS_PER_CHECK == 0
        self._beats += 1
        is_reconnected = self._is_reconnected()
        # If it is new again, nobody has seen us for a minute, and others may have recovered us.
        if is_reconnected or (is_known and (is_new or (is_check_due and self._holds_units(identity, lend)))):
            self._callbacks.on_uncertain()
        if is_check_due:
            self._checks.check_processes()
        self._store.close_idle(IDLE_CONNECTION_SECONDS)
        self._callbacks.on_beat()
        self._runtime.run_beat_hooks("beat")
        if is_new:
            self._runtime.run_beat_hooks("heartbeat")

    def wake(self) -> None:
        self._bell.wake()
        self._connection.close()

    def withdraw(self, seconds: float) -> None:
        """Take this process off the registry, as Sidekiq does at its end.  One round trip.  Raises StoreError."""
        self._store.connection(timeout=seconds).exchange(withdrawal(self._store.keys, self._status.identity()))

    # 1. publish

    def _publish(self, identity: str, lend: Lend) -> bool:
        """Write the registry's keys; return whether they were not there before."""
        running, info = self._status.running(), self._entry.describe(identity)
        shows_info = info != self._info or self._beats % BEATS_PER_CHECK == 0
        fields = [*(("info", info) if shows_info else ()), *self._entry.fields()]
        shows_work = self._has_shown_work = bool(running) or self._has_shown_work
        before = self._runtime.clock.monotonic()
        added, *time, strikes, why, jids, batches = self._write(lend, identity, fields, running if shows_work else None)
        self._entry.rtt_us = int((self._runtime.clock.monotonic() - before) * 1e6)
        self._has_shown_work = bool(running)
        self._checks.compare_clocks(*time)
        self._callbacks.on_strikes(dict(zip(strikes[::2], strikes[1::2], strict=True)), why.decode(errors="replace"))
        self._pass_cancelled(jids, batches)
        is_new, self._info = bool(2 * added == len(fields)), info
        if is_new and not shows_info:  # it has expired meanwhile
            self._write(lend, identity, ["info", info], None)
        return is_new

    def _write(
        self, lend: Lend, identity: str, fields: Sequence[Word], running: Mapping[str, JobRun] | None
    ) -> list[Any]:
        """Write fields of this process, and what it runs, None to leave that as it is; return what publish.lua does."""
        keys = self._store.keys
        names, work = [keys.processes, keys.process(identity), keys.strikes], list[Word]()
        names += (keys.cancelled, keys.batches_cancelled)
        if running is not None:
            names += (keys.work(identity), keys.workers(identity))
            work = [word for tid, each in running.items() for word in (tid, self._entry.work(each))]
        call = Call(PUBLISH, names, [identity, HEARTBEAT_TTL_SECONDS, len(fields), *fields, *work])
        with lend() as connection:
            found: list[Any] = run_scripts(connection, [call])[0]
        return found

    def _write_stacks(self, lend: Lend) -> None:
        """Write the stacks that somebody has asked for; a refusal (memory) is reported once, and stops no beat."""
        for identity, told in list(self._entry.stacks.items()):
            try:
                self._ask(lend, ("SET", self._store.keys.stacks(identity), told, "EX", STACKS_TTL_SECONDS))
            except RedisRefused as error:
                if is_outage(error):
                    raise
                self._log_refusal("stacks", error)
            if self._entry.stacks.get(identity) is told:
                del self._entry.stacks[identity]

    def _pass_cancelled(self, jids: Ids, batches: Ids) -> None:
        """Pass on which jobs and batches are cancelled."""
        keys, found, why = self._store.keys, [], ""
        for key, ids in ((keys.cancelled, jids), (keys.batches_cancelled, batches)):
            if isinstance(ids, bytes):
                why = why or f"{ids.decode(errors='replace')} (key {key})"
            found.append([] if isinstance(ids, bytes) else [each.decode(errors="replace") for each in ids])
        self._callbacks.on_cancelled(found[0], found[1], why)

    def _read_cancelled(self) -> None:
        """Ask Redis which jobs and batches are cancelled, and pass it on.  One round trip."""
        keys = (self._store.keys.cancelled, self._store.keys.batches_cancelled)
        with self._lend_own() as connection:
            replies = connection.exchange_each([("ZRANGE", key, 0, -1) for key in keys])
        for reply in replies:
            if isinstance(reply, ErrorReply) and is_outage(reply):
                raise reply
        self._pass_cancelled(*(str(each).encode() if isinstance(each, ErrorReply) else each for each in replies))

    def _withdraw(self, identity: str) -> None:
        with self._store.borrowed() as connection:  # a refusal is about a broken key; beats say that
            connection.exchange_each(withdrawal(self._store.keys, identity))

    # 2. watch

    def _names_command(self) -> Command:
        """Return what asks for queue names: all where they are few, else those that come next."""
        return "SSCAN", self._store.keys.queues, self._names_cursor, "COUNT", MAX_NAMES

    def _read_queue_names(self, lend: Lend) -> None:
        """Pass queue names on, a page at a time; one beat reads MAX_NAME_PAGES, and the next one goes on.

        A set that cannot be read is reported once, and stops no beat.
        """
        for _ in range(MAX_NAME_PAGES):
            try:
                self._names_cursor, names = self._ask(lend, self._names_command())
            except RedisRefused as error:
                if is_outage(error):
                    raise
                self._log_refusal("queue names", error)
                return
            self._callbacks.on_names([name.decode(errors="replace") for name in names])
            if self._names_cursor == FIRST_CURSOR:
                return

    def _log_refusal(self, about: str, error: StoreError) -> None:
        """Report a refusal; once, until Redis refuses something else or agrees.  The fetch reports outages."""
        if isinstance(error, RedisRefused) and self._refusals.get(about) != str(error):
            self._refusals[about] = str(error)
            self._runtime.trouble(about, error)

    def _is_reconnected(self) -> bool:
        """Return whether another server may answer than at the last beat: on the same connection none does."""
        before, self._connect_count = self._connect_count, self._connection.connect_count
        return before not in (0, self._connect_count)

    def _holds_units(self, identity: str, lend: Lend) -> bool:
        """Return whether Redis holds units for us.  If we hold none, a proxy has changed servers behind our back."""
        return bool(self._ask(lend, ("EXISTS", self._store.keys.inflight(identity))))

    def _ask(self, lend: Lend, command: Command) -> Any:
        """Run a command and return its reply; raises a refusal."""
        with lend() as connection:
            return connection.exchange([command])[0]

    # 4. listen

    def _listen(self, until: float) -> None:
        """Wait for messages and remote signals until the next beat is due."""
        keys, clock = self._store.keys, self._runtime.clock
        while (left := until - clock.monotonic()) > 0 and not self.stopping.is_set():
            identity = self._status.identity()
            control, signals = keys.control(identity), keys.signals(identity)
            self._connection.send(("BLPOP", control, signals, f"{max(left, MIN_BLPOP_SECONDS):.3f}"))
            reply = self._await_reply(clock.monotonic() + left + BLPOP_MARGIN_SECONDS, identity)
            if reply is not None:
                name, word = reply
                if name == signals.encode():
                    self._callbacks.on_signal(word.decode(errors="replace"))
                else:
                    self._on_raw_message(word)
                # Whoever pressed the button looks at the page.
                until = min(until, clock.monotonic() + BEAT_AFTER_SIGNAL_SECONDS)

    def _await_reply(self, deadline: float, identity: str) -> Reply:
        """Return the reply to the command that was sent; None if nobody wants it any more.

        That is so when this thread is to stop, and when the process has another identity than the one it waits for.
        A beat that is asked for meanwhile goes over another connection.
        """
        while not self.stopping.is_set():
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0:
                self._connection.close()
                raise ReplyLost("Redis did not answer in time")
            self._wait_for_either(left)
            if self._bell.was_woken():
                self._beat_on_other_connection()
                if self._status.identity() != identity:
                    self._connection.close()
                    return None
            for reply in self._connection.receive():
                if isinstance(reply, ErrorReply):
                    raise reply
                return reply
        return None

    def _beat_on_other_connection(self) -> None:
        """Beat over another connection; a failure waits for the next beat, because a reply is still expected here."""
        try:
            self._beat(self._store.borrowed)
        except StoreError as error:
            self._log_refusal("heartbeat", error)

    def _wait_for_either(self, seconds: float) -> None:
        """Wait until something arrives, or a beat is asked for."""
        poll = select.poll()
        for number in (self._bell.fileno(), self._connection.fileno()):
            if number >= 0:  # the connection may be closed by now, to stop us
                poll.register(number, select.POLLIN)
        poll.poll(seconds * 1_000)

    def _on_raw_message(self, raw: bytes) -> None:
        """Pass a control message on.  Other bytes are reported and dropped; no job is in them."""
        try:
            message = Message.read(raw)
        except ValueError as error:
            self._runtime.events.emit("control_malformed", error=str(error), raw=repr(raw[:MAX_LOGGED_MESSAGE_BYTES]))
        else:
            if message.action == CANCEL:
                self._read_cancelled()
                return
            self._callbacks.on_message(message)
