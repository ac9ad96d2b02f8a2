"""ActiveJob: the envelope of Rails' jobs, and its form of arguments.

1. unwrapped   payload → content of its envelope: the class that runs, and arguments for display as on Ruby's pages
2. run         calls perform with the arguments of an envelope, in Python's types
3. enveloped   arguments → an envelope that ActiveJob can run too
4. attributes  what Sidekiq's middleware for CurrentAttributes has stored, by name

Types that JSON lacks are objects marked by `_aj_…` keys.  A value without a meaning in Python raises CannotDeserialize.
Counterpart: rails activejob core.rb, arguments.rb, serializers/ (6.1 to 8); sidekiq api.rb (8.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from inspect import Signature
from typing import Any, TypeVar
from uuid import uuid4

from kiqcluster.errors import CannotDeserialize, InvalidArguments, MisfitArguments
from kiqcluster.sidekiq.payload import WRAPPERS, Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["WRAPPER", "Envelope", "Keywords", "attributes", "deserialized", "enveloped", "is_mail", "run", "unwrapped"]

R = TypeVar("R")

WRAPPER = WRAPPERS[0]  # class of our payloads: every ActiveJob with any Sidekiq loads it, from 8 on as an alias
RESERVED_PREFIX = "_aj_"  # of all keys that ActiveJob interprets
GLOBAL_ID, SERIALIZER = "_aj_globalid", "_aj_serialized"
SYMBOL_KEYS, KEYWORDS, INDIFFERENT = "_aj_symbol_keys", "_aj_ruby2_keywords", "_aj_hash_with_indifferent_access"
SERIALIZER_PREFIX = "ActiveJob::Serializers::"
MAIL_DELIVERY_CLASS = "ActionMailer::MailDeliveryJob"
MAIL_CLASSES = {
    "ActionMailer::DeliveryJob": 3,
    MAIL_DELIVERY_CLASS: 4,
}  # mail delivery jobs → least number of arguments


# display, and the class that runs


@dataclass(frozen=True, slots=True)
class Envelope:
    """The content of ActiveJob's envelope in a payload.

    job_class: the class that runs.  name: its name, or `Mailer#method` for a mail.  arguments: in ActiveJob's form.
    """

    job_class: str
    name: str
    arguments: list[JSON]

    @property
    def display_args(self) -> list[JSON]:
        """The arguments without ActiveJob's marks; a GlobalID as its text; for a mail, the arguments of its method."""
        try:
            arguments = [_shown(argument) for argument in self.arguments]
        except RecursionError:
            return self.arguments
        if self.name == self.job_class:
            return arguments
        if self.job_class == MAIL_DELIVERY_CLASS and isinstance(options := arguments[3], dict):
            return [options.get("params"), options.get("args")]
        return arguments[3:]


def unwrapped(payload: Payload) -> Envelope | None:
    """Return the content of the payload's envelope; None if it has no valid envelope."""
    if payload.get("class") not in WRAPPERS:
        return None
    arguments = payload.get("args")
    outer = arguments if isinstance(arguments, list) else []
    envelope = outer[0] if outer and isinstance(outer[0], dict) else {}
    job_class = payload.get("wrapped") or envelope.get("job_class")
    if not isinstance(job_class, str) or not job_class:
        return None
    inner = envelope.get("arguments")
    if not isinstance(inner, list):
        return Envelope(job_class, job_class, outer)
    is_mail = job_class in MAIL_CLASSES and len(inner) >= MAIL_CLASSES[job_class]
    return Envelope(job_class, f"{inner[0]}#{inner[1]}" if is_mail else job_class, inner)


def is_mail(payload: Payload) -> bool:
    """Return whether the payload is a mail delivery job, of which Ruby's pages show what its envelope says."""
    return payload.get("class") in WRAPPERS and payload.get("wrapped") in MAIL_CLASSES


def _shown(value: JSON) -> JSON:
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {GLOBAL_ID}:
        return value[GLOBAL_ID]
    return {key: _shown(each) for key, each in value.items() if not key.startswith(RESERVED_PREFIX)}


# from an envelope


def run(name: str, signature: Signature, perform: Callable[..., R], envelope: JSON) -> R:
    """Call perform with the arguments in an envelope.  Raises CannotDeserialize, MisfitArguments."""
    positions, keywords = _bound(name, signature, *deserialized(envelope))
    return perform(*positions, **keywords)


def deserialized(envelope: JSON) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments of an envelope, in Python's types.  Raises CannotDeserialize."""
    arguments = envelope.get("arguments") if isinstance(envelope, dict) else None
    if not isinstance(arguments, list):
        raise CannotDeserialize("args[0] is not an envelope of ActiveJob: it has no list of arguments")
    positions = _read_list(arguments, "arguments")
    if arguments and isinstance(arguments[-1], dict) and KEYWORDS in arguments[-1]:
        return positions[:-1], positions[-1]
    return positions, {}


def _bound(
    name: str, signature: Signature, positions: list[Any], keywords: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments that the signature takes.

    Keywords that it does not have become one dict at the end, as for a Ruby method that takes no keywords.
    """
    try:
        signature.bind(*positions, **keywords)
    except TypeError as error:
        if keywords:
            try:
                signature.bind(*positions, keywords)
            except TypeError:
                pass
            else:
                return [*positions, keywords], {}
        raise MisfitArguments(f"{name}{signature}: {error}") from error
    return positions, keywords


def _read_list(values: list[JSON], path: str) -> list[Any]:
    return [
        _read(value, f"{path}[{index}]") if isinstance(value, dict | list) else value
        for index, value in enumerate(values)
    ]


def _read(value: JSON, path: str) -> Any:
    if isinstance(value, list):
        return _read_list(value, path)
    if not isinstance(value, dict):
        return value
    if value.keys() == {GLOBAL_ID}:
        raise CannotDeserialize(
            f"{path} is the GlobalID {value[GLOBAL_ID]}, which only the Rails application can look up; pass its id"
        )
    if SERIALIZER in value:
        return _read_object(value, path)
    unknown = [
        key for key in value if key.startswith(RESERVED_PREFIX) and key not in (SYMBOL_KEYS, KEYWORDS, INDIFFERENT)
    ]
    if unknown:
        raise CannotDeserialize(f"{path} has ActiveJob's key {unknown[0]!r}, whose meaning is not known here")
    return {key: _read(each, f"{path}[{key!r}]") for key, each in value.items() if not key.startswith(RESERVED_PREFIX)}


def _read_object(value: Mapping[str, JSON], path: str) -> Any:
    serializer = value[SERIALIZER]
    reader = READERS.get(serializer) if isinstance(serializer, str) else None
    if reader is None:
        raise CannotDeserialize(f"{path} was written by {serializer}, which has no equal in Python; pass JSON values")
    try:
        return reader(value["value"])
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CannotDeserialize(f"{path} was written by {serializer}, and cannot be read: {error!r}") from error


def _read_text(value: JSON) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _read_duration(value: JSON) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number of seconds")
    return timedelta(seconds=value)


def _read_time(value: JSON) -> datetime:
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return time


READERS: Mapping[str, Callable[[JSON], Any]] = {  # serializer → reader of an object's `value`
    f"{SERIALIZER_PREFIX}SymbolSerializer": _read_text,
    f"{SERIALIZER_PREFIX}DurationSerializer": _read_duration,
    f"{SERIALIZER_PREFIX}DateSerializer": date.fromisoformat,
    f"{SERIALIZER_PREFIX}DateTimeSerializer": _read_time,
    f"{SERIALIZER_PREFIX}TimeSerializer": _read_time,
    f"{SERIALIZER_PREFIX}TimeWithZoneSerializer": _read_time,
    f"{SERIALIZER_PREFIX}BigDecimalSerializer": lambda value: Decimal(_read_text(value)),
}


def attributes(stored: JSON) -> dict[str, Any]:
    """Return attributes of Ruby's CurrentAttributes by name; {} for anything else.

    stored: an object, as Sidekiq before 8 writes it, or a list of pairs in ActiveJob's form.  What has no meaning in
    Python, such as a GlobalID, stays as it is stored.
    """
    if isinstance(stored, dict):
        return stored
    pairs = stored if isinstance(stored, list) else []
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return {}
    found = {_read_or_left(name): _read_or_left(value) for name, value in pairs if not isinstance(name, list)}
    return found if all(isinstance(name, str) for name in found) else {}


def _read_or_left(value: JSON) -> Any:
    try:
        return _read(value, "cattr")
    except (CannotDeserialize, RecursionError):
        return value


# into an envelope


class Keywords(dict[str, Any]):
    """Keyword arguments, at the end of a list of positional arguments."""


def enveloped(job_class: str, queue: str, arguments: Sequence[Any], now: float) -> Payload:
    """Return the envelope of a job, keys in ActiveJob's order.

    The process that runs it chooses locale and time zone.  Raises InvalidArguments for a time without a zone and for
    keys that ActiveJob interprets.  Other values that JSON lacks pass; the client complains about them.
    """
    return {
        "job_class": job_class,
        "job_id": str(uuid4()),
        "provider_job_id": None,
        "queue_name": queue,
        "priority": None,
        "arguments": [_written(value, f"args[{index}]") for index, value in enumerate(arguments)],
        "executions": 0,
        "exception_executions": {},
        "locale": None,
        "timezone": None,
        "enqueued_at": _iso(datetime.fromtimestamp(now, UTC)).replace("+00:00", "Z"),
    }


def _written(value: Any, path: str) -> JSON:
    if type(value) is list:
        return [_written(each, f"{path}[{index}]") for index, each in enumerate(value)]
    if type(value) in (dict, Keywords):
        return _written_mapping(value, path)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArguments(f"{path} is {value!r}, which has no time zone; pass datetime.now(UTC), say", path)
        return _object("TimeSerializer", _iso(value))
    if isinstance(value, date):
        return _object("DateSerializer", value.isoformat())
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        number = int(seconds) if seconds.is_integer() else seconds
        return {**_object("DurationSerializer", number), "parts": [[_object("SymbolSerializer", "seconds"), number]]}
    if isinstance(value, Decimal):
        return _object("BigDecimalSerializer", str(value))
    return value


def _written_mapping(value: Mapping[Any, Any], path: str) -> JSON:
    if GLOBAL_ID in value or SERIALIZER in value:  # the caller wrote ActiveJob's form of a value that Python lacks
        return value
    written: dict[Any, JSON] = {}
    for key, each in value.items():
        if isinstance(key, str) and key.startswith(RESERVED_PREFIX):
            raise InvalidArguments(f"{path} has the key {key!r}, which means something to ActiveJob", path)
        written[key] = _written(each, f"{path}[{key!r}]")
    written.update({KEYWORDS: list(value)} if isinstance(value, Keywords) else {SYMBOL_KEYS: []})
    return written


def _object(serializer: str, value: JSON) -> dict[str, JSON]:
    return {SERIALIZER: SERIALIZER_PREFIX + serializer, "value": value}


def _iso(time: datetime) -> str:
    """Return a time as ISO 8601 that Ruby reads: with an offset of whole minutes."""
    offset = time.utcoffset()
    if offset is None or offset.seconds % 60 or offset.microseconds:
        time = time.astimezone(UTC)
    return time.isoformat(timespec="microseconds")
