"""Jobs written straight to queues and sets in Redis, and read back, for tests without processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kiqcluster.api import JobRecord
from kiqcluster.store import Store

MAX_PER_COMMAND = 1_000
NOW = 1_795_168_740.5  # epoch seconds, the score of the first entries


def job(number: int, **more: Any) -> bytes:
    """Return a payload; its only argument is the number."""
    payload = {"class": "Job", "args": [number], "jid": f"j{number}", "queue": "default", **more}
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def numbers(records: Iterable[JobRecord]) -> list[int]:
    """Return the numbers of records."""
    return [record.args[0] for record in records]


# queues


def push_payloads(store: Store, payloads: Iterable[bytes], queue: str = "default") -> None:
    """Push payloads to a queue; the first will be fetched first."""
    store.call("SADD", store.keys.queues, queue)
    for chunk in _chunks(payloads):
        store.call("LPUSH", store.keys.queue(queue), *chunk)


def fill_queue(store: Store, numbers: Iterable[int], queue: str = "default", padding: str = "") -> None:
    """Push jobs with these numbers to a queue; the first will be fetched first."""
    more = {"padding": padding} if padding else {}
    push_payloads(store, [job(number, **more) for number in numbers], queue)


def pop_jobs(store: Store, count: int, queue: str = "default") -> None:
    """Remove the next jobs of a queue, as a worker does that fetches them."""
    store.call("RPOP", store.keys.queue(queue), count)


def move_to_wake_list(store: Store, count: int = 1, queue: str = "default") -> None:
    """Move the next jobs of a queue to its wake list, as the BLMOVE of idle workers does."""
    for _ in range(count):
        store.call("LMOVE", store.keys.queue(queue), store.keys.wake(queue), "RIGHT", "LEFT")


def queued_numbers(store: Store, queue: str = "default") -> list[Any]:
    """Return the numbers of the jobs of a queue, the next to be fetched first."""
    return [_number(raw) for raw in reversed(store.call("LRANGE", store.keys.queue(queue), 0, -1))]


# sets


def add_entries(store: Store, key: str, *pairs: tuple[float, bytes]) -> None:
    """Add entries, each as (score, payload), to a set."""
    for chunk in _chunks(pairs):
        store.call("ZADD", key, *[word for score, raw in chunk for word in (repr(score), raw)])


def fill_set(store: Store, key: str, numbers: Iterable[int], score: float | None = None) -> None:
    """Add jobs whose score grows with their number, or all with the same."""
    add_entries(store, key, *[(NOW + number if score is None else score, job(number)) for number in numbers])


def entries(store: Store, key: str) -> dict[bytes, float]:
    """Return payload → score of a set, the lowest score first."""
    flat = store.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {raw: float(score) for raw, score in zip(flat[::2], flat[1::2], strict=True)}


def entry_numbers(store: Store, key: str) -> list[Any]:
    """Return the numbers of the jobs of a set, the lowest score first."""
    return [_number(raw) for raw in entries(store, key)]


def _number(raw: bytes) -> Any:
    return json.loads(raw)["args"][0]


T = TypeVar("T")


def _chunks(items: Iterable[T]) -> Iterator[Sequence[T]]:
    found = list(items)
    for at in range(0, len(found), MAX_PER_COMMAND):
        yield found[at : at + MAX_PER_COMMAND]
