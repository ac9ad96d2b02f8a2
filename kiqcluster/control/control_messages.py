"""Control messages: orders to a supervisor, or to one process, that any live process of the supervisor passes on.

Message     what is asked, and by whom
send        leave a message in the list of a process; its heartbeat waits there
take_back   withdraw a message that nobody has read

What became of a message shows in the cluster's state under `answers`: message id → None, or why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiqcluster.control.orders import ACTIONS, LONGEST_LEASE
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store.scripts import SEND, Call, run_script

__all__ = [
    "LONGEST_TEXT",
    "MESSAGE_TTL",
    "ONLY_CLUSTERS",
    "Message",
    "is_waiting",
    "send",
    "take_back",
]

ONLY_CLUSTERS = frozenset({"roll", "rollback", "reload", "kill"})  # what no process can do for itself
MESSAGE_TTL = 60  # seconds; what nobody has read by then must not surprise anybody later
MAX_PID = 2**31 - 1
LONGEST_TEXT = 200  # characters of a name or id in a message: they go to logs and pages


@dataclass(frozen=True, slots=True)
class Message:
    """scope: cluster, for the supervisor and all its slots, or process, for the one that reads it.

    lease: seconds that a quiet lasts, 0 for no end, None for what the supervisor is set to.  by: who asks, for people.
    id: whoever asked finds the answer by it; a message that comes twice is done once.
    whose: a resume ends only a quiet that somebody of this name has begun (`deploy` for deploy@host); empty: anybody's.
    jid: of the job whose process a kill is to end.  pid: of the worker that a dump is about, 0 for all of the cluster.
    """

    action: str
    scope: str = "cluster"
    lease: float | None = None
    by: str = ""
    id: str = ""
    whose: str = ""
    jid: str = ""
    pid: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def encode(self) -> bytes:
        return ruby_json.encode(self.as_json())

    @classmethod
    def read(cls, raw: bytes) -> Message:
        """Return the message in `raw`.  Raises ValueError that says why it is none."""
        fields = ruby_json.decode(raw)
        if not isinstance(fields, dict):
            raise ValueError(f"it is no JSON object but {type(fields).__name__}")  # noqa: TRY004  # as all the others
        message = cls(
            action=_one_of(ACTIONS, "action", fields.get("action")),
            scope=_one_of(("cluster", "process"), "scope", fields.get("scope", "cluster")),
            lease=_lease(fields.get("lease")),
            by=_text("by", fields.get("by", "")),
            id=_text("id", fields.get("id", "")),
            whose=_text("whose", fields.get("whose", "")),
            jid=_text("jid", fields.get("jid", "")),
            pid=_pid(fields.get("pid", 0)),
        )
        if message.scope == "process" and message.action in ONLY_CLUSTERS:
            raise ValueError(f"{message.action} is for a whole cluster; its scope cannot be process")
        return message


def _one_of(words: Sequence[str], field: str, value: object) -> str:
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"its {field} is {value!r:.50}; known are {', '.join(words)}")
    return value


def _lease(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LONGEST_LEASE:
        raise ValueError(f"its lease is {value!r:.50}; it takes seconds, or null")
    return float(value)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise ValueError(f"its {field} is no line of text of at most {LONGEST_TEXT} characters")
    return value


def _pid(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_PID:
        raise ValueError(f"its pid is {value!r:.50}; it takes the number of a process, or 0")
    return value


def send(store: Store, identity: str, message: Message) -> None:
    """Leave a message for a process.  One round trip.  Raises StoreError."""
    run_script(store, Call(SEND, [store.keys.control(identity)], [message.encode(), MESSAGE_TTL]))


def take_back(store: Store, identity: str, message: Message) -> bool:
    """Remove a message that nobody has read; return whether it was still there.  One round trip.  Raises StoreError."""
    return bool(store.call("LREM", store.keys.control(identity), 0, message.encode()))


def is_waiting(store: Store, identity: str, message: Message) -> bool:
    """Return whether a message has not been read yet.  One round trip.  Raises StoreError."""
    return store.call("LPOS", store.keys.control(identity), message.encode()) is not None
