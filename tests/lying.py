"""Jobs as they lie in Redis, for tests of what looks at them there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kiqcluster.api import JobRecord
from kiqcluster.store import Store

CHUNK = 1_000  # payloads in one command
NOW = 1_795_168_740.5


def job(number: int, **more: Any) -> bytes:
    """Return a payload; its only argument is the number."""
    payload = {"class": "Job", "args": [number], "jid": f"j{number}", "queue": "default", **more}
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def numbers(records: Iterable[JobRecord]) -> list[int]:
    return [record.args[0] for record in records]


def fill_queue(store: Store, numbers: Iterable[int], queue: str = "default", padding: str = "") -> None:
    """Push jobs in this order: the first will be fetched first."""
    payloads = [job(number, **({"padding": padding} if padding else {})) for number in numbers]
    store.call("SADD", store.keys.queues, queue)
    for at in range(0, len(payloads), CHUNK):
        store.call("LPUSH", store.keys.queue(queue), *payloads[at : at + CHUNK])


def ring(store: Store, count: int = 1, queue: str = "default") -> None:
    """Let jobs ring the bell of idle workers, as BLMOVE does."""
    for _ in range(count):
        store.call("LMOVE", store.keys.queue(queue), store.keys.wake(queue), "RIGHT", "LEFT")


def fetch(store: Store, count: int, queue: str = "default") -> None:
    store.call("RPOP", store.keys.queue(queue), count)


def in_queue(store: Store, queue: str = "default") -> list[int]:
    """Return the numbers of what lies in a queue, newest first."""
    return [json.loads(raw)["args"][0] for raw in store.call("LRANGE", store.keys.queue(queue), 0, -1)]


def add(store: Store, key: str, *pairs: tuple[float, bytes]) -> None:
    """Add entries to a set."""
    for at in range(0, len(pairs), CHUNK):
        store.call("ZADD", key, *[word for score, raw in pairs[at : at + CHUNK] for word in (repr(score), raw)])


def fill_set(store: Store, key: str, numbers: Iterable[int], score: float | None = None) -> None:
    """Add entries whose score grows with their number, or all with the same."""
    add(store, key, *[(NOW + number if score is None else score, job(number)) for number in numbers])


def in_set(store: Store, key: str) -> dict[bytes, float]:
    """Return payload → score of what lies in a set."""
    flat = store.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {raw: float(score) for raw, score in zip(flat[::2], flat[1::2], strict=True)}
