"""The payload: the JSON hash that travels through Redis, as Sidekiq defines it.

1. build      a new payload from a job's name, arguments and options, keys in Ruby's order
   Stencil    the same as bytes, for many jobs that differ in arguments and jid only
2. check      arguments are JSON-native, or an error says where they are not
3. read       bytes → dict, or MalformedPayload with the reason
4. kept       an entry that keeps other bytes whole (of a job: ruby_entries.py)
   wrap       the same for bytes that are not a job, with the reason

Times are float seconds with a fraction: the only form that Sidekiq 6.4, 7 and 8 all read correctly.
Source: sidekiq job_util.rb, api.rb; the traps in tests/unit/sidekiq/test_payload.py.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from os import urandom
from types import NoneType
from typing import NewType

from kiqcluster.errors import InvalidArguments, InvalidPush, MalformedPayload, class_name, message_of
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.conversions import conversion, is_model, key_conversion, type_name
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = [
    "CANCELLED_BY_BATCH",
    "CATTR",
    "CORRELATION_ID",
    "DEFERRED_BY_RATE_LIMIT",
    "DROPPED_BY_CANCEL",
    "ENCRYPT",
    "EXPIRES_IN",
    "EXPIRY",
    "IDEMPOTENCY_KEY",
    "INVALID_PAYLOAD",
    "KEPT_RESULT_TTL",
    "LOCALE",
    "MAX_EPOCH_SECONDS",
    "MAX_NESTING",
    "META",
    "PROMISED_BY",
    "SCHEDULED_AT",
    "TASK_ID",
    "THEN",
    "TRANSIENT_KEYS",
    "USE_TASK_EVENT",
    "VERSION",
    "WRAPPED",
    "WRAPPERS",
    "Jid",
    "Payload",
    "QueueName",
    "Stencil",
    "are_plain",
    "bare",
    "batch_of",
    "build",
    "check_arguments",
    "check_queue_name",
    "check_storable",
    "deferral_count",
    "is_cattr",
    "kept",
    "lock_of",
    "new_jid",
    "new_jids",
    "peek",
    "read",
    "read_object",
    "seconds",
    "stamp",
    "wrap",
]

Jid = NewType("Jid", str)
QueueName = NewType("QueueName", str)
Payload = dict[str, JSON]

JID_BYTES = 12  # each of them two hex digits of a jid
MAX_NESTING = 99  # levels, including the payload itself; Ruby's parser stops at 100
INVALID_PAYLOAD = "Kiqcluster::InvalidPayload"  # class of an entry that keeps other bytes
WRAPPERS = ("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", "Sidekiq::ActiveJob::Wrapper")  # to 7, from 8
VERSION = "version"  # key of the version of the arguments (GitLab)
ENCRYPT = "encrypt"  # key of jobs whose last argument is a secret (Sidekiq Enterprise)
IDEMPOTENCY_KEY = "idempotency_key"  # names the lock of a deduplicated job (GitLab's)
PROMISED_BY = "kiq_rate"  # key of the names of the rate limits that have promised a job a time
CORRELATION_ID, META = "correlation_id", "meta."  # keys of the context (GitLab's): of a request; before other facts
TASK_ID, USE_TASK_EVENT = "task_id", "use_task_event"  # of the wire: id of the batch; true where it counts the job
TRANSIENT_KEYS = ("at", "enqueued_at")  # of a job on its way to a queue; entries of sets do not have them
EXPIRES_IN, EXPIRY = "expires_in", "expiry"  # keys of Sidekiq Pro: seconds from the push or the due time; epoch seconds
THEN = "kiq_then"  # key of a chain: payloads of the jobs that follow, the next one first
KEPT_RESULT_TTL = "kiq_result_ttl"  # key of the last job of a chain until it is pushed: its `result_ttl`
SCHEDULED_AT = "scheduled_at"  # key of the due time of a scheduled job, for the log (GitLab's)
LOCALE, CATTR = "locale", "cattr"  # keys of Sidekiq's middleware for I18n and CurrentAttributes; also cattr_1, …
DROPPED_BY_CANCEL, CANCELLED_BY_BATCH = "cancelled", "batch"  # values of `dropped_by`
DEFERRED_BY_RATE_LIMIT = "rate_limit"  # value of `deferred_by`
WRAPPED = "kiq_wrapped"  # key of an entry that keeps other bytes: "text" or "base64"; no argument can forge it
WRAPPED_NAME = b'"kiq_wrapped"'  # as it is in those bytes
GROUP_SYNTAX = frozenset(" ,=*")  # characters with a meaning in a queue group (queue_groups.py)
PLAIN = frozenset({str, int, bool, NoneType})  # types whose every value is JSON, except for half surrogate pairs
MAX_EPOCH_SECONDS = 1e11  # larger numbers are milliseconds (Sidekiq 8) or invalid


def stamp(now: float) -> float:
    """Return a time in the form of payloads: rounded down to whole milliseconds, as in Sidekiq 8.

    All versions of Ruby's json gem print it with the same digits, and so does the fast path of ruby_json.
    """
    return int(now * 1_000) / 1_000


def new_jid() -> Jid:
    """Return 24 lowercase hex digits, unique for the life of a fleet."""
    return Jid(urandom(JID_BYTES).hex())


def new_jids(count: int) -> list[Jid]:
    """Return `count` jids, with one system call."""
    digits, length = urandom(JID_BYTES * count).hex(), 2 * JID_BYTES
    return [Jid(digits[at : at + length]) for at in range(0, count * length, length)]


def check_queue_name(name: object) -> QueueName:
    """Return the name, or raise InvalidPush: a queue that no command line can name would never be fetched."""
    if not isinstance(name, str) or not name:
        raise InvalidPush(f"a queue name is a non-empty string, not {name!r}")
    if not name.isprintable():
        raise InvalidPush(f"queue name {name!r} holds control characters; no command line could name that queue")
    if not GROUP_SYNTAX.isdisjoint(name):
        raise InvalidPush(
            f"queue name {name!r} holds a space, a comma, = or *, which mean something else in a queue group; "
            "write words joined by _ or -, and : after a namespace"
        )
    return QueueName(name)


def build(name: str, arguments: Sequence[JSON], options: Mapping[str, JSON], jid: Jid, now: float) -> Payload:
    """Return a payload in the key order of Ruby's client; `options` begin with retry and queue."""
    payload = {**options, "args": arguments, "class": name, "jid": jid, "created_at": stamp(now)}
    for key, value in options.items():
        if isinstance(value, list | dict):  # middleware may change the copy, for this job only
            payload[key] = _copied(value)
    return payload


class Stencil:
    """The common part of the payloads of many jobs, as the bytes that `build` and an encoder would produce.

    options: without the keys that the client writes.  Raises TypeError, ValueError, RecursionError as ruby_json does.
    """

    def __init__(self, name: str, options: Mapping[str, JSON], now: float) -> None:
        now = stamp(now)
        self._head = ruby_json.encode({**options, "args": []}).removesuffix(b"[]}")
        self._middle = b"," + ruby_json.encode({"class": name, "jid": ""}).removeprefix(b"{").removesuffix(b'"}')
        self._scheduled = b'",' + ruby_json.encode({"created_at": now}).removeprefix(b"{")
        self._due = b'",' + ruby_json.encode({"created_at": now, "enqueued_at": now}).removeprefix(b"{")

    def fill(self, arguments: Iterable[bytes], jids: Iterable[Jid], times: Iterable[float | None]) -> list[bytes]:
        """Return a payload for each array of arguments.  times: epoch seconds, None for a job that is due."""
        head, middle, due, scheduled = self._head, self._middle, self._due, self._scheduled
        return [
            b"".join((head, array, middle, jid.encode(), due if at is None else scheduled))
            for array, jid, at in zip(arguments, jids, times, strict=True)
        ]


def _copied(value: JSON) -> JSON:
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value


# arguments


def are_plain(arrays: Iterable[list[JSON]]) -> bool:
    """Return whether check_arguments would have to check these lists only for half surrogate pairs."""
    return PLAIN.issuperset(map(type, chain.from_iterable(arrays)))


def check_arguments(arguments: object, complain: Callable[[InvalidArguments], None] | None) -> None:
    """Check that arguments stay unchanged on their way through JSON and Ruby.

    complain: called with an error about a value that is not JSON-native, to raise it or warn; None lets such values
    pass as msgspec writes them.  NaN, infinity, deep nesting and lone surrogates raise in every mode: they cannot be
    stored.
    """
    if type(arguments) is not list:
        raise InvalidArguments(f"arguments are a list, not {type(arguments).__name__}")
    for index, value in enumerate(arguments):
        if type(value) is not str or not value.isascii():
            _check(value, f"args[{index}]", 2, complain)


def check_storable(value: object, path: str, *, may_be_deep: bool = False) -> None:
    """Check that one value can be stored: it is neither NaN nor infinity, nor nested deeply, nor half a surrogate pair.

    path: what messages call it.  may_be_deep: it is kept where no Ruby reads it.  Raises InvalidArguments, which is a
    TypeError.
    """
    _check(value, path, -sys.maxsize if may_be_deep else 2, None)


def _check(value: object, path: str, depth: int, complain: Callable[[InvalidArguments], None] | None) -> None:
    kind = type(value)
    if value is None or kind is int or kind is bool:
        return
    if kind is str:
        if not ruby_json.is_unicode(str(value)):
            raise InvalidArguments(f"{path} holds half a surrogate pair, which UTF-8 cannot store", path)
    elif isinstance(value, float):
        if not isfinite(value):
            raise InvalidArguments(f"{path} is {value}, which JSON cannot store; pass None or a number", path)
    elif isinstance(value, list | tuple | set | frozenset | dict):
        if depth >= MAX_NESTING:
            raise InvalidArguments(f"{path} is nested deeper than {MAX_NESTING} levels, where Ruby stops", path)
        if not isinstance(value, dict):
            for index, each in enumerate(value):
                _check(each, f"{path}[{index}]", depth + 1, complain)
        else:
            _check_mapping(value, path, depth, complain)
    if kind not in (str, float, list, dict) and (complain is not None or is_model(kind)):
        error = InvalidArguments(f"{path} is of type {type_name(value)}, which is not JSON: {conversion(value)}", path)
        if complain is None or is_model(kind):  # a row of a database has no form in JSON at all
            raise error
        complain(error)


def _check_mapping(
    value: Mapping[object, object], path: str, depth: int, complain: Callable[[InvalidArguments], None] | None
) -> None:
    for key, each in value.items():
        if type(key) is not str and complain is not None:
            complain(InvalidArguments(f"{path} has the key {key!r}; {key_conversion(key)}", path))
        if isinstance(key, str) and not ruby_json.is_unicode(key):
            raise InvalidArguments(f"{path} has a key with half a surrogate pair, which UTF-8 cannot store", path)
        _check(each, f"{path}[{key!r}]", depth + 1, complain)


# reading


def read(raw: bytes) -> Payload:
    """Return the payload in `raw`, or in the bytes that it keeps (`kept`).

    Raises MalformedPayload when that is not JSON, not an object, or has no class.
    """
    try:
        payload: Payload | None = ruby_json.decode(raw)
    except ruby_json.Undecodable:
        payload = None
    if type(payload) is not dict or WRAPPED in payload:  # rare: it keeps a job, or is none, and is read again
        payload = read_object(raw)[1]
    name = payload.get("class")
    if type(name) is not str or not name:
        raise MalformedPayload("the payload names no class to run")
    return payload


def read_object(raw: bytes) -> tuple[bytes, Payload]:
    """Return a JSON object and its bytes, which are `raw`, or what it keeps (`kept`).  Raises MalformedPayload."""
    try:
        payload = ruby_json.decode(raw)
    except ruby_json.Undecodable as error:
        raise MalformedPayload(f"the payload is not JSON ({error})") from error
    if type(payload) is not dict:
        raise MalformedPayload(f"the payload is JSON, but no object: {type(payload).__name__}")
    if WRAPPED in payload and (inner := _unwrapped(raw, payload)) is not None:
        return read_object(inner)
    return raw, payload


def peek(raw: bytes) -> tuple[str, str]:
    """Return name and jid for display, or placeholders if there are none."""
    try:
        payload = read(raw)
    except MalformedPayload:
        return "(no job)", "(no jid)"
    return payload["class"], str(payload.get("jid", "(no jid)"))


def lock_of(payload: Payload) -> tuple[str, Jid] | None:
    """Return the name of the lock that the job may hold (keys.lock), and its jid; None for a job without a lock."""
    name, jid = payload.get(IDEMPOTENCY_KEY), payload.get("jid")
    if not (isinstance(name, str) and name and isinstance(jid, str) and jid):
        return None
    return (name, Jid(jid)) if ruby_json.is_unicode(name) and ruby_json.is_unicode(jid) else None


def is_cattr(key: str) -> bool:
    """Return whether a key has attributes of Ruby's CurrentAttributes."""
    return key == CATTR or key.startswith(f"{CATTR}_")


def seconds(value: JSON) -> float | None:
    """Return a time in any Sidekiq's form (float or int seconds, int milliseconds) as epoch seconds, or None."""
    if type(value) not in (int, float) or not 0 < value < MAX_EPOCH_SECONDS * 1_000:
        return None
    return value / 1_000 if value >= MAX_EPOCH_SECONDS else float(value)


# the batch that a job is part of


def batch_of(payload: Payload) -> tuple[str, Jid] | None:
    """Return the id of the batch that counts the job, and its jid; None for a job without one."""
    if payload.get(USE_TASK_EVENT) is not True:
        return None
    identifier, jid = payload.get(TASK_ID), payload.get("jid")
    if not (isinstance(identifier, str) and identifier and isinstance(jid, str) and jid):
        return None
    return (identifier, Jid(jid)) if ruby_json.is_unicode(identifier) and ruby_json.is_unicode(jid) else None


# entries that keep other bytes


def kept(raw: bytes, keys: Mapping[str, JSON]) -> bytes:
    """Return an entry that keeps bytes whole in its only argument, under WRAPPED, with these keys.

    Any page can show the entry, and any poller move it.  `read` and `bare` give the bytes back.
    """
    try:
        text, form = raw.decode(), "text"
    except UnicodeDecodeError:
        text, form = base64.b64encode(raw).decode(), "base64"
    return ruby_json.encode({**keys, "args": [text], "class": INVALID_PAYLOAD, WRAPPED: form})


def wrap(raw: bytes, queue: str, reason: Exception, now: float) -> bytes:
    """Return an entry for the dead set that keeps bytes which are not a job, with the reason.

    Ruby stores such bytes bare, without a reason, and loses JSON that is not an object (trap 12).
    """
    keys = {
        "retry": 0,  # not false: when somebody retries it, a Ruby process would drop it
        "queue": queue,
        "jid": new_jid(),
        "created_at": now,
        "failed_at": now,
        "retry_count": 0,
        "error_class": class_name(reason),
        "error_message": message_of(reason),
    }
    return kept(bare(raw), keys)


def bare(raw: bytes) -> bytes:
    """Return the bytes that an entry keeps, `raw` itself if it is no such entry."""
    if WRAPPED_NAME not in raw:
        return raw
    try:
        payload = ruby_json.decode(raw)
    except ruby_json.Undecodable:
        return raw
    inner = _unwrapped(raw, payload) if isinstance(payload, dict) else None
    return raw if inner is None else bare(inner)


def _unwrapped(raw: bytes, payload: Payload) -> bytes | None:
    """Return the bytes that an entry keeps; None for any other payload: no argument makes one such an entry."""
    form, arguments = payload.get(WRAPPED), payload.get("args")
    if type(arguments) is not list or len(arguments) != 1 or type(arguments[0]) is not str or WRAPPED_NAME not in raw:
        return None
    if form == "text":
        return arguments[0].encode(errors="surrogatepass")
    try:
        return base64.b64decode(arguments[0]) if form == "base64" else None
    except ValueError:  # binascii.Error, or a letter beyond ASCII
        return None


def deferral_count(payload: Payload, *reasons: str | None) -> int:
    """Return how often a job has been deferred, 0 if the latest deferral had none of these reasons.

    None: the job has begun since.
    """
    count = payload.get("deferred_count") if payload.get("deferred_by") in reasons else 0
    return max(0, count) if type(count) is int else 0
