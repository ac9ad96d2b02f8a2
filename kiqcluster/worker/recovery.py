"""Recovery: gives the units of dead processes back to their queues.

Runs in: the booting main thread (catch_up), then its own thread.
1. catch up   at boot: the identities of this slot that nobody has recovered yet, told by the supervisor (well under a
              second after a kill -9), and members of this host whose process is gone, when no supervisor could tell
2. told       later: the identities of another slot, which backs off

Dead is final: the first script ends the membership, so whoever was only slow finds itself fenced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from kiqcluster.backoff import jittered
from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.runtime import Runtime
from kiqcluster.service import Service
from kiqcluster.store.engine import ALL_SUSPECT, Engine
from kiqcluster.worker.heartbeat import withdrawal
from kiqcluster.worker.identity import Birth, is_gone

__all__ = ["Recovery"]

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between tries while Redis is away


class Recovery(Service):
    """on_recovered: told each identity that is done."""

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        birth: Birth,
        on_recovered: Callable[[str], None],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("recovery", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._birth = birth
        self._on_recovered = on_recovered
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._more = threading.Event()

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
        while not self.stopping.is_set():
            self._more.wait()
            self._more.clear()
            attempt = 0
            while self._waiting and not self.stopping.is_set():
                identity, running = self._waiting.popleft()
                try:
                    self._recover(identity, running)
                except StoreError as error:
                    self._runtime.trouble("recovery", error)
                    self._waiting.append((identity, running))  # after the others: what holds it up is its own
                    self.pause(jittered(attempt, FIRST_PAUSE, LONGEST_PAUSE, self._runtime.rng))
                    attempt += 1

    def wake(self) -> None:
        self._more.set()

    def _recover(self, identity: str, running: Sequence[str]) -> None:
        with self._engine.store.borrowed() as link:
            units = self._engine.recover(link, identity, running)
        self._engine.store.pipeline(withdrawal(self._engine.store.keys, identity))
        self._runtime.events.emit("recovered" if units else "recovered_nothing", identity=identity, units=units)
        self._on_recovered(identity)
