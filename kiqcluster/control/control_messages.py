"""Control messages: orders to a supervisor or to one process, delivered through Redis.

Message     an order, and who gave it
send        adds a message to the list of a process; the heartbeat of that process reads it and passes it on
withdraw    removes a message that no process has read

The answer is in the cluster's state under `answers`: message id → None, or an error.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiqcluster.control.orders import ACTIONS, MAX_LEASE_SECONDS
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store.scripts import SEND, Call, run_script

__all__ = [
    "CANCEL",
    "CLUSTER_ONLY_ACTIONS",
    "MAX_TEXT_CHARACTERS",
    "MESSAGE_TTL_SECONDS",
    "Message",
    "is_unread",
    "new_message",
    "send",
    "withdraw",
]

CLUSTER_ONLY_ACTIONS = frozenset({"roll", "rollback", "reload", "kill"})  # a single process cannot do these
CANCEL = "cancel"  # asks one process to read which jobs and batches are cancelled; no order for a supervisor
MESSAGE_TTL_SECONDS = 60  # an unread message expires, so that it has no effect long after it was sent
MAX_PID = 2**31 - 1
MAX_TEXT_CHARACTERS = 200  # of a name or id in a message: they go to logs and pages


@dataclass(frozen=True, slots=True)
class Message:
    """scope: cluster (the supervisor and all its slots) or process (the one that reads the message).

    lease: seconds that a quiet lasts, 0 for no end, None for the supervisor's setting.  by: who gave the order.
    id: key of the answer; a message that arrives twice is carried out once.
    whose: resume only a quiet begun under this name (`deploy` for deploy@host); empty for any quiet.
    jid: kill the process that runs this job.  pid: dump this worker, 0 for all workers of the cluster.
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
        """Return the message in `raw`.  Raises ValueError if it is not valid."""
        fields = ruby_json.decode(raw)
        if not isinstance(fields, dict):
            raise ValueError(f"it is not a JSON object but {type(fields).__name__}")  # noqa: TRY004  # as the others
        message = cls(
            action=_one_of((*ACTIONS, CANCEL), "action", fields.get("action")),
            scope=_one_of(("cluster", "process"), "scope", fields.get("scope", "cluster")),
            lease=_lease(fields.get("lease")),
            by=_text("by", fields.get("by", "")),
            id=_text("id", fields.get("id", "")),
            whose=_text("whose", fields.get("whose", "")),
            jid=_text("jid", fields.get("jid", "")),
            pid=_pid(fields.get("pid", 0)),
        )
        if message.scope == "process" and message.action in CLUSTER_ONLY_ACTIONS:
            raise ValueError(f"{message.action} is for a whole cluster; its scope cannot be process")
        if message.scope == "cluster" and message.action == CANCEL:
            raise ValueError(f"{message.action} is for a process; its scope cannot be cluster")
        return message


def _one_of(words: Sequence[str], field: str, value: object) -> str:
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"its {field} is {value!r:.50}; known are {', '.join(words)}")
    return value


def _lease(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_LEASE_SECONDS:
        raise ValueError(f"its lease is {value!r:.50}; it takes seconds, or null")
    return float(value)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"its {field} is not a line of text of at most {MAX_TEXT_CHARACTERS} characters")
    return value


def _pid(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_PID:
        raise ValueError(f"its pid is {value!r:.50}; it takes the number of a process, or 0")
    return value


def new_message(
    action: str, lease: float | None = None, *, name: str = "kiqctl", whom: str = "", whose: str = ""
) -> Message:
    """Return a message that can be told from any other.  name: what asks.  whom: for whom, this host if for nobody.

    whose: see Message.
    """
    by = f"{name}@{whom or socket.gethostname()}"
    return Message(action, lease=lease, by=by, id=secrets.token_hex(8), whose=whose)


def send(store: Store, identity: str, message: Message) -> None:
    """Add a message to the list of a process.  One round trip.  Raises StoreError."""
    run_script(store, Call(SEND, [store.keys.control(identity)], [message.encode(), MESSAGE_TTL_SECONDS]))


def withdraw(store: Store, identity: str, message: Message) -> bool:
    """Remove an unread message; return whether it was still there.  One round trip.  Raises StoreError."""
    return bool(store.call("LREM", store.keys.control(identity), 0, message.encode()))


def is_unread(store: Store, identity: str, message: Message) -> bool:
    """Return whether the process has not read the message yet.  One round trip.  Raises StoreError."""
    return store.call("LPOS", store.keys.control(identity), message.encode()) is not None
