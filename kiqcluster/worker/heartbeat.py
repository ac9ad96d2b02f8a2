"""Heartbeat: how this process shows in Sidekiq's process registry, and hears from its web pages and from kiqctl.

Runs in: its own thread, independent of jobs; one beat every 10 s, and at once on `beat_soon`.
1. publish    `processes`, `<identity>` and the running jobs, in every spelling that 6.4, 7 and 8 read; what the
              supervisor is doing, for kiqctl
2. watch      the set of queue names; the connection, for a fail-over comes with a new one and brings settled units back
3. write      the execution metrics (metrics/execution_metrics.py)
4. listen     BLPOP on control messages and `<identity>-signals` until the next beat, so that a button acts at once

An idle fleet beats as well, so a beat sends no more than it must: running jobs only while there are any, or were;
`info` when it has changed or Redis has lost it, and with every BEATS_PER_CHECK-th beat.

Counterpart: sidekiq launcher.rb.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import Any

import psutil

from kiqcluster.control.control_messages import Message
from kiqcluster.control.process_registry import CLUSTER_FIELD, SUPERVISOR_FIELD, prune
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.process.signal_pipe import SignalPipe
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import HEARTBEAT_TTL_SECONDS, Keys
from kiqcluster.sidekiq.payload import peek, shown
from kiqcluster.sidekiq.queue_groups import Mode
from kiqcluster.store import Connection, Store, is_outage
from kiqcluster.store.engine import MAX_NAMES
from kiqcluster.store.scripts import PUBLISH, Call, Word, run_scripts
from kiqcluster.store.wire import Command, Reply, about_keys
from kiqcluster.version import VERSION
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["BEAT_SECONDS", "Heartbeat", "Status", "withdrawal"]

BEAT_SECONDS = 10.0  # between beats (sidekiq launcher.rb, since 7.0)
BEAT_AFTER_SIGNAL_SECONDS = 0.5  # from a remote signal to the beat that shows what it has changed
MIN_BLPOP_SECONDS = 0.001  # BLPOP takes 0 for ever
BLPOP_MARGIN_SECONDS = 5.0  # that a BLPOP's reply may be late
IDLE_CONNECTION_SECONDS = 30.0  # after which an unused connection is closed: a fleet has many
BEATS_PER_CHECK = 6  # beats between checks of what Redis holds for us, and between tries to prune
FIRST_CURSOR = b"0"
MAX_NAME_PAGES = 20  # of queue names that one beat reads, MAX_NAMES each
MAX_SHOWN_BYTES = 100_000  # of a running job; a beat sends it twice every ten seconds
MAX_SKEW_SECONDS = 30.0  # that two clocks may differ; a caller further ahead is not believed (server_clock.lua)
MAX_SHOWN_QUEUES = 1_000  # that a process names in Redis; those who look know how many it omits
MAX_RUBY_PROCESSES_CHECKED = 5  # processes that are looked at with each check, so that a large fleet costs no more
MAX_LOGGED_MESSAGE_BYTES = 100  # of a malformed message
COUNTDOWN_MEMBER = "lease_remaining"  # member of a cluster's state that changes by itself

Lend = Callable[[], AbstractContextManager[Connection]]  # a connection to beat over


def withdrawal(keys: Keys, identity: str) -> list[Command]:
    """Return the commands that take a process off Sidekiq's registry."""
    return [
        ("SREM", keys.processes, identity),
        ("UNLINK", keys.work(identity), keys.workers(identity), keys.process(identity)),
        ("ZREM", keys.beats, identity),
        ("HDEL", keys.beats_of_format_1, identity),
    ]


def ruby_version(info: bytes | None) -> str:
    """Return the version of the Sidekiq that wrote this `info`; "" for our processes and for other bytes."""
    try:
        facts = ruby_json.decode(info or b"{}")
    except ruby_json.Undecodable:
        return ""
    if not isinstance(facts, dict) or "kiqcluster" in (facts.get("labels") or ()):
        return ""
    return str(facts.get("version") or "")


def contradicts(sidekiq: str, ruby_json: str) -> bool:
    """Return whether this version of Sidekiq comes with a json gem that writes floats otherwise than the setting says.

    8.1 requires json 2.16; those before 7 are of Rubies that come with json 2.6 or earlier.  7 and 8.0 may have either.
    """
    digits = [part for part in sidekiq.split(".")[:2] if part.isdigit()]
    if len(digits) < 2:
        return False
    release = int(digits[0]), int(digits[1])
    return release >= (8, 1) if ruby_json == "2.6" else release < (7, 0)


class Status:
    """Functions of the launcher that each beat calls.  running: returns runs by the ids of their threads."""

    def __init__(
        self,
        identity: Callable[[], str],
        running: Callable[[], Mapping[str, JobRun]],
        busy: Callable[[], int],
        is_quiet: Callable[[], bool],
        queues: Callable[[], tuple[dict[str, int], Mode]],
        concurrency: int,
        tag: str,
    ) -> None:
        self.identity = identity
        self.running = running
        self.busy = busy
        self.is_quiet = is_quiet
        self.queues = queues
        self.concurrency = concurrency
        self.tag = tag


class Heartbeat(Service):
    """on_signal: told the name of a remote signal.  on_message: told a control message.
    on_names: told the queue names that Redis knows.
    on_uncertain: told when Redis may hold other units for us than we think.  on_beat: does what is due at each beat.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        status: Status,
        on_signal: Callable[[str], None],
        on_message: Callable[[Message], None],
        on_names: Callable[[Sequence[str]], None],
        on_uncertain: Callable[[], None],
        on_crash: Callable[[str, Exception], None],
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("heartbeat", on_crash)
        self._runtime = runtime
        self._store = store
        self._status = status
        self._on_signal = on_signal
        self._on_message = on_message
        self._on_names = on_names
        self._on_uncertain = on_uncertain
        self._on_beat = on_beat
        self._connection = store.connection()
        self._started_at = runtime.clock.now()
        self._process = psutil.Process()
        self._rss = 0  # kilobytes, at the last beat
        self._connect_count = 0  # of the connection, at the last beat
        self._rtt_us = 0
        self._beats = 0
        self._published: str | None = None
        self._info = b""  # as Redis has it, if nobody has tampered with it
        self._refusals: dict[str, str] = {}  # what Redis refuses, by what it was asked for
        self._names_cursor = FIRST_CURSOR  # where the next look at the queue names begins
        self._has_shown_work = False  # there may be running jobs of ours in Redis
        self._has_warned_of_json = self._is_skewed = self._is_announced = False
        self._signal_pipe = SignalPipe()
        self._cluster: tuple[Mapping[str, Any], float] | None = None  # its state, and when we were told, monotonic

    def run(self) -> None:
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
            self._is_announced = self._publish(self._status.identity(), lambda: nullcontext(self._connection))
        except StoreError as error:
            self._log_refusal("heartbeat", error)

    def beat(self) -> None:
        """Publish this process, and look at what others have published.  Two round trips, now and then a few more."""
        self._beat(lambda: nullcontext(self._connection))

    def close_after_fork(self) -> None:
        """Close the signal pipe in a forked process; the store closes the connection."""
        self._signal_pipe.close()

    def descriptors(self) -> tuple[int, int]:
        """Return the numbers of the descriptors that wake it."""
        return self._signal_pipe.descriptors()

    def beat_soon(self) -> None:
        """Beat soon; from any thread."""
        self._signal_pipe.wake()

    def publish_cluster(self, state: Mapping[str, Any]) -> None:
        """Publish the supervisor's state: at once if it has changed, else with the next beat; from any thread."""
        before, self._cluster = self._cluster, (state, self._runtime.clock.monotonic())
        if before is None or {**before[0], COUNTDOWN_MEMBER: None} != {**state, COUNTDOWN_MEMBER: None}:
            self.beat_soon()

    def _beat(self, lend: Lend) -> None:
        identity = self._status.identity()
        if self._published not in (None, identity):
            self._withdraw(str(self._published))
        is_new = self._publish(identity, lend) or self._is_announced
        self._is_announced = False
        is_known, self._published = self._published == identity, identity
        self._read_queue_names(lend)
        is_check_due = self._beats % BEATS_PER_CHECK == 0
        self._beats += 1
        is_reconnected = self._is_reconnected()
        # If it is new again, nobody has seen us for a minute, and others may have recovered us.
        if is_reconnected or (is_known and (is_new or (is_check_due and self._holds_units(identity, lend)))):
            self._on_uncertain()
        if is_check_due:
            self._prune()
            self._check_ruby_processes()
        self._store.close_idle(IDLE_CONNECTION_SECONDS)
        self._on_beat()
        self._runtime.run_hooks("beat")
        if is_new:
            self._runtime.run_hooks("heartbeat")

    def wake(self) -> None:
        self._signal_pipe.wake()
        self._connection.close()

    def withdraw(self, seconds: float) -> None:
        """Take this process off the registry, as Sidekiq does at its end.  One round trip.  Raises StoreError."""
        self._store.connection(timeout=seconds).exchange(withdrawal(self._store.keys, self._status.identity()))

    # 1. publish

    def _publish(self, identity: str, lend: Lend) -> bool:
        """Write the registry's keys; return whether they were not there before."""
        running, info = self._status.running(), self._describe(identity)
        shows_info = info != self._info or self._beats % BEATS_PER_CHECK == 0
        fields = [*(("info", info) if shows_info else ()), *self._fields()]
        shows_work = self._has_shown_work = bool(running) or self._has_shown_work
        before = self._runtime.clock.monotonic()
        added, *time = self._write(lend, identity, fields, running if shows_work else None)
        self._rtt_us = int((self._runtime.clock.monotonic() - before) * 1e6)
        self._has_shown_work = bool(running)
        self._compare_clocks(*time)
        is_new, self._info = 2 * added == len(fields), info
        if is_new and not shows_info:  # it has expired meanwhile
            self._write(lend, identity, ["info", info], None)
        return is_new

    def _write(
        self, lend: Lend, identity: str, fields: Sequence[Word], running: Mapping[str, JobRun] | None
    ) -> list[int]:
        """Write fields of this process, and what it runs, None to leave that as it is; return what publish.lua does."""
        keys = self._store.keys
        names, work = [keys.processes, keys.process(identity)], list[Word]()
        if running is not None:
            names += (keys.work(identity), keys.workers(identity))
            work = [word for tid, each in running.items() for word in (tid, self._work(each))]
        call = Call(PUBLISH, names, [identity, HEARTBEAT_TTL_SECONDS, len(fields), *fields, *work])
        with lend() as connection:
            (reply,) = run_scripts(connection, [call])
        if isinstance(reply, RedisRefused):
            raise about_keys(reply, names)
        found: list[int] = reply
        return found

    def _work(self, run: JobRun) -> bytes:
        """Return a running job so that no busy page breaks on it, whatever is in its payload."""
        unit = run.unit
        raw = unit.payload
        if len(raw) > MAX_SHOWN_BYTES:
            name, jid = peek(raw)
            raw = ruby_json.encode({"class": name, "jid": jid, "args": [f"({len(raw)} bytes, not shown)"]})
        payload = shown(raw, unit.queue, run.since)
        return ruby_json.encode({"queue": unit.queue, "payload": payload.decode(), "run_at": int(run.since)})

    def _describe(self, identity: str) -> bytes:
        """Return the field `info`, each member of which is read by some version of Sidekiq (reference §2.5).

        `omitted_queues` is ours: how many queues it does not name.
        """
        all_weights, mode = self._status.queues()
        weights = dict(islice(all_weights.items(), MAX_SHOWN_QUEUES))
        omitted = len(all_weights) - len(weights)
        concurrency = self._status.concurrency
        shown = dict.fromkeys(weights, 0) if mode == "strict" else weights
        info = {
            "hostname": os.environ.get("DYNO") or socket.gethostname(),
            "started_at": self._started_at,
            "pid": os.getpid(),
            "tag": self._status.tag,
            "concurrency": concurrency,
            "queues": list(weights),
            "weights": [shown],
            "labels": ["kiqcluster"],
            "identity": identity,
            "version": VERSION,
            "embedded": False,
            "capsules": {"default": {"concurrency": concurrency, "mode": mode, "weights": shown}},
            **({"omitted_queues": omitted} if omitted else {}),
        }
        return ruby_json.encode(info)

    def _fields(self) -> list[str | bytes | int]:
        """Return the other fields of `<identity>`."""
        return [
            *("concurrency", self._status.concurrency),
            *("busy", self._status.busy()),
            *("beat", repr(self._runtime.clock.now())),
            *("quiet", "true" if self._status.is_quiet() else "false"),
            *("rss", self._resident_kilobytes()),
            *("rtt_us", self._rtt_us),
            *self._cluster_fields(),
        ]

    def _resident_kilobytes(self) -> int:
        """Return the memory that this process uses; what it used at an earlier beat where no descriptor is left."""
        with suppress(OSError):
            self._rss = self._process.memory_info().rss // 1024
        return self._rss

    def _cluster_fields(self) -> tuple[str | bytes, ...]:
        if self._cluster is None:
            return ()
        state, told_at = self._cluster
        if (left := state.get(COUNTDOWN_MEMBER)) is not None:
            state = {**state, COUNTDOWN_MEMBER: max(0.0, left - (self._runtime.clock.monotonic() - told_at))}
        news = f"{state.get('at', 0.0)!r} {state.get('supervisor', '')}"
        return CLUSTER_FIELD, ruby_json.encode(state), SUPERVISOR_FIELD, news

    def _withdraw(self, identity: str) -> None:
        with self._store.borrowed() as connection:  # a refusal is about a broken key; beats say that
            connection.exchange(withdrawal(self._store.keys, identity))

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
            self._on_names([name.decode(errors="replace") for name in names])
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

    def _prune(self) -> None:
        """Drop processes that are gone; a refusal (memory) is reported once, and stops no beat."""
        try:
            prune(self._store)
            self._refusals.pop("prune", None)
        except RedisRefused as error:
            if is_outage(error):
                raise
            self._log_refusal("prune", error)

    def _compare_clocks(self, seconds: int, microseconds: int) -> None:
        """Say when this host's clock and Redis' begin to differ by more than MAX_SKEW_SECONDS."""
        skew = self._runtime.clock.now() - (seconds + microseconds / 1e6)
        is_skewed = abs(skew) > MAX_SKEW_SECONDS
        if is_skewed and not self._is_skewed:
            direction = "ahead of" if skew > 0 else "behind"
            self._runtime.events.emit("clock_skewed", seconds=abs(skew), direction=direction)
        self._is_skewed = is_skewed

    def _check_ruby_processes(self) -> None:
        """Warn once if a Ruby process writes floats otherwise than the setting says.  Checks a few at random."""
        if self._has_warned_of_json:
            return
        keys = self._store.keys
        identities = self._store.call("SRANDMEMBER", keys.processes, MAX_RUBY_PROCESSES_CHECKED)
        names = [name.decode(errors="replace") for name in identities]
        infos = self._store.pipeline([("HGET", keys.process(name), "info") for name in names]) if names else []
        setting = self._runtime.config.ruby_json
        for name, info in zip(names, infos, strict=True):
            version = ruby_version(info)
            if version and contradicts(version, setting):
                self._has_warned_of_json = True
                self._runtime.events.emit("ruby_json_doubtful", identity=name, sidekiq=version, setting=setting)
                return

    def _ask(self, lend: Lend, command: Command) -> Any:
        """Run a command and return its reply; raises a refusal."""
        with lend() as connection:
            (reply,) = connection.exchange([command])
        if isinstance(reply, RedisRefused):
            raise about_keys(reply, command[1:2])
        return reply

    # 4. listen

    def _listen(self, until: float) -> None:
        """Wait for messages and remote signals until the next beat is due."""
        keys, clock, identity = self._store.keys, self._runtime.clock, self._status.identity()
        control, signals = keys.control(identity), keys.signals(identity)
        while (left := until - clock.monotonic()) > 0 and not self.stopping.is_set():
            self._connection.send(("BLPOP", control, signals, f"{max(left, MIN_BLPOP_SECONDS):.3f}"))
            reply = self._await_reply(clock.monotonic() + left + BLPOP_MARGIN_SECONDS)
            if reply is not None:
                name, word = reply
                if name == signals.encode():
                    self._on_signal(word.decode(errors="replace"))
                else:
                    self._on_raw_message(word)
                # Whoever pressed the button looks at the page.
                until = min(until, clock.monotonic() + BEAT_AFTER_SIGNAL_SECONDS)

    def _await_reply(self, deadline: float) -> Reply:
        """Return the reply to the command that was sent; None if this thread is to stop before it arrives.

        A beat that is asked for meanwhile goes over another connection.
        """
        while not self.stopping.is_set():
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0:
                self._connection.close()
                raise ReplyLost("Redis did not answer in time")
            self._wait_for_either(left)
            if self._signal_pipe.was_woken():
                self._beat_on_other_connection()
            for reply in self._connection.receive():
                if isinstance(reply, Exception):
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
        for number in (self._signal_pipe.fileno(), self._connection.fileno()):
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
            self._on_message(message)
