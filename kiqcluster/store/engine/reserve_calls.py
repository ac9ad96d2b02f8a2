"""Reserve calls: queues and their limits → a call of reserve.lua, and its reply → the units."""

from __future__ import annotations

from collections.abc import Sequence

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.engine.units import Limits, Member, Reserved, Unit
from kiqcluster.store.scripts import RESERVE, Call, Word
from kiqcluster.store.wire import ErrorReply, Reply

__all__ = ["MAX_RESERVE_BYTES", "RENAME_HINT", "ReserveCalls", "read_reserved"]

MAX_RESERVE_BYTES = 1_000_000  # bytes at which a reserve stops (it holds at least one unit)
RENAME_HINT = "Rename it, and kiqcluster makes it anew"  # the remedy for one of our keys that has a wrong type


class ReserveCalls:
    """Makes the calls that reserve units, with the keys of one store.

    gates: rows of the table of gates in reserve.lua: operation and key.
    """

    def __init__(self, keys: Keys, gates: Sequence[tuple[str, str]]) -> None:
        self._keys = keys
        self._gate_keys = [key for _, key in gates]
        self._gate_words: list[Word] = [len(gates), *(operation for operation, _ in gates)]

    def make(self, member: Member, call: int, limits: Limits, most_deaths: int) -> Call:
        names = self._keys
        keys = [names.members, names.inflight(member.identity), names.suspects, names.beats, *self._gate_keys]
        arguments: list[Word] = [member.identity, member.padded_epoch, f"{call:010d}", MAX_RESERVE_BYTES, most_deaths]
        arguments += self._gate_words
        for queue, (turn, rest) in limits.items():
            keys += (names.wake(queue), names.queue(queue))
            arguments += (queue, turn, rest)
        return Call(RESERVE, keys, arguments)


def read_reserved(reply: Reply | ErrorReply, member: Member, call: int, queues: Sequence[str]) -> Reserved:
    if isinstance(reply, ErrorReply):
        return Reserved([], frozenset(), refusal=str(reply), is_refused=True)
    if reply[0] == b"FENCED":
        return Reserved([], frozenset(), fenced=True)
    head, identity = f"{member.padded_epoch}.{call:010d}.", member.identity
    units: list[Unit] = []
    for at in range(4, len(reply), 2):
        queue, payloads = queues[reply[at]], reply[at + 1]
        first = len(units) + 1
        units += [Unit(queue, payload, f"{head}{index:05d}", identity) for index, payload in enumerate(payloads, first)]
    if units:
        units[0].deaths = reply[3]
    complaints = [(at, words.decode(errors="replace")) for at, words in zip(*reply[1:3], strict=True) if words]
    refusal = next(
        (f"{queues[at]}: {words}" if at < len(queues) else f"{words}. {RENAME_HINT}" for at, words in complaints), ""
    )
    return Reserved(units, frozenset(queues[index] for index in reply[1] if index < len(queues)), refusal=refusal)
