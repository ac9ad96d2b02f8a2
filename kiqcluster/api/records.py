"""Records: a job as it lies in Redis, read without ever raising, whatever its bytes are.

What Ruby's web UI shows of a job is what these show: the class and the arguments inside of ActiveJob's envelope,
mailers as `Mailer#method`, an encrypted argument masked, and bytes that are no job as their only argument.  Compressed
arguments, which these show as they travel, are readable here.
Counterpart: sidekiq api.rb JobRecord.
"""

from __future__ import annotations

import re
from contextlib import suppress

from kiqcluster.errors import MalformedPayload, PayloadDecompressionError
from kiqcluster.sidekiq import backtraces, ruby_json
from kiqcluster.sidekiq.active_job import unwrapped
from kiqcluster.sidekiq.compression import decompressed, is_compressed
from kiqcluster.sidekiq.payload import WRAPPED, Payload, bare, read, seconds
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["JobRecord", "is_verbatim", "renamed"]

REASON_KEYS = ("failed_at", "retry_count", "error_class", "error_message")  # why an entry keeps other bytes
NO_JOB = "(no job)"  # shown as the class of what has none
VERBATIM = re.compile(r"[A-Za-z0-9_-]+")
MASK = "[encrypted data]"  # shown as the last argument of a job with `encrypt` (sidekiq api.rb)
# Of compressed arguments: a page of large jobs must not fill the memory.
MAX_SHOWN_BYTES, MAX_SHOWN_VALUES = 5_000_000, 50_000


class JobRecord:
    """A job's bytes, and what they say.

    raw: exactly as they lie in Redis; by them the job is found again, to be deleted or moved.  queue: where they were
    found; None means the queue that the payload names.  Nothing is decoded before it is asked for.
    """

    __slots__ = ("_payload", "_place", "_readable", "raw")

    def __init__(self, raw: bytes, queue: str | None = None) -> None:
        self.raw = raw
        self._place = queue
        self._payload: Payload | None = None
        self._readable: Payload | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.display_class} {self.jid or '(no jid)'} in {self.queue or '(no queue)'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobRecord) and (self.raw, self._place) == (other.raw, other._place)

    def __hash__(self) -> int:
        return hash(self.raw)

    def __getitem__(self, key: str) -> JSON:
        """Return any key of the payload, None where it is missing."""
        return self.payload.get(key)

    @property
    def payload(self) -> Payload:
        """The JSON object; {} where the bytes are none, or have integers of too many digits.

        Of an entry that keeps a job (sidekiq/ruby_entries), that job's.  A caller that changes it changes what this
        record says.
        """
        if self._payload is None:
            self._payload = _payload(self.raw)
        return self._payload

    @property
    def readable(self) -> Payload:
        """The payload with its arguments as its job gets them; as it is stored where they are no longer to be read.

        Compressed ones of more than 5 MB, or 50 000 values, are a text that says so.
        """
        if not self.is_compressed:
            return self.payload
        if self._readable is None:
            try:
                self._readable = decompressed(self.payload, MAX_SHOWN_BYTES, MAX_SHOWN_VALUES)
            except PayloadDecompressionError as error:
                self._readable = {**self.payload, "args": [f"[compressed: {error}]"]}
        return self._readable

    @property
    def is_compressed(self) -> bool:
        """Whether its arguments are compressed: `args` is as they travel, `display_args` is readable."""
        return is_compressed(self.payload)

    @property
    def is_job(self) -> bool:
        """Whether a worker could run it: a JSON object that names a class."""
        return bool(self.name)

    # what it runs

    @property
    def name(self) -> str:
        """The class in the payload, the wrapper's for ActiveJob; "" where it names none."""
        return _text(self["class"]) or ""

    @property
    def display_class(self) -> str:
        """What people call it: ActiveJob's class instead of its wrapper's, `Mailer#method` for a mail."""
        chosen = _text(self["display_class"])
        if chosen:
            return chosen
        envelope = unwrapped(self.readable)
        return (self.name if envelope is None else envelope.name) or NO_JOB

    @property
    def display_args(self) -> list[JSON]:
        """The arguments for people: ActiveJob's own, GlobalIDs as they are, an encrypted one masked, decompressed."""
        envelope = unwrapped(self.readable)
        if envelope is not None:
            return list(envelope.display_args)
        arguments: list[JSON] = self.readable["args"] if self.is_compressed else self.args
        if self["encrypt"] and arguments:
            return [*arguments[:-1], MASK]
        return arguments

    @property
    def args(self) -> list[JSON]:
        """The arguments as they travel; of bytes that are no JSON object, the bytes as text."""
        if not self.payload:
            return [self.raw.decode(errors="replace")]
        arguments = self["args"]
        if isinstance(arguments, list):
            return arguments
        return [] if arguments is None else [arguments]

    # what it is

    @property
    def jid(self) -> str:
        """Its id; "" where it has none."""
        value = self["jid"]
        # Not by str(), which refuses an integer of thousands of digits.
        return value if isinstance(value, str) else ruby_json.encode(value).decode() if type(value) is int else ""

    @property
    def queue(self) -> str:
        """Where it was found, else where it goes; "" where neither is known."""
        return self._place if self._place is not None else _text(self["queue"]) or ""

    @property
    def tags(self) -> list[str]:
        tags = self["tags"]
        return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []

    # what happened to it

    @property
    def retry_count(self) -> int | None:
        """Retries that have failed: 0 after the first failure, None before it."""
        value = self["retry_count"]
        return value if type(value) is int else None

    @property
    def error_class(self) -> str | None:
        return _text(self["error_class"])

    @property
    def error_message(self) -> str | None:
        return _text(self["error_message"])

    @property
    def error_backtrace(self) -> list[str]:
        """The lines of the traceback, as Python prints it; of Ruby's jobs innermost first.  [] where none were kept."""
        stored = self["error_backtrace"]
        if isinstance(stored, list):  # as Sidekiq before 6.0.1 stored them
            return [line for line in stored if isinstance(line, str)]
        return backtraces.decode(stored) or []

    # when: epoch seconds, whichever Sidekiq wrote them

    @property
    def created_at(self) -> float | None:
        return seconds(self["created_at"])

    @property
    def enqueued_at(self) -> float | None:
        return seconds(self["enqueued_at"])

    @property
    def failed_at(self) -> float | None:
        return seconds(self["failed_at"])

    @property
    def retried_at(self) -> float | None:
        return seconds(self["retried_at"])

    def latency(self, now: float) -> float:
        """Return the seconds since it was enqueued (created, where it says no more); 0 where it does not say."""
        since = self.enqueued_at or self.created_at
        return 0.0 if since is None else max(0.0, now - since)


def _payload(raw: bytes) -> Payload:
    """Return the payload of a job, also of one that an entry keeps; any other object as it is; {} for no object."""
    try:
        outer = ruby_json.decode(raw)
    except ruby_json.Undecodable:
        return {}
    if not isinstance(outer, dict):
        return {}
    if WRAPPED in outer:
        with suppress(MalformedPayload):
            return {**read(raw), **{key: outer[key] for key in REASON_KEYS if key in outer}}
    return outer


def is_verbatim(jid: str) -> bool:
    """Return whether JSON has an id by these very characters; others it may have as escapes."""
    return VERBATIM.fullmatch(jid) is not None


def renamed(raw: bytes, to: str) -> bytes:
    """Return a job's bytes with the name of another queue; what is not a JSON object names none, and stays as it is."""
    try:
        return ruby_json.patch(raw, {"queue": to}) if bare(raw) is raw else entry_for_ruby(raw, {"queue": to}, to)
    except (MalformedPayload, ruby_json.Undecodable):
        return raw


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) else None
