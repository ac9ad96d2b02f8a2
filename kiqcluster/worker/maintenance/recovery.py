"""Recovery: gives the units of dead processes back to their queues.

Runs in: the booting main thread (catch_up), then its own thread.
1. catch up   at boot: the identities of this slot that nobody has recovered yet, told by the supervisor (well under a
              second after a kill -9), and members of this host whose process is gone, when no supervisor could tell
2. orphans    later: the identities of another slot, whose respawn backs off
3. sweep      beat, and recover members of any host that have been silent for `recover_after`; every worker may be
              handed some, nobody is elected (membership_beat.py; failure_detector.py says when it may)
4. wake lists after each of these: payloads that woke a dead process go back to their queues, where Ruby looks; for a
              second at a time, because the fleet waits for our beat

The beat depends on this thread, so no code of the application runs in it: its handlers run in a thread of the beat
guard (process/boundary/beat_guard), and hooks of jobs that timed out in one of their own (worker/run/timed_out).

The first script ends the membership for good, so a process that was only slow finds itself fenced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.ipc.running_jobs import TIMED_OUT
from kiqcluster.process.backoff import jittered
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service, snapshot
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import ALL_SUSPECT
from kiqcluster.store.engine.wait_lists import stale_hands
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.fetch.wake_lists import WakeLists
from kiqcluster.worker.identity import ProcessFingerprint, has_exited
from kiqcluster.worker.maintenance import failure_detector
from kiqcluster.worker.maintenance.membership_beat import MembershipBeat
from kiqcluster.worker.process_entry import withdrawal

__all__ = ["Recovery"]

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0  # between tries while Redis is away
BEAT_RETRY_SECONDS = 1.0  # after a beat that failed
SETTLE_SECONDS = 10.0  # for the hooks of jobs that timed out; then they go back, and what else their process held
MAX_MEMBERS_PER_BEAT = 20  # silent members that one beat returns; after so many, the next beat follows at once
PROCESS_EXITED, HEARTBEAT_MISSED = "whose process is gone", "whose process gave no sign of life for {:g} s"


def timed_out_of(running: Sequence[str]) -> list[str]:
    """Return the tokens of jobs that have run for longer than their `timeout_hard`."""
    return [token.removesuffix(TIMED_OUT) for token in running if token.endswith(TIMED_OUT)]


def without_marks(running: Sequence[str]) -> list[str]:
    return [token.removesuffix(TIMED_OUT) for token in running]


class Orphans:
    """Dead processes to recover, each with the tokens that were running; and when they are tried next.

    try_at: monotonic seconds.  settled: whose jobs that timed out are settled, or could not be, since Redis is away.
    Any thread adds to them, and to `settled`; the others of its methods are for the thread of recovery.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, Sequence[str]]] = deque()
        self.settled: deque[tuple[str, bool]] = deque()
        self.try_at = 0.0
        self._settling: dict[str, tuple[Sequence[str], float]] = {}  # identity → what was running, its deadline
        self._attempt = 0

    def add(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Add those that do not wait already."""
        known = {*(identity for identity, _ in snapshot(self.waiting)), *list(self._settling)}
        self.waiting.extend((identity, running) for identity, running in orphans.items() if identity not in known)

    @property
    def deadline(self) -> float:
        """When the first of those must be recovered whose jobs that timed out are being settled; monotonic seconds."""
        return min((deadline for _, deadline in self._settling.values()), default=inf)

    def begin_to_settle(self, identity: str, running: Sequence[str], deadline: float) -> None:
        """Wait for a process until its jobs that timed out are settled."""
        self._settling[identity] = running, deadline

    def take_settled(self, now: float) -> bool:
        """Have the processes recovered whose jobs that timed out are settled, or have had their time for that.

        What is not settled by then counts as having killed its process.  While Redis is away, it is tried again.
        Returns whether there are any to recover.
        """
        found = {}
        while self.settled:
            identity, is_settled = self.settled.popleft()
            if (pending := self._settling.pop(identity, None)) is None:
                continue
            if is_settled:
                found[identity] = without_marks(pending[0])
            else:
                self.waiting.append((identity, pending[0]))
                self.try_at = now + BEAT_RETRY_SECONDS
        for identity, (running, deadline) in list(self._settling.items()):
            if now >= deadline:
                del self._settling[identity]
                found[identity] = without_marks(running)
        self.waiting.extend(found.items())
        return bool(found)

    def plan_next(self, now: float, rng: Random, *, has_failed: bool) -> None:
        """Set the time of the next try: after failures, ever later."""
        self._attempt = self._attempt + 1 if has_failed else 0
        self.try_at = now + jittered(self._attempt, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS, rng)


class Recovery(Service):
    """identity: returns the one of this process, which beats.

    on_recovered: gets each identity that is done, and how many units it held.  fencing: told whether Redis takes our
    beats.  on_uncertain: told when Redis says that this process is no member any more.
    settle_timed_out: gets the tokens of a dead process that ran for longer than their `timeout_hard`, and a function to
    call with whether they are settled; returns at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        fingerprint: ProcessFingerprint,
        identity: Callable[[], str],
        fencing: Fencing,
        on_uncertain: Callable[[], None],
        on_recovered: Callable[[str, int], None],
        settle_timed_out: Callable[[str, Sequence[str], Callable[[bool], None]], None],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("recovery", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._fingerprint = fingerprint
        self._identity = identity
        self._fencing = fencing
        self._on_uncertain = on_uncertain
        self._on_recovered = on_recovered
        self._settle_timed_out = settle_timed_out
        self._orphans = Orphans()
        self._wakeup = threading.Event()
        self._beat = MembershipBeat(engine, runtime.clock, runtime.config.health_recover_after)
        self._beat_at = 0.0
        self._refusal = ""
        self._wake_lists = WakeLists(engine, runtime.clock)
        self._has_recovered = False  # since the last look at hand lists
        self._is_asked_for_hands = False

    def catch_up(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Recover these processes and those of this host that are gone, now; in the booting thread.

        orphans: identity → tokens that were running.  All units of a neighbour without a supervisor are suspect,
        because no process knows which of them were running.
        Raises StoreError while Redis is away; may be called again.  What Redis refuses is tried again later.
        """
        fingerprints = {
            identity: ProcessFingerprint.parse(record) for identity, record in self._engine.members().items()
        }
        gone = [
            identity
            for identity, fingerprint in fingerprints.items()
            if fingerprint is not None and has_exited(fingerprint, self._fingerprint)
        ]
        for identity, running in {**dict.fromkeys(gone, ALL_SUSPECT), **orphans}.items():
            if timed_out_of(running):  # hooks of their jobs may take long, and this process does not beat yet
                self.recover({identity: running})
                continue
            try:
                self._recover(identity, running)
            except RedisRefused as error:
                self._runtime.trouble("recovery", error)
                self.recover({identity: running})
        self._try(self._wake_lists.go_on)

    def recover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Recover these processes, soon; from any thread."""
        self._orphans.add(orphans)
        self._wakeup.set()

    def look_at_hands(self) -> None:
        """Look soon at the hand lists of dead processes, a duty of the fleet; from any thread."""
        self._is_asked_for_hands = True
        self._wakeup.set()

    def run(self) -> None:
        self._runtime.begin_to_beat()
        self._beat.begin_window()
        while not self.stopping.is_set():
            due_at = min(self._beat_at, self._orphans.try_at) if self._orphans.waiting else self._beat_at
            is_told = self._wakeup.wait(max(0.0, min(due_at, self._orphans.deadline) - self._now()))
            self._wakeup.clear()
            is_told |= self._orphans.take_settled(self._now())
            if self._orphans.waiting and (is_told or self._now() >= self._orphans.try_at):
                self._recover_orphans()
            if self._now() >= self._beat_at:
                self._beat_at = self._now() + failure_detector.pause(self._beat.recover_after, self._runtime.rng)
                self._sweep()
            if self._is_asked_for_hands:
                self._try(self._recover_stale_hands)
        self._orphans.take_settled(inf)
        if self._orphans.waiting:  # nobody else may be there to do it; one try
            self._recover_orphans()
        self._try(self._wake_lists.finish)  # the same

    def wake(self) -> None:
        self._wakeup.set()

    # orphans

    def _recover_orphans(self) -> None:
        """Try each once, until a beat is due; the others, and those that fail, wait for the next turn."""
        has_failed = False
        waiting = self._orphans.waiting
        for number in range(len(waiting)):
            if number and self._now() > self._beat_at and not self.stopping.is_set():
                break  # others wait for our beat
            identity, running = waiting.popleft()
            if tokens := timed_out_of(running):
                self._orphans.begin_to_settle(identity, running, self._now() + SETTLE_SECONDS)
                self._settle_timed_out(identity, tokens, partial(self._on_settled, identity))
                continue
            try:
                self._recover(identity, running)
            except StoreError as error:
                self._runtime.trouble("recovery", error)
                waiting.append((identity, running))
                has_failed = True
                if is_outage(error) or self.stopping.is_set():
                    break
        self._try(self._wake_lists.go_on)
        self._orphans.plan_next(self._now(), self._runtime.rng, has_failed=has_failed)

    def _on_settled(self, identity: str, is_settled: bool) -> None:
        """Go on with a process whose jobs that timed out are settled, or could not be; from any thread."""
        self._orphans.settled.append((identity, is_settled))
        self._wakeup.set()

    # sweep

    def _sweep(self) -> None:
        """Beat; recover those that were handed to us as silent.  One round trip while all of them beat."""
        try:
            while self._beat_and_recover() == MAX_MEMBERS_PER_BEAT and not self.stopping.is_set():
                continue
            if self._has_recovered:
                self._recover_stale_hands()
            self._try(self._wake_lists.go_on)
        except StoreError as error:
            if not is_outage(error):
                self._beat.begin_window()
            self._beat_at = min(self._beat_at, self._now() + BEAT_RETRY_SECONDS)  # others wait for our beat
            self._log_refusal(error)

    def _beat_and_recover(self) -> int:
        """Beat once, and recover whom it is handed, until the next beat is due; return how many it was handed."""
        identity, asked = self._identity(), self._now()
        beat = self._beat.send(identity, asked, MAX_MEMBERS_PER_BEAT)
        self._update_fencing(identity, asked, beat.strangers)
        if beat.complaint:
            self._log_refusal(RedisRefused(beat.complaint))
        for silent, score in beat.silent.items():
            if self._now() > asked + self._beat.interval:
                break  # the next beat is due; the others are handed out again
            self._recover_or_log(silent, ALL_SUSPECT, score)
        return len(beat.silent)

    def _update_fencing(self, identity: str, asked: float, strangers: frozenset[str]) -> None:
        """Record whether Redis took our beat.  A fenced process checks at once which units it still holds (R1)."""
        if identity not in strangers:
            self._fencing.confirm(identity, asked)
            return
        self._fencing.lose(identity)
        if identity == self._identity():  # else it has gone on under another one meanwhile
            self._on_uncertain()

    def _recover_stale_hands(self) -> None:
        """Recover dead processes once more into whose hand lists a late command may have moved a payload."""
        self._has_recovered = self._is_asked_for_hands = False
        try:
            stale = stale_hands(self._engine.store)
        except RedisRefused as error:  # a broken key must not keep us from recovering who is silent
            if is_outage(error):
                raise
            self._log_refusal(error)
            return
        for identity in stale:
            self._recover_or_log(identity, (), is_late=True)

    def _recover_or_log(
        self, identity: str, running: Sequence[str], score: int | None = None, *, is_late: bool = False
    ) -> None:
        try:
            self._recover(identity, running, score, is_late=is_late)
        except RedisRefused as error:  # a broken queue holds up no other process
            if is_outage(error):
                raise
            self._log_refusal(error)

    def _log_refusal(self, error: StoreError) -> None:
        """Report a refusal once: every worker of the fleet beats again and again."""
        if str(error) != self._refusal:
            self._refusal = str(error)
            self._runtime.trouble("recovery", error)

    # both

    def _recover(
        self, identity: str, running: Sequence[str], score: int | None = None, *, is_late: bool = False
    ) -> None:
        """Recover one process, unless it has beaten since it was handed to us with that score.

        is_late: it was recovered before.
        """
        with self._engine.store.borrowed() as connection:
            units = self._engine.recover(connection, identity, running, score)
        if units is None or (is_late and not units):
            return
        self._wake_lists.begin()
        self._has_recovered = True
        with self._engine.store.borrowed() as connection:  # a refusal is about a broken key; beats say that
            connection.exchange_each(withdrawal(self._engine.store.keys, identity))
        why = PROCESS_EXITED if score is None else HEARTBEAT_MISSED.format(self._beat.recover_after)
        self._runtime.events.emit(
            "recovered" if units else "recovered_nothing", identity=identity, units=units, why=why
        )
        self._on_recovered(identity, units)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StoreError as error:
            self._log_refusal(error)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
