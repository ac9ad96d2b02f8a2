"""TimedOut: units of a process that was killed because they ran for longer than their `timeout_hard`.

The supervisor says which units these are.  They have failed, by the rules of retries, and are settled for the dead
process before the rest of what it held goes back to its queues.  A unit that cannot be settled, or whose hooks take too
long, goes back as well, and counts as one that has killed its process.

Runs in: a thread of its own, because hooks of jobs and handlers of the application run there; the thread that recovers
beats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiqcluster.errors import StoreError, as_exception
from kiqcluster.process.boundary.beat_guard import Calls
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import OnCrash
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Settlement, Unit
from kiqcluster.store.wire import Command
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["TimedOutUnits"]


class TimedOutUnits:
    """make_execution: returns one for the thread that settles.  on_crash: of that thread."""

    def __init__(
        self, runtime: Runtime, engine: Engine, make_execution: Callable[[], Execution], on_crash: OnCrash
    ) -> None:
        self._calls = Calls("timeouts", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._make_execution = make_execution
        self._execution: Execution | None = None

    def settle_soon(self, identity: str, tokens: Sequence[str], then: Callable[[bool], None]) -> None:
        """Settle in another thread, and call `then` there: with False if Redis is away, and it is to be tried again."""
        self._calls.add(lambda: self._settle_and_tell(identity, tokens, then))

    def _settle_and_tell(self, identity: str, tokens: Sequence[str], then: Callable[[bool], None]) -> None:
        is_settled = False
        try:
            self.settle(identity, tokens)
            is_settled = True
        except StoreError as error:  # an outage
            self._runtime.trouble("timeouts", error)
        finally:
            then(is_settled)

    def settle(self, identity: str, tokens: Sequence[str]) -> None:
        """Write that these units of a dead process have failed.

        Three round trips.  May be called again.  Raises StoreError while Redis is away.
        """
        try:
            units = self._find(identity, tokens)
            self._execution = self._execution or self._make_execution()
            now = self._runtime.clock.now()
            done = [each for unit in units if (each := self._concluded(self._execution, unit, now)) is not None]
            with self._engine.store.borrowed() as connection:
                self._engine.settle(connection, done, now)
        except StoreError as error:
            if is_outage(error):
                raise
            self._runtime.trouble("timeouts", error)

    def _concluded(self, execution: Execution, unit: Unit, now: float) -> Settlement | None:
        try:
            return Settlement(unit, execution.time_out(JobRun(unit, now)))
        except BaseException as error:  # noqa: BLE001  # of a handler; what the process held must go back all the same
            self._runtime.trouble("timeouts", as_exception(error))
            return None

    def _find(self, identity: str, tokens: Sequence[str]) -> list[Unit]:
        """Return the units of these tokens that the process still holds, in flight or in a hand list."""
        keys, store = self._engine.store.keys, self._engine.store
        held, hands = (
            _of(tokens, reply)
            for reply in store.pipeline([("HKEYS", keys.inflight(identity)), ("HKEYS", keys.hands(identity))])
        )
        commands: list[Command] = [("HGET", keys.inflight(identity), field) for field in held]
        commands += [("LINDEX", keys.hand(identity, field), 0) for field in hands]
        payloads = store.pipeline(commands) if commands else []
        units = []
        for field, payload in zip(held + hands, payloads, strict=True):
            if payload is not None:
                token, _, queue = field.partition(":")
                # It may have been a suspect before, and may hold anything.
                units.append(Unit(queue, payload, token, identity, deaths=1, holds=True, is_in_hand=True))
        return units


def _of(tokens: Sequence[str], fields: Sequence[bytes]) -> list[str]:
    """Return the fields that have one of the tokens."""
    return [field for field in map(bytes.decode, fields) if field.partition(":")[0] in tokens]
