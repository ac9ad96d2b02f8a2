"""Recovery: gives the units of dead processes back to their queues.

Runs in: the booting main thread (catch_up), then its own thread.
1. catch up   at boot: the identities of this slot that nobody has recovered yet, told by the supervisor (well under a
              second after a kill -9), and members of this host whose process is gone, when no supervisor could tell
2. told       later: the identities of another slot, which backs off
3. sweep      beat, and recover members of any host whose beat stands still for `recover_after`; every worker looks, no
              one is elected, and several may recover the same one

The beat is this thread's and not the heartbeat's: handlers of the application run there, and one that hangs must not
make a process whose jobs run look dead.

Dead is final: the first script ends the membership, so whoever was only slow finds itself fenced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from kiqcluster.backoff import jittered
from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.runtime import Runtime
from kiqcluster.service import Service
from kiqcluster.store import is_outage
from kiqcluster.store.engine import ALL_SUSPECT, Engine
from kiqcluster.worker import standstill
from kiqcluster.worker.heartbeat import withdrawal
from kiqcluster.worker.identity import Birth, is_gone

__all__ = ["Recovery"]

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between tries while Redis is away
LOOK_TIMEOUT = 5.0  # seconds that a look may take; never more than the time between two of them
TRY_AGAIN = 1.0  # seconds after a look that failed
GONE, SILENT = "whose process is gone", "whose process gave no sign of life for {:g} s"


class Recovery(Service):
    """mine: returns the identities of this process: those that beat.

    on_recovered: told each identity that is done, and how many units it held.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        birth: Birth,
        mine: Callable[[], Iterable[str]],
        on_recovered: Callable[[str, int], None],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("recovery", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._birth = birth
        self._mine = mine
        self._on_recovered = on_recovered
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._more = threading.Event()
        self._attempt = 0
        self._try_at = 0.0
        self._recover_after = runtime.config.recover_after
        self._link = engine.store.link(timeout=min(LOOK_TIMEOUT, self._recover_after / standstill.LOOKS))
        self._watch: standstill.Watch | None = None
        self._look_at = 0.0
        self._complaint = ""

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

    def recover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Recover these processes, soon; from any thread."""
        waiting = {identity for identity, _ in self._waiting}
        self._waiting.extend((identity, running) for identity, running in orphans.items() if identity not in waiting)
        self._more.set()

    def run(self) -> None:
        self._watch = None
        while not self.stopping.is_set():
            due_at = min(self._look_at, self._try_at) if self._waiting else self._look_at
            is_told = self._more.wait(max(0.0, due_at - self._now()))
            self._more.clear()
            if self._waiting and (is_told or self._now() >= self._try_at):
                self._recover_waiting()
            if self._now() >= self._look_at:
                self._look_at = self._now() + standstill.pause(self._recover_after, self._runtime.rng)
                self._sweep()
        if self._waiting:  # nobody else may be there to do it; one try
            self._recover_waiting()

    def wake(self) -> None:
        self._more.set()

    # told

    def _recover_waiting(self) -> None:
        """Try each once; what fails waits for its next turn."""
        for _ in range(len(self._waiting)):
            identity, running = self._waiting.popleft()
            try:
                self._recover(identity, running)
            except StoreError as error:
                self._runtime.trouble("recovery", error)
                self._waiting.append((identity, running))
                if is_outage(error) or self.stopping.is_set():
                    break
        self._attempt = self._attempt + 1 if self._waiting else 0
        self._try_at = self._now() + jittered(self._attempt, FIRST_PAUSE, LONGEST_PAUSE, self._runtime.rng)

    # sweep

    def _sweep(self) -> None:
        """Beat, and look at all members; recover those that stand still.  One round trip while all of them beat."""
        try:
            self._watch, still = standstill.judge(self._watch, self._look(), self._recover_after)
            for identity, beat in still.items():
                self._watch = standstill.without(self._watch, identity)  # refused or not, next time from the start
                self._recover_still(identity, beat)
        except StoreError as error:
            self._watch = None
            self._look_at = min(self._look_at, self._now() + TRY_AGAIN)  # others wait for our beat
            self._complain(error)

    def _look(self) -> standstill.Look:
        asked = self._now()
        beats = self._engine.beat(self._link, self._mine())
        return standstill.Look(asked, self._now(), self._link.connections, beats)

    def _recover_still(self, identity: str, beat: str) -> None:
        try:
            self._recover(identity, ALL_SUSPECT, beat)
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

    def _recover(self, identity: str, running: Sequence[str], beat: str | None = None) -> None:
        """Recover one process, unless it has moved beyond the beat that was seen standing still."""
        with self._engine.store.borrowed() as link:
            units = self._engine.recover(link, identity, running, beat)
        if units is None:
            return
        self._engine.store.pipeline(withdrawal(self._engine.store.keys, identity))
        why = GONE if beat is None else SILENT.format(self._recover_after)
        self._runtime.events.emit(
            "recovered" if units else "recovered_nothing", identity=identity, units=units, why=why
        )
        self._on_recovered(identity, units)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
