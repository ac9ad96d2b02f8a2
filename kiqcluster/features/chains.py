"""Chains: the end of a job pushes the next one, with what the job has returned as its first argument (client/chains).

The first job's payload has `kiq_then`, the payloads of all jobs after it.  They are prepared at the push of the chain:
queue, jid, context and what client middleware has added are in them, so that a worker needs to know no class.  Each
pushed job takes the rest along.  What the worker adds is the first argument, and the times that count from the push.

| the job                                                       | its chain                                       |
|---------------------------------------------------------------|-------------------------------------------------|
| Done                                                          | the next job is pushed (effects `sadd`, `lpush`) |
| Done, and what it returned cannot be JSON, or has more than 1 MB | the next job is buried                       |
| Done with NormalFailure; Dead, Discard, Dropped               | has ended                                       |
| Retry, Requeue, Interrupted, Deferred, Parked                 | waits                                           |

The rows are written in the step that settles the job, and only by who holds its token: no crash loses the next job, or
pushes it twice.  A dead job that somebody retries still has its chain.
Who waits for the last job is told when its chain ends before (effect `tell`), where its class has `result_ttl`.
Price: two effects, no round trip.  A job without `kiq_then` pays for one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from kiqcluster.application.options import OPTIONS, RESULT_TTL
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import CannotRun, MalformedPayload, NormalFailure, message_of
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.payload import size_limiter
from kiqcluster.features.results import MAX_RESULT_BYTES, described, encoded_result, kept_of, with_encoded
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Done, Effect
from kiqcluster.sidekiq.payload import EXPIRES_IN, EXPIRY, KEPT_RESULT_TTL, THEN, Payload, check_arguments, read, stamp
from kiqcluster.sidekiq.ruby_json import JSON, is_unicode
from kiqcluster.store.entry_moves import Told

__all__ = ["DELETED", "Chains", "ClientChains", "told_of_dropped", "told_of_killed"]

DELETED = "deleted"  # the reason for those who wait for a job that somebody deletes
CLOCK = SystemClock()


class Chains:
    """The server half."""

    name = "chain"
    keys = frozenset({THEN})

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the rows that push the next job, or tell that the chain has ended.  Raises ValueError for no chain."""
        following = _read(end.payload[THEN])
        if not following:
            return ()
        if _goes_on(end):
            return _next_rows(end, following)
        return _told(end, following[-1], _ending(end), end.name, str(end.payload.get("jid", "")))

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        """Return the rows that bury the next job, and tell who waits for the last one; none for what is no chain."""
        with suppress(ValueError):
            following = _read(end.payload[THEN])
            return _burial_rows(end, following, error) if _goes_on(end) and following else self.on_end(end)
        return ()


class ClientChains:
    """The client half, for jobs that do not come to their end."""

    def on_dropped(self, raw: bytes, reason: str) -> list[Told]:
        """Return what those are told who wait for a job that middleware drops where it waits, or for its chain."""
        return told_of_dropped(raw, reason)


def _read(value: JSON) -> list[Payload]:
    """Return the jobs that follow; what nobody could push raises ValueError, which error handlers get."""
    found = value if isinstance(value, list) else [value]
    for each in found:
        texts = [each.get(key) for key in ("class", "queue", "jid")] if isinstance(each, dict) else [None]
        if not all(isinstance(text, str) and text and is_unicode(text) for text in texts) or not isinstance(
            each.get("args"), list
        ):
            raise ValueError(f"{THEN} holds what is no job: {each!r:.200}; its chain ends here")
    return found


def _goes_on(end: JobEnd) -> bool:
    """Return whether the next job is due."""
    return isinstance(end.outcome, Done) and not is_a(end.failure, NormalFailure) and not end.was_skipped


def _next(following: list[Payload]) -> Payload:
    """Return the payload of the next job, which takes the rest of the chain along."""
    following_one, *rest = following
    ttl_key = () if rest else (KEPT_RESULT_TTL,)
    payload = {key: value for key, value in following_one.items() if key not in ttl_key}
    return {**payload, THEN: rest} if rest else payload


def _next_rows(end: JobEnd, following: list[Payload]) -> list[Effect]:
    payload = _next(following)
    encoded, keys, queue = _with_result(payload, end), end.keys, payload["queue"]
    # The push comes last: a row that Redis refuses keeps the unit, whose rows are all written again.
    return [Effect("sadd", keys.queues, (queue,)), Effect("lpush", keys.queue(queue), (encoded,))]


def _burial_rows(end: JobEnd, following: list[Payload], error: BaseException) -> list[Effect]:
    payload = _next(following)
    reason = CannotRun(
        f"what {end.name} {end.payload.get('jid')} has returned cannot be passed on: {message_of(error)}. "
        f"The first argument, which is null here, is missing: push {payload['class']} anew"
    )
    said = {"state": "failed", **described(reason)}
    return [_burial(end, payload, reason), *_told(end, following[-1], said, payload["class"], payload["jid"])]


def _with_result(payload: Payload, end: JobEnd) -> bytes:
    """Return the next job as it is pushed.  Raises whatever says that it cannot be."""
    definition = current_registry().get(end.name)
    returned = end.returned if definition is None else definition.write_result(end.returned)
    check_arguments([returned], None)
    returned, encoded = with_encoded(returned)
    size = len(encoded)
    if size > MAX_RESULT_BYTES:
        raise ValueError(
            f"it has {size} bytes of JSON, and {MAX_RESULT_BYTES} are passed on at most; return where it is"
        )
    now = CLOCK.now()
    complete = {**payload, "args": [returned, *payload["args"][1:]], "enqueued_at": stamp(now)}
    expires_in = payload.get(EXPIRES_IN)
    if isinstance(expires_in, int | float) and OPTIONS[EXPIRES_IN].accepts(expires_in):
        complete[EXPIRY] = stamp(now + expires_in)
    name = payload["class"]
    return size_limiter.limited(current_setup(), name, ruby_json.encode(complete), current_registry().get(name))


def _burial(end: JobEnd, payload: Payload, reason: CannotRun) -> Effect:
    """Return the row that keeps the next job in the dead set, without its first argument."""
    now, config = CLOCK.now(), current_setup().current_config()
    error = described(reason)
    entry = ruby_json.encode({**payload, **error, "failed_at": stamp(now), "retry_count": 0})
    return Effect("bury", end.keys.dead, (repr(now), entry, config.dead_timeout, config.dead_max_jobs))


def _ending(end: JobEnd) -> Mapping[str, JSON] | None:
    """Return what is told of a chain that goes no further; None if the job runs again."""
    if isinstance(end.outcome, Done):
        if end.was_skipped:
            return {"state": "dropped", "reason": "middleware"}
        return None if end.failure is None else {"state": "failed", **described(end.failure)}
    return kept_of(end)


def told_of_dropped(raw: bytes, reason: str) -> list[Told]:
    """Return what those are told who wait for a job that is removed where it waits.

    raw: its payload, or the entry of a parked job.  They wait for it, if its class is defined here, or for the last job
    of its chain.  [] for bytes that are no job.
    """
    return _told_by_hand(raw, {"state": "dropped", "reason": reason})


def told_of_killed(raw: bytes, error: Exception) -> list[Told]:
    """Return the same of a job that is moved to the dead set where it waits."""
    return _told_by_hand(raw, {"state": "failed", **described(error)})


def _told_by_hand(raw: bytes, said: dict[str, JSON]) -> list[Told]:
    try:
        payload = read(raw.rpartition(b"\0")[2])
    except MalformedPayload:
        return []
    _, definition = current_registry().find(payload)
    told, jid = list[Told](), payload.get("jid")
    if not isinstance(jid, str) or not is_unicode(jid):
        return []
    if definition is not None and RESULT_TTL in definition.local:
        told.append(Told(jid, definition.local[RESULT_TTL], encoded_result({**said})))
    with suppress(ValueError):  # foreign bytes, which are no chain
        for last in _read(payload.get(THEN, []))[-1:]:
            if ttl := _result_ttl(last):
                job = {"job": str(payload["class"]), "jid": jid}
                told.append(Told(last["jid"], ttl, encoded_result({**said, **job})))
    return told


def _told(end: JobEnd, last: Payload, said: Mapping[str, JSON] | None, name: str, jid: str) -> tuple[Effect, ...]:
    """Return the row for who waits for the last job.  name, jid: of the job with which the chain has ended."""
    ttl = _result_ttl(last)
    if said is None or not ttl:
        return ()
    return (Effect("tell", end.keys.result(last["jid"]), (encoded_result({**said, "job": name, "jid": jid}), ttl)),)


def _result_ttl(last: Payload) -> int:
    """Return for how many seconds the end of a chain is kept; 0 for not at all.

    A forged value counts as none: Redis would refuse the end of the job for it.
    """
    ttl = last.get(KEPT_RESULT_TTL)
    return ttl if isinstance(ttl, int) and OPTIONS[RESULT_TTL].accepts(ttl) else 0
