"""Recovery: gives the units of dead processes back to their queues.

Runs in: the booting main thread (catch_up), then its own thread.
1. catch up   at boot: the identities of this slot that nobody has recovered yet, told by the supervisor (well under a
              second after a kill -9), and members of this host whose process is gone, when no supervisor could tell
2. told       later: the identities of another slot, which backs off
3. sweep      beat, and recover members of any host that have been silent for `recover_after`; every worker may be
              handed some, nobody is elected (failure_detector.py says when it may)
4. wake lists after each of these: payloads that rang bells of the dead go back to their queues, where Ruby looks; a
              second's worth at a time, for others wait for our beat

The beat is this thread's and not the heartbeat's: handlers of the application run there, and one that hangs must not
make a process whose jobs run look dead.

Dead is final: the first script ends the membership, so whoever was only slow finds itself fenced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from weakref import WeakKeyDictionary

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.process.backoff import jittered
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.store import Connection, is_outage
from kiqcluster.store.engine import ALL_SUSPECT, Beat, Engine
from kiqcluster.worker import failure_detector
from kiqcluster.worker.failure_detector import LOOKS, Observation, Window
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.heartbeat import withdrawal
from kiqcluster.worker.identity import Birth, is_gone

__all__ = ["Recovery"]

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between tries while Redis is away
LOOK_TIMEOUT = 5.0  # seconds that a look may take; never more than the time between two of them
TRY_AGAIN = 1.0  # seconds after a look that failed
QUEUES_AT_ONCE = 1_000  # at whose wake lists one round trip looks
MAX_EMPTYING_SECONDS = 1.0  # that wake lists are emptied for between two beats
MAX_HANDED = 20  # members that one look is handed; when it gets so many, the next one follows at once
GONE, SILENT = "whose process is gone", "whose process gave no sign of life for {:g} s"


class Recovery(Service):
    """identity: returns the one of this process, which beats.

    on_recovered: told each identity that is done, and how many units it held.  fencing: told whether Redis takes our
    beats.  on_doubt: told when Redis says that this process is no member any more.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        birth: Birth,
        identity: Callable[[], str],
        fencing: Fencing,
        on_doubt: Callable[[], None],
        on_recovered: Callable[[str, int], None],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("recovery", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._birth = birth
        self._identity = identity
        self._fencing = fencing
        self._on_doubt = on_doubt
        self._on_recovered = on_recovered
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._more = threading.Event()
        self._attempt = 0
        self._try_at = 0.0
        self._recover_after = runtime.config.recover_after
        self._look_timeout = min(LOOK_TIMEOUT, self._recover_after / LOOKS)
        # Connection → its connect_count, and which server it reaches.
        self._servers: WeakKeyDictionary[Connection, tuple[int, str]] = WeakKeyDictionary()
        self._window: Window | None = None
        self._look_at = 0.0
        self._complaint = ""
        self._unemptied: Iterator[str] | None = None  # queues whose wake lists are still to be emptied

    def catch_up(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Recover these processes and those of this host that are gone, now; in the booting thread.

        orphans: identity → tokens that were running.  What a neighbour ran whose supervisor is gone as well, nobody
        knows: all that it held is suspect.
        Raises StoreError while Redis is away; may be called again.  What Redis refuses is tried again later.
        """
        births = {identity: Birth.parse(record) for identity, record in self._engine.members().items()}
        gone = [identity for identity, birth in births.items() if birth is not None and is_gone(birth, self._birth)]
        for identity, running in {**dict.fromkeys(gone, ALL_SUSPECT), **orphans}.items():
            try:
                self._recover(identity, running)
            except RedisRefused as error:
                self._runtime.trouble("recovery", error)
                self.recover({identity: running})
        self._empty_wake_lists()

    def recover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Recover these processes, soon; from any thread."""
        waiting = {identity for identity, _ in self._waiting}
        self._waiting.extend((identity, running) for identity, running in orphans.items() if identity not in waiting)
        self._more.set()

    def run(self) -> None:
        self._window = None
        while not self.stopping.is_set():
            due_at = min(self._look_at, self._try_at) if self._waiting else self._look_at
            is_told = self._more.wait(max(0.0, due_at - self._now()))
            self._more.clear()
            if self._waiting and (is_told or self._now() >= self._try_at):
                self._recover_waiting()
            if self._now() >= self._look_at:
                self._look_at = self._now() + failure_detector.pause(self._recover_after, self._runtime.rng)
                self._sweep()
        if self._waiting:  # nobody else may be there to do it; one try
            self._recover_waiting()

    def wake(self) -> None:
        self._more.set()

    # told

    def _recover_waiting(self) -> None:
        """Try each once, until a beat is due; what fails, or is left, waits for its next turn."""
        has_failed = False
        for number in range(len(self._waiting)):
            if number and self._now() > self._look_at and not self.stopping.is_set():
                break  # others wait for our beat
            identity, running = self._waiting.popleft()
            try:
                self._recover(identity, running)
            except StoreError as error:
                self._runtime.trouble("recovery", error)
                self._waiting.append((identity, running))
                has_failed = True
                if is_outage(error) or self.stopping.is_set():
                    break
        self._empty_wake_lists()
        self._attempt = self._attempt + 1 if has_failed else 0
        self._try_at = self._now() + jittered(self._attempt, FIRST_PAUSE, LONGEST_PAUSE, self._runtime.rng)

    # sweep

    def _sweep(self) -> None:
        """Beat; recover those that were handed to us as silent.  One round trip while all of them beat."""
        try:
            while self._look() == MAX_HANDED and not self.stopping.is_set():
                continue
            self._empty_wake_lists()
        except StoreError as error:
            if not is_outage(error):
                self._window = None
            self._look_at = min(self._look_at, self._now() + TRY_AGAIN)  # others wait for our beat
            self._complain(error)

    def _look(self) -> int:
        """Beat once, and recover whom it is handed, until the next beat is due; return how many it was handed."""
        identity, asked = self._identity(), self._now()
        most = MAX_HANDED if failure_detector.is_ready(self._window, asked, self._recover_after) else 0
        server, beat = self._beat(identity, most)
        seen = Observation(asked, self._now(), server, beat.at)
        self._window = failure_detector.judge(self._window, seen, self._recover_after)
        self._take_note(identity, asked, beat.strangers)
        if beat.complaint:
            self._complain(RedisRefused(beat.complaint))
        if not failure_detector.is_ready(self._window, asked, self._recover_after):
            return 0  # what this very beat has shown begins anew; others are handed them in a while
        for silent, score in beat.silent.items():
            if self._now() > asked + self._recover_after / LOOKS:
                break  # the next beat is due; who is left is handed out again
            self._recover_silent(silent, score)
        return len(beat.silent)

    def _beat(self, identity: str, most: int) -> tuple[str, Beat]:
        """Return which server has answered, "" where that cannot be said, and what it said.

        One round trip, one more after each new connection.
        """
        pause = self._recover_after / LOOKS
        with self._engine.store.borrowed() as connection:
            connection.connect()
            number, server = self._servers.get(connection, (0, ""))
            if number != connection.connect_count:
                number = connection.connect_count
                server = (
                    self._engine.server_of(connection, self._look_timeout) or f"connection {number} of {id(connection)}"
                )
                self._servers[connection] = (number, server)
            beat = self._engine.beat(connection, [identity], self._recover_after, most, pause, self._look_timeout)
            return (server if number == connection.connect_count else ""), beat

    def _take_note(self, identity: str, asked: float, strangers: frozenset[str]) -> None:
        """Record whether Redis took our beat.  A fenced process looks at once what it still holds (R1)."""
        if identity not in strangers:
            self._fencing.confirm(identity, asked)
            return
        self._fencing.lose(identity)
        if identity == self._identity():  # else it has gone on under another one meanwhile
            self._on_doubt()

    def _recover_silent(self, identity: str, score: int) -> None:
        try:
            self._recover(identity, ALL_SUSPECT, score)
        except RedisRefused as error:  # a broken queue holds up no other process
            if is_outage(error):
                raise
            self._complain(error)

    def _complain(self, error: StoreError) -> None:
        """Say what Redis refuses, once: every worker of the fleet looks again and again."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._runtime.trouble("recovery", error)

    # both

    def _recover(self, identity: str, running: Sequence[str], score: int | None = None) -> None:
        """Recover one process, unless it has beaten since it was handed to us with that score."""
        with self._engine.store.borrowed() as connection:
            units = self._engine.recover(connection, identity, running, score)
        if units is None:
            return
        self._unemptied = self._engine.queue_names()
        with self._engine.store.borrowed() as connection:  # a refusal is about a broken key; beats say that
            connection.exchange(withdrawal(self._engine.store.keys, identity))
        why = GONE if score is None else SILENT.format(self._recover_after)
        self._runtime.events.emit(
            "recovered" if units else "recovered_nothing", identity=identity, units=units, why=why
        )
        self._on_recovered(identity, units)

    def _empty_wake_lists(self) -> None:
        """Put what has rung bells of the dead back to its queue: Ruby does not look into our wake lists.

        A wake list belongs to the queue, so any may be emptied at any time; whoever lives there is rung again.  Redis
        does not know any more which queues the dead have served, so all are looked at.  What is left after
        MAX_EMPTYING_SECONDS waits for the next look, and what an outage interrupts begins anew then.
        Two round trips per QUEUES_AT_ONCE queues, and one more where anything lies there.
        """
        until = self._now() + MAX_EMPTYING_SECONDS
        while self._unemptied is not None and self._now() < until:
            try:
                names = list(islice(self._unemptied, QUEUES_AT_ONCE))
                with self._engine.store.borrowed() as connection:
                    self._engine.return_wake_lists(connection, names)
            except StoreError as error:
                is_away = is_outage(error)  # else no look at the queues succeeds
                self._unemptied = self._engine.queue_names() if is_away else None
                self._complain(error)
                return
            if len(names) < QUEUES_AT_ONCE:
                self._unemptied = None

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
