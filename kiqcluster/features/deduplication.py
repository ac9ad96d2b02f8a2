"""Deduplication: a push is dropped while an equal job waits, or runs; or equal jobs run one after the other.

Equal: the same class, and the same arguments or the same `deduplicate_key`.  `idempotency_key` in the payload is
"<class>:<sha256>", as GitLab calls it.  The queue is no part of it: `set(queue=…)`, `kiqctl migrate` and a change of
routing give a job another queue, and it is still the same work.

A lock (kiq:lock:<idempotency_key>) has the jid of its holder.  Only the job with that jid extends or releases it.
strategy                    the push claims the lock; it is released
until_executing             before the job runs
until_executed              when the job has ended for good; with `reschedule_once`, handed on to one more run if a push
                            was refused while the job ran
while_executing             no lock: a place in a limit of one for the time of the run; others are parked (parked.lua)
until_and_while_executing   until_executing, and a place for the run

A job that comes back (a retry, a forced stop, a kill) keeps its jid and so its lock.  Its time to live is only for what
nobody settles: a job that Ruby ran, a queue that was cleared.
Price: the push is one script instead of two commands.  A run costs the begin script, but none under until_executed
without `reschedule_once`, unless the job has waited for more than half of the lock's time.  The end costs none.
Redis calls inside of scripts: 7 for a push (2 commands without this), 2 or 3 at the begin, 3 at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Any

from kiqcluster.application.bound_calls import bound, without_defaults
from kiqcluster.application.options import CLAIMING, EXCLUSIVE, NO_STRATEGY, UNTIL_START
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import InvalidPush, MalformedPayload
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.payload import encryption
from kiqcluster.process.boundary.calls import guarded, is_a, shown
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import due_at
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Run, current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Dropped, Effect, Retry
from kiqcluster.sidekiq.payload import (
    EXPIRES_IN,
    EXPIRY,
    IDEMPOTENCY_KEY,
    SCHEDULED_AT,
    Payload,
    lock_of,
    new_jid,
    seconds,
    stamp,
)
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["DEFAULT_TTL_SECONDS", "ONE_AT_A_TIME", "ClientDeduplication", "ServerDeduplication", "idempotency_key"]

DEFAULT_TTL_SECONDS = 6 * 3_600
ENDED = (Done, Discard, Dead, Dropped)  # outcomes after which the job never runs again
# Keys that a payload has because of what happened to its job, and that one more run does not take over.
HISTORY = (
    *("retry_count", "failed_at", "retried_at", "error_class", "error_message", "error_backtrace", "at"),
    *("interrupted_count", "deferred", "deferred_by", "deferred_count", SCHEDULED_AT),
)
ONE_AT_A_TIME = ":while_executing"  # behind the class in the name of the limit (kiqctl limits)
CLOCK = SystemClock()


class ClientDeduplication:
    """The client half: claims the lock with the push."""

    def is_used_by(self, definition: Definition) -> bool:
        """Return whether the job is deduplicated."""
        strategy: str = definition.local.get("deduplicate", NO_STRATEGY)
        return strategy != NO_STRATEGY

    def on_push(self, push: Push, definition: Definition) -> Iterable[Effect]:
        """Name the lock in the payload; return the rows that claim it, and count a refused push."""
        local = definition.local
        is_claiming = local["deduplicate"] in CLAIMING
        claims = is_claiming and (push.at is None or bool(local.get("deduplicate_scheduled")))
        # The worker cannot tell equal arguments that are encrypted: the payload names their place.
        is_told = local["deduplicate"] in EXCLUSIVE and encryption.is_secret(push.payload)
        if is_claiming and not claims and not is_told:
            return []
        name = idempotency_key(definition, push.payload)
        if name is None:
            return []
        push.payload[IDEMPOTENCY_KEY] = name
        if not claims:
            return []
        now = CLOCK.now()
        delay = 0.0 if push.at is None else max(0.0, due_at(push.at, now) - now)
        ttl, keys = _ttl(definition.local), push.keys
        rows = [
            Effect("claim", keys.lock(name), (push.payload["jid"], ttl + ceil(delay))),
            Effect("count_refused", keys.deduplicated, (definition.name,)),
        ]
        if local.get("reschedule_once"):
            rows.append(Effect("mark_refused", keys.reschedule(name), (ttl,)))
        return rows


class ServerDeduplication:
    """The server half: releases the lock, keeps it, or hands it on; takes a place for the run."""

    name = "deduplication"
    keys = frozenset({IDEMPOTENCY_KEY})

    def is_used_by(self, definition: Definition) -> bool:
        """Return whether each run needs a place; the locks of other runs are named in their payloads."""
        return definition.local.get("deduplicate") in EXCLUSIVE

    def asks_ahead(self, definition: Definition) -> bool:
        """Return whether the lock stays until the end."""
        return definition.local.get("deduplicate") not in UNTIL_START

    def on_begin(self, run: Run) -> Iterable[Effect]:
        """Return the rows that release the lock before the run, or have it last; and those that take a place."""
        definition: Definition = run.job
        local, keys = definition.local, run.keys
        strategy = local.get("deduplicate")
        rows: list[Effect] = []
        if (lock := lock_of(run.payload)) is not None:
            name, jid = lock
            if strategy in UNTIL_START:
                rows.append(Effect("clear", keys.lock(name), (jid,)))
            elif strategy == "until_executed":
                if local.get("reschedule_once"):
                    rows.append(Effect("clear", keys.reschedule(name), (jid,)))
                if _has_waited_long(run.payload, _ttl(local)):
                    rows.append(Effect("renew", keys.lock(name), (jid, _ttl(local))))
        if (
            strategy in EXCLUSIVE
            and (place := self._place(definition, run.payload, keys, is_ahead=current_job() is None)) is not None
        ):
            rows.append(Effect("enter", place[0], (1, place[1], "park")))
        return rows

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that releases the lock, has it last until the job comes back, or hands it on.

        And the one that sends the next equal job on, if this one ends before it asked for a place.
        """
        definition = current_registry().get(end.name)
        return [*self._passed_on(end, definition), *self._lock_rows(end, definition)]

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        """Return the row of the lock; the sweep sends the next equal job on."""
        return self._lock_rows(end, current_registry().get(end.name))

    def on_unreadable(self, payload: Payload, keys: Keys, _error: MalformedPayload) -> Iterable[Effect]:
        """Return the row that releases the lock."""
        lock = lock_of(payload)
        return () if lock is None else (Effect("clear", keys.lock(lock[0]), (lock[1],)),)

    def _lock_rows(self, end: JobEnd, definition: Definition | None) -> Iterable[Effect]:
        lock = lock_of(end.payload)
        if lock is None:
            return []
        name, jid = lock
        local = {} if definition is None else definition.local
        key, outcome = end.keys.lock(name), end.outcome
        if not isinstance(outcome, ENDED):
            delay = max(0.0, outcome.at - CLOCK.now()) if isinstance(outcome, Retry | Deferred) else 0.0
            return [Effect("extend", key, (jid, _ttl(local) + ceil(delay)))]
        if isinstance(outcome, Done) and local.get("deduplicate") in UNTIL_START:
            return []  # it was released when the run began
        if local.get("reschedule_once"):
            return [_handed_on(end, name, jid, _ttl(local))]
        return [Effect("clear", key, (jid,))]

    def line_of(self, definition: Definition, payload: Payload, keys: Keys) -> str | None:
        """Return the set in which a job takes a place, None for none.  Raises what the key's function does."""
        return _line_of(definition, payload, keys, None)

    def _place(
        self, definition: Definition, payload: Payload, keys: Keys, *, is_ahead: bool = False
    ) -> tuple[str, str] | None:
        """Return the set in which a job takes a place for its run, and the name of that limit; None for none.

        Jobs whose `deduplicate_key` fails, which is reported once a minute, run one after the other.  is_ahead: it is
        not the job's turn yet, so that error is raised.  Raises MisfitArguments.
        """
        line = _line_of(definition, payload, keys, None if is_ahead else partial(self._report, definition))
        return None if line is None else (line, f"{definition.name}{ONE_AT_A_TIME}")

    def _report(self, definition: Definition, error: BaseException) -> str:
        current_setup().notify_once(error, f"deduplicate_key of {definition.name}")
        return ""

    def _passed_on(self, end: JobEnd, definition: Definition | None) -> list[Effect]:
        if definition is None or not end.has_left_line or definition.local.get("deduplicate") not in EXCLUSIVE:
            return []
        place = self._place(definition, end.payload, end.keys)
        return [] if place is None else [Effect("pass_on", place[0], (1, place[1]))]


def _line_of(
    definition: Definition, payload: Payload, keys: Keys, otherwise: Callable[[BaseException], str] | None
) -> str | None:
    lock = lock_of(payload)
    name = lock[0] if lock is not None else idempotency_key(definition, payload, otherwise=otherwise)
    return None if name is None else keys.slots(f"{definition.name}{ONE_AT_A_TIME}", name.rpartition(":")[2])


def idempotency_key(
    definition: Definition, payload: Payload, *, otherwise: Callable[[BaseException], str] | None = None
) -> str | None:
    """Return "<class>:<sha256>" of a job: of its `deduplicate_key`, else of its arguments as JSON, objects in order.

    Both see the call of `perform`: an argument that is left out is the same as its default.
    None for a job that has no equals: its `deduplicate_key` has returned None.  otherwise: returns the key where that
    function raises an error or returns what is no key (TypeError); without it, that error is raised.
    Raises InvalidPush for what JSON cannot hold, MisfitArguments.
    """
    of_arguments = definition.local.get("deduplicate_key")
    if of_arguments is None:
        try:  # without strict arguments, anything may be among them
            text = ruby_json.encode(_in_order(without_defaults(definition, payload))).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidPush(f"{definition.name}: the arguments hold what JSON cannot ({error})") from error
    else:
        positions, keywords = bound(definition, payload)
        call = partial(_key, definition.name, partial(of_arguments, *positions, **keywords))
        found = call() if otherwise is None else guarded(otherwise, call)
        if found is None:
            return None
        text = found
    said = f"{definition.name}:{text}"
    digest = encryption.keyed(current_setup(), said) if encryption.is_secret(payload) else None
    return f"{definition.name}:{digest or sha256(said.encode(errors='surrogatepass')).hexdigest()}"


def _key(name: str, function: Callable[[], object]) -> str | None:
    key = function()
    if key is None or is_a(key, str):
        return None if key is None else str.__str__(key)
    if type(key) is not int:
        raise TypeError(
            f"{name}: deduplicate_key returned {shown(key)}; it returns text, a number, or None for no equals"
        )
    return str(key)


def _in_order(value: JSON) -> JSON:
    """Return the value with the keys of each object in order: two pushes may have written them in another one."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(each) for each in value] if isinstance(value, list | tuple) else value


def _ttl(local: Mapping[str, Any]) -> int:
    return int(local.get("deduplicate_ttl", DEFAULT_TTL_SECONDS))


def _has_waited_long(payload: Payload, ttl: int) -> bool:
    """Return whether so much of the lock's time has passed that it might end during the run."""
    enqueued_at = seconds(payload.get("enqueued_at"))
    return enqueued_at is None or CLOCK.now() - enqueued_at > ttl / 2


def _handed_on(end: JobEnd, name: str, jid: str, ttl: int) -> Effect:
    """Return the row that runs the job once more, under a jid of its own, if a push was refused while it ran."""
    keys, now, again = end.keys, stamp(CLOCK.now()), new_jid()
    changes: Payload = {"jid": again, "created_at": now, "enqueued_at": now, "rescheduled_once": True}
    if EXPIRY in end.payload and (duration := seconds(end.payload.get(EXPIRES_IN))) is not None:
        changes[EXPIRY] = now + duration
    payload = entry_for_ruby(end.raw, changes, end.queue, HISTORY)
    queue = (keys.queues, keys.queue(end.queue), end.queue)
    return Effect("hand_on", keys.lock(name), (jid, keys.reschedule(name), again, ttl, *queue, payload))
