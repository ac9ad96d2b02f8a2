"""Concurrency limits: at most so many jobs of a class, or of a key of its arguments, run at once.

Options: `concurrency_limit`, a number, a function that returns one when a job begins, or text like "10%" of the threads
of the fleet (0: no limit, below 0: paused); `concurrency_key`, a function of the arguments, each of whose values has a
limit of its own.

on_begin   the begin row `enter`, which has a job that finds no room parked (lua/begin.lua, lua/parked.lua)
on_end     of a job that ends before its begin (expired, struck, deferred, buried): the next one in the line goes on

Parked jobs cost nothing while they wait.  The script that ends a job sends the next one back to its queue.  Of keys in
Redis, a parked job is only in the line of its limit: if somebody deletes that, the job is gone.
A Ruby process on the same queue runs such jobs without asking.

Price: one round trip before a job of such a class runs, shared with other features; 14 Redis calls in its script, five
more in the script that settles it.  A job that is parked is reserved, asked for and settled once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha1
from math import ceil
from typing import Any

from kiqcluster.application.registry import ENVELOPE, Definition, current_registry
from kiqcluster.errors import UsageError
from kiqcluster.features.job_end import JobEnd
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq import active_job
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON, is_unicode

__all__ = ["FLEET", "OPTION", "ConcurrencyLimits", "FleetThreads", "Limit", "key_of", "limit_of"]

OPTION, KEY_OPTION = "concurrency_limit", "concurrency_key"
PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)%")
MAX_KEY_CHARACTERS = (
    100  # of a key that is written as it is; of a longer one, one with a colon, or half a character, its SHA-1
)

Limit = int | str  # a number, or a percentage


@dataclass
class FleetThreads:
    """Threads of all processes of the fleet, as this process has counted them last (limit_upkeep.py)."""

    count: int = 1


FLEET = FleetThreads()


class ConcurrencyLimits:
    """The server half."""

    name = OPTION
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return OPTION in definition.local

    def asks_ahead(self, definition: Definition) -> bool:
        """Return whether the limit is fixed: a function of the application is to tell it at the job's turn."""
        return not callable(definition.local[OPTION])

    def on_begin(self, run: Run) -> Iterable[Effect]:
        definition: Definition = run.job
        limit = limit_of(definition.local[OPTION], FLEET.count)
        slots = run.keys.slots(definition.name, _key(definition, run.payload))
        return (Effect("enter", slots, (limit, definition.name, "park")),)

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that sends the next job on if this one asked for no place; a unit releases its place."""
        definition = current_registry().get(end.name) if end.has_left_line else None
        if definition is None:
            return ()
        limit = limit_of(definition.local[OPTION], FLEET.count)
        slots = end.keys.slots(definition.name, _key(definition, end.payload))
        return (Effect("pass_on", slots, (limit, definition.name)),)

    def on_end_failed(self, _end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        """Return no row: the sweep sends the next job on."""
        return ()


def limit_of(declared: Limit | Callable[[], Limit], threads: int) -> int:
    """Return how many jobs may run at once: 0 for any number, less than 0 for none.

    threads: of the fleet.  A percentage of them is rounded up.  Raises UsageError, and what a function raises.
    """
    value = declared() if callable(declared) else declared
    if isinstance(value, str) and (found := PERCENTAGE.fullmatch(value)):
        return max(1, ceil(threads * float(found[1]) / 100))
    if type(value) is not int:
        raise UsageError(f"{OPTION} is {value!r}, and not a number or a percentage")
    return value


def _key(definition: Definition, payload: Payload) -> str:
    return key_of(definition, payload["args"], is_sealed=KEY_VERSION in payload)


def key_of(definition: Definition, arguments: list[JSON], *, is_sealed: bool = False) -> str:
    """Return the key for which a job counts, "" where its class has no keys.  is_sealed: the last one is encrypted.

    Raises UsageError, MisfitArguments.
    """
    function: Callable[..., Any] | None = definition.local.get(KEY_OPTION)
    if function is None:
        return ""
    if definition.signature is ENVELOPE:
        positions, keywords = active_job.deserialized(arguments[0])
        key = function(*positions, **keywords)
    else:
        key = function(*definition.values(arguments, is_sealed=is_sealed))
    if type(key) not in (str, int) or key == "":
        raise UsageError(f"{KEY_OPTION} of {definition.name} returned {key!r}, and not text or a number")
    text = str(key)
    if len(text) <= MAX_KEY_CHARACTERS and ":" not in text and is_unicode(text):
        return text
    # The set of "x:parked" would be the line of "x".
    return sha1(text.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()
