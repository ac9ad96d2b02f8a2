"""Every key of a payload in every shape that a client has written, or may write; and which of them break Ruby's pages.

BREAKING was seen with real Sidekiq 6.4.1, 7.3.10 and 8.1.7: an entry with each key in each shape was put into a queue,
the sets and the list of running jobs, all pages were asked for, and the entry was pushed as their pollers do.
"""

from __future__ import annotations

__all__ = ["BREAKING", "KEYS", "PAIRS", "SHAPES"]

# As Sidekiq 8 writes the attributes of CurrentAttributes (ActiveJob::Arguments.serialize).
PAIRS = '[[{"_aj_serialized":"ActiveJob::Serializers::SymbolSerializer","value":"tenant"},"acme"]]'
KEYS = (
    *("class", "args", "jid", "queue", "retry", "retry_for", "retry_queue", "backtrace", "dead", "tags", "log_level"),
    *("created_at", "enqueued_at", "scheduled_at", "failed_at", "retried_at", "retry_count", "at"),
    *("error_class", "error_message", "error_backtrace", "cattr", "cattr_1", "locale", "wrapped", "display_class"),
    *("encrypt", "bid", "expiry", "expires_in", "unique_for", "profile", "correlation_id", "meta.user", "traceparent"),
    *("version", "idempotency_key", "interrupted_count", "deferred", "deferred_by", "deferred_count", "compressed"),
    *("task_id", "kiq_then", "kiq_rate", "finished_at", "processor", "some_key_of_sidekiq_9"),
)
SHAPES = {
    "null": "null",
    "true": "true",
    "false": "false",
    "zero": "0",
    "a number": "7",
    "a negative number": "-2",
    "a fraction": "1.5",
    "a fraction in another spelling": "1.50E+1",
    "milliseconds": "1795168815271",
    "a huge number": "1" + "0" * 30,
    "no text": '""',
    "text": '"text"',
    "digits": '"5"',
    "text in another spelling": '"\\u0074e\\/xt"',
    "a time as text": '"2026-11-20T00:00:00Z"',
    "no list": "[]",
    "numbers": "[1,2.50]",
    "texts": '["a","b"]',
    "nulls": "[null]",
    "lists": "[[1]]",
    "objects": '[{"a":1}]',
    "pairs": PAIRS,
    "with spaces": '[ 1 , {"a" : 2} ]',
    "no object": "{}",
    "an object": '{"a":1}',
    "a key twice": '{"a":1,"a":2}',
}
TRUE, FALSE = {"true"}, {"false"}
NUMBERS = {"zero", "a number", "a negative number", "a fraction", "a fraction in another spelling", "milliseconds"}
NUMBERS |= {"a huge number"}
TEXTS = {"no text", "text", "digits", "text in another spelling", "a time as text"}
LISTS = {"no list", "numbers", "texts", "nulls", "lists", "objects", "pairs", "with spaces"}
OBJECTS = {"no object", "an object", "a key twice"}
NULL = {"null"}
EVERY = frozenset(SHAPES)
BREAKING: dict[str, frozenset[str] | set[str]] = {
    "class": EVERY - TEXTS | {"no text"},
    "args": EVERY - LISTS,
    "jid": EVERY - TEXTS | {"no text"},  # its page cannot be reached
    "tags": EVERY - LISTS - NULL - FALSE,
    "cattr": EVERY - LISTS - OBJECTS - NULL,
    **dict.fromkeys(
        ("created_at", "enqueued_at", "failed_at", "retried_at", "retry_count"), EVERY - NUMBERS - NULL - FALSE
    ),
    "retry_for": EVERY - NUMBERS - NULL - FALSE | {"milliseconds", "a huge number"},
    "error_backtrace": EVERY - NULL - FALSE,  # none of these is one
    "at": EVERY - NUMBERS,
}
