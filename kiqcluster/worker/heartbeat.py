"""Heartbeat: how this process shows in Sidekiq's process registry, and hears from its web pages and from kiqctl.

Runs in: its own thread, independent of jobs; one beat every 10 s, or at once when it is rung.
1. publish    `processes`, `<identity>` and the running jobs, in every spelling that 6.4, 7 and 8 read; what the
              supervisor is doing, for kiqctl
2. watch      the set of queue names; the connection, for a fail-over comes with a new one and brings settled units back
3. tell       what jobs' runs add up to (executions.py)
4. listen     BLPOP on control messages and `<identity>-signals` until the next beat, so that a button acts at once

An idle fleet beats as well, so a beat sends no more than it must: running jobs only while there are any, or were.

Counterpart: sidekiq launcher.rb.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil

from kiqcluster import rubyjson
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.fleet import CLUSTER_FIELD, Message, prune
from kiqcluster.groups import Mode
from kiqcluster.keys import HEARTBEAT_TTL, Keys
from kiqcluster.payload import shown
from kiqcluster.runtime import Runtime
from kiqcluster.service import Service
from kiqcluster.store import Store
from kiqcluster.store.wire import Command, Reply
from kiqcluster.version import VERSION
from kiqcluster.wakeup import Wakeup
from kiqcluster.worker.processor import Running

__all__ = ["BEAT", "Heartbeat", "Status", "withdrawal"]

BEAT = 10.0  # seconds between beats (sidekiq launcher.rb, since 7.0)
ECHO = 0.5  # seconds from a remote signal to the beat that shows what it has changed
SHORTEST_WAIT = 0.001  # seconds; BLPOP takes 0 for ever
LISTEN_MARGIN = 5.0  # seconds that a BLPOP's reply may be late
CHECK_BEATS = 6  # beats between checks of what Redis holds for us, and between tries to prune
SHOWN_OF_MESSAGE = 100  # bytes of a malformed one that the log shows
RUNS_DOWN = "lease_remaining"  # member of a cluster's state that changes by itself

Ask = Callable[[Sequence[Command]], list[Any]]


def withdrawal(keys: Keys, identity: str) -> list[Command]:
    """Return the commands that take a process off Sidekiq's registry."""
    return [
        ("SREM", keys.processes, identity),
        ("UNLINK", keys.work(identity), keys.workers(identity), keys.process(identity)),
        ("HDEL", keys.beats, identity),
    ]


class Status:
    """What the heartbeat asks of the launcher at each beat; filled by it.  running: by the ids of the threads."""

    def __init__(
        self,
        identity: Callable[[], str],
        running: Callable[[], Mapping[str, Running]],
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
    on_doubt: told when Redis may hold other units for us than we think.  on_beat: does what is due at each beat.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        status: Status,
        on_signal: Callable[[str], None],
        on_message: Callable[[Message], None],
        on_names: Callable[[Sequence[str]], None],
        on_doubt: Callable[[], None],
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
        self._on_doubt = on_doubt
        self._on_beat = on_beat
        self._link = store.link()
        self._started_at = runtime.clock.now()
        self._process = psutil.Process()
        self._connection = 0  # number of the link's at the last beat
        self._rtt_us = 0
        self._beats = 0
        self._published: str | None = None
        self._has_shown_work = False  # there may be running jobs of ours in Redis
        self._bell = Wakeup()
        self._cluster: tuple[Mapping[str, Any], float] | None = None  # its state, and when we were told, monotonic

    def run(self) -> None:
        while not self.stopping.is_set():
            beat_at = self._runtime.clock.monotonic() + BEAT
            try:
                self.beat()
                self._listen(beat_at)
            except StoreError as error:
                self._runtime.trouble("heartbeat", error)
                self.pause(1.0)
        self._link.close()  # what waits on the server must take no message any more

    def beat(self) -> None:
        """Publish this process, and look at what others have published.  One round trip, now and then a few more."""
        self._beat(self._ask)

    def ring(self) -> None:
        """Beat soon; from any thread."""
        self._bell.ring()

    def show_cluster(self, state: Mapping[str, Any]) -> None:
        """Publish what the supervisor is doing: at once if that is new, else with the next beat; from any thread."""
        before, self._cluster = self._cluster, (state, self._runtime.clock.monotonic())
        if before is None or {**before[0], RUNS_DOWN: None} != {**state, RUNS_DOWN: None}:
            self.ring()

    def _beat(self, ask: Ask) -> None:
        identity = self._status.identity()
        if self._published not in (None, identity):
            self._withdraw(str(self._published))
        is_new, names = self._publish(identity, ask)
        is_known, self._published = self._published == identity, identity
        self._on_names([name.decode(errors="replace") for name in names])
        is_check_due = self._beats % CHECK_BEATS == 0
        self._beats += 1
        is_reconnected = self._is_reconnected()
        # If it is new again, nobody has seen us for a minute, and others may have recovered us.
        if is_reconnected or (is_known and (is_new or (is_check_due and self._holds_units(identity, ask)))):
            self._on_doubt()
        if is_check_due:
            prune(self._store)
        self._on_beat()
        self._runtime.fire("beat")
        if is_new:
            self._runtime.fire("heartbeat")

    def wake(self) -> None:
        self._bell.ring()
        self._link.close()

    def withdraw(self, seconds: float) -> None:
        """Take this process off the registry, as Sidekiq does at its end.  One round trip.  Raises StoreError."""
        self._store.link(timeout=seconds).exchange(withdrawal(self._store.keys, self._status.identity()))

    # 1. publish

    def _publish(self, identity: str, ask: Ask) -> tuple[bool, list[bytes]]:
        """Write the registry's keys; return whether they were not there before, and the queue names that Redis has.

        A process is listed after it has its fields: others drop one without.
        """
        keys, clock = self._store.keys, self._runtime.clock
        running = self._status.running()
        fields = self._fields(identity)
        commands: list[Command] = [
            ("HSET", keys.process(identity), *fields),
            ("EXPIRE", keys.process(identity), HEARTBEAT_TTL),
            ("SADD", keys.processes, identity),
            ("SMEMBERS", keys.queues),
        ]
        if running or self._has_shown_work:
            self._has_shown_work = True
            commands += self._work_commands(identity, running)
        before = clock.monotonic()
        replies = ask(commands)
        self._rtt_us = int((clock.monotonic() - before) * 1e6)
        self._has_shown_work = bool(running)
        return 2 * replies[0] == len(fields), replies[3]

    def _work_commands(self, identity: str, running: Mapping[str, Running]) -> Iterator[Command]:
        """Yield what replaces the running jobs in one step: a page is never shown half of them."""
        keys = self._store.keys
        work = [word for tid, each in running.items() for word in (tid, self._work(each))]
        yield ("MULTI",)
        for key in (keys.work(identity), keys.workers(identity)):
            yield ("UNLINK", key)
            if work:
                yield ("HSET", key, *work)
                yield ("EXPIRE", key, HEARTBEAT_TTL)
        yield ("EXEC",)

    def _work(self, running: Running) -> bytes:
        """Return a running job so that no busy page breaks on it, whatever is in its payload."""
        unit = running.unit
        payload = shown(unit.payload, unit.queue, running.since)
        return rubyjson.encode({"queue": unit.queue, "payload": payload.decode(), "run_at": int(running.since)})

    def _fields(self, identity: str) -> list[str | bytes | int]:
        """Return the fields of `<identity>`; each is read by some version of Sidekiq (reference §2.5)."""
        weights, mode = self._status.queues()
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
        }
        return [
            *("info", rubyjson.encode(info)),
            *("concurrency", concurrency),
            *("busy", self._status.busy()),
            *("beat", repr(self._runtime.clock.now())),
            *("quiet", "true" if self._status.is_quiet() else "false"),
            *("rss", self._process.memory_info().rss // 1024),
            *("rtt_us", self._rtt_us),
            *self._cluster_field(),
        ]

    def _cluster_field(self) -> tuple[str | bytes, ...]:
        if self._cluster is None:
            return ()
        state, told_at = self._cluster
        if (left := state.get(RUNS_DOWN)) is not None:
            state = {**state, RUNS_DOWN: max(0.0, left - (self._runtime.clock.monotonic() - told_at))}
        return CLUSTER_FIELD, rubyjson.encode(state)

    def _withdraw(self, identity: str) -> None:
        self._store.pipeline(withdrawal(self._store.keys, identity))

    # 2. watch

    def _is_reconnected(self) -> bool:
        """Return whether another server may answer than at the last beat: on the same connection none does."""
        before, self._connection = self._connection, self._link.connections
        return before not in (0, self._connection)

    def _holds_units(self, identity: str, ask: Ask) -> bool:
        """Return whether Redis holds units for us.  If we hold none, a proxy has changed servers behind our back."""
        (found,) = ask([("EXISTS", self._store.keys.inflight(identity))])
        return bool(found)

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands on the heartbeat's own connection; raises the first refusal."""
        replies = self._link.exchange(commands)
        for reply in replies:
            if isinstance(reply, RedisRefused):
                raise reply
        return replies

    # 4. listen

    def _listen(self, until: float) -> None:
        """Wait for messages and remote signals until the next beat is due."""
        keys, clock, identity = self._store.keys, self._runtime.clock, self._status.identity()
        control, signals = keys.control(identity), keys.signals(identity)
        while (left := until - clock.monotonic()) > 0 and not self.stopping.is_set():
            self._link.send(("BLPOP", control, signals, f"{max(left, SHORTEST_WAIT):.3f}"))
            reply = self._await_reply(clock.monotonic() + left + LISTEN_MARGIN)
            if reply is not None:
                name, word = reply
                self._on_signal(word.decode(errors="replace")) if name == signals.encode() else self._hear(word)
                until = min(until, clock.monotonic() + ECHO)  # who pressed the button looks at the page

    def _await_reply(self, deadline: float) -> Reply:
        """Return the reply to what was sent; None when there is none, for this thread is to stop.

        If it is rung meanwhile it beats, over another connection.
        """
        while not self.stopping.is_set():
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0:
                self._link.close()
                raise ReplyLost("Redis did not answer in time")
            self._wait_for_either(left)
            if self._bell.was_rung():
                self._beat_beside()
            for reply in self._link.receive():
                if isinstance(reply, Exception):
                    raise reply
                return reply
        return None

    def _beat_beside(self) -> None:
        """Beat over another connection; what fails waits for the next beat, for what is listened for is on its way."""
        try:
            self._beat(self._store.pipeline)
        except StoreError as error:
            self._runtime.trouble("heartbeat", error)

    def _wait_for_either(self, seconds: float) -> None:
        """Wait until something arrives, or the bell rings."""
        poll = select.poll()
        for number in (self._bell.fileno(), self._link.fileno()):
            if number >= 0:  # the link may be closed by now, to stop us
                poll.register(number, select.POLLIN)
        poll.poll(seconds * 1_000)

    def _hear(self, raw: bytes) -> None:
        """Pass a control message on; what is none is said and dropped: nobody's job is in it."""
        try:
            message = Message.read(raw)
        except ValueError as error:
            self._runtime.events.emit("control_malformed", error=str(error), raw=repr(raw[:SHOWN_OF_MESSAGE]))
        else:
            self._on_message(message)
