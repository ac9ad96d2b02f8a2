"""Entries that Ruby can show and enqueue: jobs in the schedule, retry and dead set, and running ones on its busy page.

1. misfits          the keys on which a page of a supported Sidekiq breaks, or for which its poller loses the entry
2. entry_for_ruby   a job's bytes with some keys of ours changed; all others are carried on byte for byte

A payload that somebody else made is never mended, apart from times that its next push sets again.  If it has another
misfit, or is JSON that Ruby cannot read, its bytes are kept whole in an entry that any page can show (payload.kept).
Whoever reads that entry sees the job in it.

Price: nothing for a job that succeeds; a failure, a deferral and a burial decode the payload once more.
Source: all keys in 26 shapes on the pages, and through the client, of Sidekiq 6.4.1, 7.3.10 and 8.1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from kiqcluster.sidekiq import backtraces, ruby_json
from kiqcluster.sidekiq.payload import TRANSIENT_KEYS, WRAPPERS, Payload, kept, new_jid, read_object, seconds
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["entry_for_ruby", "misfits"]

MAX_RETRY_WINDOW_SECONDS = 1_000_000_000  # of `retry_for` (sidekiq job_util.rb)
MAX_SCORE = 1e300  # of `at`: Redis refuses integers beyond the floats
MAIL_DELIVERY = "ActionMailer::MailDeliveryJob"
MAILS = ("ActionMailer::DeliveryJob", MAIL_DELIVERY)


def entry_for_ruby(raw: bytes, changes: Mapping[str, JSON], queue: str, without: Collection[str] = ()) -> bytes:
    """Return a job with some keys changed or left out, as every supported Ruby can show and enqueue it.

    raw: of a JSON object, or of an entry that keeps one.  queue: for a payload that names none.
    TRANSIENT_KEYS with misfits are left out too: Sidekiq Pro has written `enqueued_at` as text (sidekiq#3928).
    Raises MalformedPayload.
    """
    raw, payload = read_object(raw)
    unfit = [key for key in TRANSIENT_KEYS if key in payload and not CHECKS[key](payload[key])]
    without = {*without, *unfit}
    whole = {key: value for key, value in payload.items() if key not in without}
    changes = {**_supplied(payload, queue), **changes}
    whole.update(changes)
    changed = ruby_json.patch(raw, changes, without)
    if not misfits(whole) and ruby_json.ruby_writes(whole):
        return changed
    return kept(changed, dict(_shown(whole)))


def _supplied(payload: Payload, queue: str) -> dict[str, JSON]:
    """Return the keys that an entry needs, and that the payload leaves unset, as Ruby's client supplies them."""
    supplied: dict[str, JSON] = {}
    if not _is_text(payload.get("queue")):
        supplied["queue"] = queue
    if payload.get("jid") in (None, ""):
        supplied["jid"] = new_jid()
    if payload.get("args") is None:
        supplied["args"] = []  # Ruby calls perform without arguments
    return supplied


def _shown(payload: Payload) -> Iterator[tuple[str, JSON]]:
    """Yield what pages show of a job that an entry keeps."""
    name, jid = payload.get("class"), payload.get("jid")
    yield "retry", True  # a Ruby process does not know the class: it puts the entry back into its retry set
    yield "queue", payload["queue"]
    yield "jid", jid if _is_text(jid) else new_jid()
    yield "display_class", name if _is_text(name) else ""
    if _is_set(payload.get("encrypt")):
        yield "encrypt", True  # pages mask the last argument
    for key, fits in SHOWN.items():
        if key in payload and fits(payload[key]):
            yield key, payload[key]


# what fits


def misfits(payload: Payload) -> list[str]:
    """Return the keys on which a page of a supported Sidekiq breaks, or for which its poller loses the entry.

    To Ruby, null and false are the same as a key that is not there.
    """
    found = [key for key, fits in CHECKS.items() if key in payload and not fits(payload[key])]
    found += [key for key in ("class", "args") if key not in payload]
    if "encrypt" in payload and not payload.get("args") and _is_set(payload["encrypt"]):  # pages mask the last argument
        found.append("encrypt")
    if payload.get("class") in WRAPPERS and "args" not in found and not _is_envelope(payload):
        found.append("wrapped")
    return found


def _is_set(value: JSON) -> bool:
    return value is not None and value is not False


def _is_text(value: JSON) -> bool:
    return isinstance(value, str) and value != "" and ruby_json.is_unicode(value)


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _or_unset(fits: Callable[[JSON], bool]) -> Callable[[JSON], bool]:
    return lambda value: not _is_set(value) or fits(value)


CHECKS: Mapping[str, Callable[[JSON], bool]] = {
    "class": lambda value: isinstance(value, str) and value != "",
    "args": lambda value: isinstance(value, list),
    "jid": lambda value: isinstance(value, str) and value != "",  # the page of a job is reached by it
    "tags": _or_unset(lambda value: isinstance(value, list)),
    "cattr": lambda value: value is None or isinstance(value, list | dict),
    "created_at": _or_unset(_is_number),
    "enqueued_at": _or_unset(_is_number),
    "failed_at": _or_unset(_is_number),
    "retried_at": _or_unset(_is_number),
    "retry_count": _or_unset(_is_number),
    "retry_for": _or_unset(lambda value: _is_number(value) and value <= MAX_RETRY_WINDOW_SECONDS),
    "error_backtrace": _or_unset(lambda value: backtraces.decode(value) is not None),
    "at": lambda value: _is_number(value) and abs(value) < MAX_SCORE,
}
SHOWN: Mapping[str, Callable[[JSON], bool]] = {
    "created_at": lambda value: seconds(value) is not None,
    "failed_at": lambda value: seconds(value) is not None,
    "retried_at": lambda value: seconds(value) is not None,
    "retry_count": lambda value: type(value) is int,
    "error_class": _is_text,
    "error_message": _is_text,
    "error_backtrace": lambda value: backtraces.decode(value) is not None,
}


def _is_envelope(payload: Payload) -> bool:
    """Return whether pages can show ActiveJob's envelope; of a mailer they show the arguments after three names."""
    arguments, wrapped = payload["args"], payload.get("wrapped")
    envelope = arguments[0] if arguments else None
    job_class = wrapped if _is_set(wrapped) else envelope
    if job_class in MAILS:
        inner = envelope.get("arguments") if isinstance(envelope, dict) else None
        if job_class != MAIL_DELIVERY or not isinstance(inner, list):
            return isinstance(inner, list)
        return len(inner) > 3 and isinstance(inner[3], dict) and inner[3].keys() != {"_aj_globalid"}
    return not _is_set(wrapped) or isinstance(envelope, dict | str)
