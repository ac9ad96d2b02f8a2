"""Stacks: what the threads of a process did when somebody asked for it, kept in Redis for a while.

encode_stacks   by the process itself, or by another one of its cluster where it does not respond
read_stacks     by whoever shows them

A value holds names of files, functions, job classes and job ids, and lines of code; no arguments and no variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiqcluster.control.process_registry import read_number
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store

__all__ = ["MAX_STACKS_CHARACTERS", "STACKS_TTL_SECONDS", "Stacks", "encode_stacks", "read_stacks"]

STACKS_TTL_SECONDS = 600  # somebody looks at them now; they are old by then
MAX_STACKS_CHARACTERS = 50_000  # of one process; the threads that run jobs come first


@dataclass(frozen=True, slots=True)
class Stacks:
    """at: when they were taken, epoch seconds.  is_own: whether the process told them itself, by Python code.

    Otherwise a handler in C did, and its supervisor passed them on: the process did not respond.
    """

    at: float
    text: str
    is_own: bool = True


def encode_stacks(stacks: Stacks) -> bytes:
    """Return what Redis keeps: at most as much as MAX_STACKS_CHARACTERS of the text."""
    text = stacks.text[:MAX_STACKS_CHARACTERS]
    return ruby_json.encode({"at": stacks.at, "own": stacks.is_own, "stacks": text})


def read_stacks(store: Store, identities: Sequence[str]) -> dict[str, Stacks]:
    """Return identity → its latest stacks, if it has some.  One round trip.  Raises StoreError."""
    replies = store.read_each([("GET", store.keys.stacks(each)) for each in identities])
    found = ((each, _decode(raw)) for each, raw in zip(identities, replies, strict=True))
    return {each: stacks for each, stacks in found if stacks is not None}


def _decode(raw: object) -> Stacks | None:
    """Return what `encode_stacks` has written; None for nothing, and for other bytes: anybody may write there."""
    try:
        fields = ruby_json.decode(raw) if isinstance(raw, bytes) else None
    except ruby_json.Undecodable:
        return None
    if not isinstance(fields, dict) or not isinstance(text := fields.get("stacks"), str):
        return None
    return Stacks(read_number(fields.get("at")), text[:MAX_STACKS_CHARACTERS], fields.get("own") is not False)
