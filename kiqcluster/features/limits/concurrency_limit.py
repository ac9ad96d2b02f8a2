"""Concurrency limits: at most so many jobs of a class, or of a key of its arguments, run at once.

Options: `concurrency_limit`, a number, a function that returns one when a job begins, or text like "10%" of the threads
of the fleet (0: no limit, below 0: paused); `concurrency_key`, a function of the arguments, each of whose values has a
limit of its own.  A function that returns None means none: no limit, or no key, whose job is not limited.
One that raises an error, or returns what is no limit and no key, fails no job.  It is reported once a minute; the last
limit that a worker has known counts (none, if there was none), and jobs without a valid key share one limit.

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
from functools import partial
from hashlib import sha1
from math import ceil
from typing import Any

from kiqcluster.application.bound_calls import bound
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import UsageError
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.boundary.calls import guarded, shown
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import is_unicode

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
        place = self._place(definition, run.payload, run.keys, is_ahead=current_job() is None)
        return () if place is None else (Effect("enter", place[0], (place[1], definition.name, "park")),)

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that sends the next job on if this one asked for no place; a unit releases its place."""
        definition = current_registry().get(end.name) if end.has_left_line else None
        place = None if definition is None else self._place(definition, end.payload, end.keys)
        return () if place is None else (Effect("pass_on", place[0], (place[1], end.name)),)

    def on_end_failed(self, _end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        """Return no row: the sweep sends the next job on."""
        return ()

    def line_of(self, definition: Definition, payload: Payload, keys: Keys) -> str | None:
        """Return the set in which a job takes a place, None for none.  Raises what the key's function does."""
        key = key_of(definition, payload)
        return None if key is None else keys.slots(definition.name, key)

    def _place(
        self, definition: Definition, payload: Payload, keys: Keys, *, is_ahead: bool = False
    ) -> tuple[str, int | str] | None:
        """Return the set in which a job has its place and the limit of the set, "" for the last one that was known.

        None for a job that is not limited.  is_ahead: it is not the job's turn yet, so an error of the key's function
        is raised: at its turn it may not come.  Raises MisfitArguments.
        """
        of_key = None if is_ahead else partial(self._report, definition, KEY_OPTION, "")
        key = key_of(definition, payload, otherwise=of_key)
        if key is None:
            return None
        of_limit = partial(self._report, definition, OPTION, "")
        limit = guarded(of_limit, limit_of, definition.local[OPTION], FLEET.count)
        return keys.slots(definition.name, key), limit

    def _report(self, definition: Definition, option: str, instead: str, error: BaseException) -> str:
        """Report an error of a function of the application, and return what counts instead."""
        current_setup().notify_once(error, f"{option} of {definition.name}")
        return instead


def limit_of(declared: Limit | Callable[[], Limit | None], threads: int) -> int:
    """Return how many jobs may run at once: 0 for any number, less than 0 for none.

    threads: of the fleet.  A percentage of them is rounded up.  Raises UsageError, and what a function raises.
    """
    value = declared() if callable(declared) else declared
    if value is None:
        return 0
    if type(value) is str and (found := PERCENTAGE.fullmatch(value)):
        return max(1, ceil(threads * float(found[1]) / 100))
    if type(value) is not int:
        raise UsageError(
            f"{OPTION} is {shown(value)}, and not a number, a percentage such as '10%', or None for no limit"
        )
    return value


def key_of(
    definition: Definition, payload: Payload, *, otherwise: Callable[[BaseException], str] | None = None
) -> str | None:
    """Return the key for which a job counts, "" where its class has no keys, None for a job that counts for none.

    The function of the key gets all arguments of `perform`, with their defaults.  otherwise: returns the key where that
    function raises an error or returns what is no key (UsageError); without it, that error is raised.
    Raises MisfitArguments.
    """
    function: Callable[..., Any] | None = definition.local.get(KEY_OPTION)
    if function is None:
        return ""
    positions, keywords = bound(definition, payload)
    call = partial(_key, definition.name, partial(function, *positions, **keywords))
    return call() if otherwise is None else guarded(otherwise, call)


def _key(name: str, function: Callable[[], object]) -> str | None:
    key = function()
    if key is None:
        return None
    if type(key) not in (str, int) or key == "":
        raise UsageError(f"{KEY_OPTION} of {name} returned {shown(key)}, and not text, a number, or None for no limit")
    text = str(key)
    if len(text) <= MAX_KEY_CHARACTERS and ":" not in text and is_unicode(text):
        return text
    # The set of "x:parked" would be the line of "x".
    return sha1(text.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()
