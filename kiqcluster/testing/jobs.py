"""Jobs as a test sees them: enqueued jobs, performed jobs, and the conditions of assertions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kiqcluster.api.records import JobRecord
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import CannotDeserialize, InvalidArguments, UsageError
from kiqcluster.job import Enqueuer, Job
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import due_at
from kiqcluster.sidekiq.active_job import deserialized, unwrapped
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = [
    "UNSPECIFIED",
    "EnqueuedJob",
    "JobLike",
    "PerformedJob",
    "Unspecified",
    "Wanted",
    "code_name",
    "listed",
    "name_of",
]

JobLike = Enqueuer[Any, Any] | type[Job] | str  # a job, or the name of a job that may exist only in Ruby
TIME_TOLERANCE_SECONDS = 1.0  # difference at which two times still count as equal
MAX_JOBS_LISTED = 20  # in a message
MAX_ARGUMENT_CHARACTERS = 200  # of a job's arguments in a message


class Unspecified:
    """A condition that a test does not set."""

    def __repr__(self) -> str:
        return "…"


UNSPECIFIED = Unspecified()


class EnqueuedJob(JobRecord):
    """A job that was pushed while a test kept jobs in memory.

    It has the attributes of every JobRecord (`name`, `args`, `jid`, `queue`, `tags`, `payload`, …).  at: the epoch
    second at which it is due, None for at once.  shard: the name of the store that `Client.via` or its client chose.
    """

    __slots__ = ("at", "shard")

    def __init__(self, raw: bytes, queue: str, at: float | None, shard: str) -> None:
        super().__init__(raw, queue)
        self.at = at
        self.shard = shard

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        """Return the job as messages show it: `Welcome(7) on mailers, in 60 s`."""
        when = "" if self.at is None else f", {_words(self.at - (self.created_at or SystemClock.now()))}"
        return f"{code_name(self.payload)}({_shown(arguments_of(self))}) on {self.queue}{when}"


class PerformedJob(EnqueuedJob):
    """A run of a job.  outcome: its outcome (Done, Retry, Dead, …).  error: the error that it raised, or None."""

    __slots__ = ("error", "outcome")

    def __init__(self, job: EnqueuedJob, outcome: Outcome, error: BaseException | None) -> None:
        super().__init__(job.raw, job.queue, None, job.shard)
        self.outcome = outcome
        self.error = error


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions of a test on a job; None and UNSAID set none.

    args: positional arguments as in the payload, none for any.  queue: its name.  at: when it is due, None for at once.
    in_: the delay with which it was pushed.  tags: some of its tags.  payload: some of its payload's keys and values.
    """

    job: JobLike | None = None
    args: Sequence[Any] = ()
    queue: str | None = None
    at: float | datetime | Unspecified | None = UNSPECIFIED
    in_: float | timedelta | None = None
    tags: Iterable[str] = ()
    payload: Mapping[str, JSON] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.tags, str):
            raise UsageError(f"tags is a list of strings, not the string {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    def check(self) -> None:
        """Raise for a condition that no job can meet, so that no assertion passes for that reason alone."""
        definition = None if self.job is None else definition_of(self.job)
        if definition is None or definition.enveloped is not None or not self.args:
            return
        if (misfit := definition.fits(list(self.args))) is not None:
            raise InvalidArguments(f"no such job can be enqueued: {misfit}")

    def fits(self, job: EnqueuedJob) -> bool:
        """Return whether the job meets all conditions."""
        return (
            (self.job is None or name_of(self.job) in (job.name, code_name(job.payload)))
            and (not self.args or _alike(_wire(self.job, self.args), arguments_of(job)))
            and (self.queue is None or self.queue == job.queue)
            and self._is_due(job)
            and set(self.tags) <= set(job.tags)
            and all(key in job.payload and _alike(value, job.payload[key]) for key, value in self.payload.items())
        )

    def _is_due(self, job: EnqueuedJob) -> bool:
        if self.in_ is not None:
            delay = self.in_.total_seconds() if isinstance(self.in_, timedelta) else self.in_
            if job.at is None or abs(job.at - (job.created_at or 0.0) - delay) > TIME_TOLERANCE_SECONDS:
                return False
        if isinstance(self.at, Unspecified):
            return True
        if self.at is None or job.at is None:
            return self.at is job.at
        return abs(job.at - due_at(self.at, 0.0)) <= TIME_TOLERANCE_SECONDS

    def said(self, verb: str) -> str:
        """Return the conditions as a sentence: `Welcome(7) was enqueued on mailers`.  verb: the words in the middle."""
        name = "at all" if self.job is None else name_of(self.job)
        words = [f"{name}({_shown(self.args)})" if self.args else name, verb]
        words += [f"on {self.queue}"] if self.queue is not None else []
        if self.in_ is not None:
            words.append(f"in {self.in_ if isinstance(self.in_, timedelta) else f'{self.in_:g} s'}")
        if not isinstance(self.at, Unspecified):
            words.append("for at once" if self.at is None else f"for {self.at}")
        words += [f"with tags {sorted(self.tags)}"] if set(self.tags) else []
        words += [f"with {key} = {value!r}" for key, value in self.payload.items()]
        return " ".join(words)


def definition_of(job: JobLike) -> Definition | None:
    """Return the definition of a job; None for a name that is not registered here."""
    if isinstance(job, str):
        return current_registry().get(job)
    definition = getattr(job, "definition", None)
    if not isinstance(definition, Definition):
        raise UsageError(f"{job!r} is not a job; pass a job, or the name of one")
    return definition


def _wire(job: JobLike | None, args: Sequence[Any]) -> list[JSON]:
    """Return arguments as they are in payloads: a test names their values, or their JSON."""
    definition = None if job is None else definition_of(job)
    return list(args) if definition is None else definition.write(list(args))


def name_of(job: JobLike) -> str:
    """Return a job's name on the wire."""
    definition = definition_of(job)
    return job if definition is None and isinstance(job, str) else definition.name  # type: ignore[union-attr]


def code_name(payload: Payload) -> str:
    """Return the name of the class that runs: for an ActiveJob its own class, not the wrapper's."""
    envelope = unwrapped(payload)
    return str(payload.get("class")) if envelope is None else envelope.job_class


def arguments_of(job: JobRecord) -> list[JSON]:
    """Return the arguments that `perform` gets: for an ActiveJob those of its envelope, keywords as a dict at the end.

    If Python cannot represent them, returns them in their form for display.
    """
    arguments: list[JSON] = job.readable["args"] if job.is_compressed else job.args
    if unwrapped(job.readable) is None or not arguments:
        return arguments
    try:
        positions, keywords = deserialized(arguments[0])
    except (CannotDeserialize, RecursionError):
        return job.display_args
    return [*positions, keywords] if keywords else positions


def listed(jobs: Sequence[EnqueuedJob]) -> str:
    """Return jobs as the lines of a message."""
    lines = [f"  {job}" for job in jobs[:MAX_JOBS_LISTED]]
    if len(jobs) > MAX_JOBS_LISTED:
        lines.append(f"  … and {len(jobs) - MAX_JOBS_LISTED} more")
    return "\n".join(lines)


def _alike(expected: Any, found: JSON) -> bool:
    """Return whether a value is the expected one; True and 1 differ, as in JSON and Ruby."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_alike, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_alike(expected[key], found[key]) for key in expected)
    if isinstance(found, bool) and isinstance(expected, int | float):
        return expected is found
    return not (isinstance(expected, bool) and not isinstance(found, bool)) and bool(expected == found)


def _shown(arguments: Sequence[Any]) -> str:
    text = ", ".join(map(repr, arguments))
    return text if len(text) <= MAX_ARGUMENT_CHARACTERS else f"{text[:MAX_ARGUMENT_CHARACTERS]}…"


def _words(seconds: float) -> str:
    return f"in {timedelta(seconds=round(seconds))}" if seconds >= 3_600 else f"in {round(seconds, 3):g} s"
