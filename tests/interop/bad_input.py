"""What is no job, or a broken one, by kind; and where it ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kiqcluster.sidekiq.payload import bare
from kiqcluster.sidekiq.ruby_json import Undecodable, decode

__all__ = ["CASES", "Case", "case_of", "is_json", "marked"]

ACTIVE_JOB = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"


@dataclass(frozen=True)
class Case:
    """Bytes that lie in a queue, the set in which they end, and a word of the reason that is written there."""

    raw: bytes
    ends_in: str
    reason: str


def job(**fields: Any) -> bytes:
    """Return a payload that would fail in the ordinary way, were it not for the given fields (None leaves one out)."""
    payload = {"class": "Acme::Fragile", "args": [1], "queue": "default", "retry": True, "created_at": 1.5, **fields}
    return json.dumps({key: value for key, value in payload.items() if value is not None}).encode()


CASES = {
    # no job at all
    "empty": Case(b"", "dead", "not JSON"),
    "text": Case(b"certainly not JSON", "dead", "not JSON"),
    "cut off": Case(b'{"class":"Echo","args":[', "dead", "not JSON"),
    "not a number": Case(b'{"class":"Echo","args":[NaN]}', "dead", "not JSON"),
    "not UTF-8": Case(b'{"class":"Echo","args":["\xff\xfe"]}', "dead", "not JSON"),
    "binary": Case(bytes(range(256)), "dead", "not JSON"),
    "number": Case(b"123", "dead", "no object"),
    "null": Case(b"null", "dead", "no object"),
    "list": Case(b"[]", "dead", "no object"),
    "string": Case(b'"x"', "dead", "no object"),
    "too deep": Case(b'{"class":"Echo","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "dead", "not JSON"),
    # no class, or one that nobody knows
    "no class": Case(b'{"args":[1]}', "dead", "no class"),
    "empty object": Case(b"{}", "dead", "no class"),
    "null class": Case(b'{"class":null,"args":[]}', "dead", "no class"),
    "integer class": Case(job(**{"class": 7}), "dead", "no class"),
    "list class": Case(job(**{"class": ["Echo"]}), "dead", "no class"),
    "unknown class": Case(job(**{"class": "Never::Heard"}), "schedule", "unknown_class"),
    "unknown class, no retry": Case(job(**{"class": "Never::Heard"}, retry=False), "schedule", "unknown_class"),
    "unknown class, nothing else": Case(b'{"class":"Never::Heard"}', "schedule", "unknown_class"),
    "unknown class, deferred for long": Case(
        job(**{"class": "Never::Heard"}, retry=False, deferred_count=10), "dead", "no job named"
    ),
    "wrapper of another framework": Case(job(**{"class": ACTIVE_JOB}, wrapped="Mail"), "schedule", "unknown"),
    # arguments
    "object for args": Case(job(args={"a": 1}), "dead", "not a list"),
    "string for args": Case(job(args="abc"), "dead", "not a list"),
    "number for args": Case(job(args=0), "dead", "not a list"),
    "too few args": Case(job(**{"class": "strict"}, args=["x"]), "retry", "missing"),
    "too many args": Case(job(**{"class": "strict"}, args=["x", 1, 2]), "retry", "too many"),
    "args that do not fit, no retry": Case(job(**{"class": "strict"}, args=[], retry=False), "dead", "missing"),
    "mailer of another framework": Case(
        job(**{"class": ACTIVE_JOB}, wrapped="ActionMailer::MailDeliveryJob", args=[{"arguments": ["M", "m"]}]),
        "schedule",
        "unknown",
    ),
    "half a surrogate pair": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":["\\ud800"],"jid":"a1"}', "retry", "broken"
    ),
    "numbers beyond floats": Case(b'{"class":"Acme::Fragile","retry":true,"args":[1e400,-1e400]}', "retry", "broken"),
    "very long integer": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":[' + b"9" * 6_000 + b"]}", "retry", "broken"
    ),
    "as deep as Ruby goes": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":' + b"[" * 99 + b"]" * 99 + b"}", "retry", "broken"
    ),
    "deeper than Ruby goes": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":' + b"[" * 150 + b"]" * 150 + b"}", "retry", "broken"
    ),
    # retry options
    "negative retry": Case(job(retry=-1), "dead", "broken"),
    "retry beyond integers": Case(job(retry=10**30), "retry", "broken"),
    "retry a float": Case(job(retry=1e308), "retry", "broken"),
    "retry a string": Case(job(retry="never"), "retry", "broken"),
    "retry a list": Case(job(retry=[]), "retry", "broken"),
    "retry missing": Case(job(retry=None), "retry", "broken"),
    "retry_for a string": Case(job(retry_for="soon"), "retry", "broken"),
    "retry_for beyond floats": Case(job(retry_for=10**400), "retry", "broken"),
    "retry_for negative": Case(job(retry_for=-5), "dead", "broken"),
    "retry_queue a number": Case(job(retry_queue=5), "retry", "broken"),
    "backtrace a string": Case(job(backtrace="all"), "retry", "broken"),
    "backtrace negative": Case(job(backtrace=-1), "retry", "broken"),
    "backtrace beyond integers": Case(job(backtrace=10**30), "retry", "broken"),
    "dead a string": Case(job(retry=0, dead="no"), "dead", "broken"),
    # fields that break pages of Ruby's web UI
    "tags a string": Case(job(tags="vip"), "retry", "broken"),
    "tags of numbers": Case(job(tags=[1, None]), "retry", "broken"),
    "jid an integer": Case(job(jid=12345), "retry", "broken"),
    "jid empty": Case(job(jid=""), "retry", "broken"),
    "created_at a string": Case(job(created_at="2026-01-01"), "retry", "broken"),
    "created_at beyond time": Case(job(created_at=10**30), "retry", "broken"),
    "created_at negative": Case(job(created_at=-1), "retry", "broken"),
    "created_at in milliseconds": Case(job(created_at=1795168815271), "retry", "broken"),
    "enqueued_at a string": Case(job(enqueued_at="now"), "retry", "broken"),
    "failed_at a string": Case(job(failed_at="now", retry_count=1), "retry", "broken"),
    "retry_count a string": Case(job(retry_count="3", failed_at=1.5), "retry", "broken"),
    "retry_count a float": Case(job(retry_count=1.5, failed_at=1.5), "retry", "broken"),
    "retry_count beyond integers": Case(job(retry_count=10**30, failed_at=1.5, retry=10**31), "retry", "broken"),
    "retry_count without failed_at": Case(job(retry_count=3), "retry", "broken"),
    "error_backtrace a list": Case(job(error_backtrace=["a", "b"], backtrace=False), "retry", "broken"),
    "error_backtrace nonsense": Case(job(error_backtrace="!", backtrace=False), "retry", "broken"),
    "queue a number": Case(job(queue=5), "retry", "broken"),
    "queue missing": Case(job(queue=None), "retry", "broken"),
    "encrypted, but empty": Case(job(args=[], encrypt=True), "retry", "broken"),
    "wrapped a number": Case(job(wrapped=5), "retry", "broken"),
    "display_class a number": Case(job(display_class=5), "retry", "broken"),
    "malformed everywhere, unknown class": Case(
        job(**{"class": "Never::Heard"}, tags="x", created_at="x", jid=1, retry_count="x", error_backtrace=[]),
        "schedule",
        "unknown_class",
    ),
    "malformed everywhere, no class": Case(
        job(**{"class": None}, tags="x", created_at="x", jid=1, retry_count="x", error_backtrace=[], failed_at=[]),
        "dead",
        "no class",
    ),
}


def marked(name: str, raw: bytes) -> bytes:
    """Return a case's bytes with its name in them, where they are an object or look like one."""
    if not raw.startswith(b"{"):
        return raw
    comma = b"" if raw == b"{}" else b","
    return b'{"case":' + json.dumps(name).encode() + comma + raw[1:]


def is_json(raw: bytes) -> bool:
    """Return whether bytes are an object that could be written as JSON again."""
    try:
        json.dumps(json.loads(raw), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return raw.startswith(b"{")


def case_of(raw: bytes) -> str:
    """Return the case that became an entry: by its mark, or by the bytes that the entry keeps."""
    kept = bare(raw)
    try:
        return str(decode(kept)["case"])
    except (Undecodable, TypeError, KeyError):
        return next(name for name, case in CASES.items() if marked(name, case.raw) == kept)
