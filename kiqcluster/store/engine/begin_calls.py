"""Begin calls: the scripts that decide whether units may run, for many units in one round trip.

Each unit has a script call of its own (begin.lua), and so a verdict or a refusal of its own.  Before them, one call
releases what units hold whose runs have ended (release.lua): their places are free for the units that begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from kiqcluster.errors import StoreError
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.store.scripts import BEGIN, RELEASE, Call, Word, row_words, run_scripts_each
from kiqcluster.store.store import Store
from kiqcluster.store.wire import ErrorReply, Reply, about_keys

__all__ = ["Begin", "Begun", "begin_units", "may_hold"]

# Begin rows by which a unit holds nothing; any other may have it hold a key.
HOLD_NOTHING = frozenset(
    {"absent", "unmarked", "fixed_window", "sliding_window", "leaky_bucket", "working", "clear", "renew", "note"}
)


class Begin:
    """A unit, and the rows by which it may begin.

    names: of the feature of each row.  turn: locked while somebody asks.  answer: None until then.
    """

    __slots__ = ("answer", "names", "rows", "turn", "unit")

    def __init__(self, unit: Unit, rows: Sequence[Effect], names: Sequence[str] = ()) -> None:
        self.unit = unit
        self.rows = rows
        self.names = names
        self.turn = Lock()
        self.answer: BeginVerdict | StoreError | None = None


@dataclass(slots=True)
class Begun:
    """The answers to some begins, in their order.

    is_released: whether the units that have ended hold nothing any more by their begin rows.
    """

    verdicts: list[BeginVerdict | ErrorReply]
    is_released: bool


def may_hold(rows: Sequence[Effect]) -> bool:
    """Return whether a unit may hold a key by these rows, which is released with it."""
    return any(row.operation not in HOLD_NOTHING for row in rows)


def begin_units(store: Store, begins: Sequence[Begin], ended: Sequence[Unit] = ()) -> Begun:
    """Return whether units may run, by their rows.  One round trip.  May be sent again.

    ended: units whose runs have ended, and whose outcomes may not be written yet.
    Raises RedisUnavailable, ReplyLost.
    """
    keys = store.keys
    calls = _release_calls(keys, ended) if ended else []
    released = len(calls)
    calls += [_begin_call(keys, each.unit, each.rows) for each in begins]
    with store.borrowed() as connection:
        replies = run_scripts_each(connection, calls)
    verdicts = [
        _verdict(reply, begin, call)
        for reply, begin, call in zip(replies[released:], begins, calls[released:], strict=True)
    ]
    return Begun(verdicts, not any(isinstance(reply, ErrorReply) for reply in replies[:released]))


def _release_calls(keys: Keys, ended: Sequence[Unit]) -> list[Call]:
    fields: dict[str, list[Word]] = {}  # by identity: it has changed if others have recovered this process
    for unit in ended:
        fields.setdefault(unit.identity, []).append(unit.field)
    return [Call(RELEASE, [keys.held(identity)], some) for identity, some in fields.items()]


def _begin_call(keys: Keys, unit: Unit, rows: Sequence[Effect]) -> Call:
    identity = unit.identity
    names = [keys.inflight(identity), keys.held(identity)]
    arguments: list[Word] = [unit.field, f"{identity}/{unit.token}"]
    arguments += row_words(rows, names, {})
    return Call(BEGIN, names, arguments)


def _verdict(reply: Reply | ErrorReply, begin: Begin, call: Call) -> BeginVerdict | ErrorReply:
    if isinstance(reply, ErrorReply):
        return about_keys(reply, call.keys)
    word = reply[0]
    if word == b"GO":
        return GO
    action, _, seconds = word.decode().partition(" ")
    return BeginVerdict(action.lower(), float(seconds or 0.0), begin.rows[reply[1] - 1] if len(reply) > 1 else None)
