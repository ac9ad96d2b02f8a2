"""Application context: who enqueued a job and for which request, for it and for the jobs that it enqueues.

1. application_context   sets facts of the caller for a `with` block, such as a web request
2. passed_on             the payload keys that a push gets: those of the block, or those of the job that runs

On the wire a context is `correlation_id` and `meta.<fact>` (GitLab's keys), and `locale`, `cattr`, `cattr_<n>` (those
of Sidekiq's middleware for I18n and CurrentAttributes).  A job passes on what its own payload has, with itself as
`meta.caller_id`; `meta.root_caller_id` stays the first caller.  Retries, moves and the schedule keep all keys.

Counterpart: GitLab's application context (labkit), sidekiq middleware/i18n.rb and middleware/current_attributes.rb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple
from uuid import uuid4

from kiqcluster.errors import InvalidArguments, UsageError
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.sidekiq.payload import CATTR, CORRELATION_ID, LOCALE, META, Payload, check_arguments, is_cattr
from kiqcluster.sidekiq.ruby_json import JSON, is_unicode, ruby_writes

__all__ = ["CALLER_ID", "application_context", "current_context", "passed_on"]

CALLER_ID, ROOT_CALLER_ID = f"{META}caller_id", f"{META}root_caller_id"
MAX_TEXT_CHARACTERS = 255  # of a fact: it may come from a request's header, and every job of that request has it
NOTHING: Mapping[str, JSON] = {}
Fact = str | int | float | None  # None: the fact of the surrounding block does not hold here


class _Block(NamedTuple):
    """A block of application_context.  job: that ran when it was entered, for a job run inside has its own context."""

    job: JobContext | None
    keys: Mapping[str, JSON]


BLOCK: ContextVar[_Block | None] = ContextVar("kiqcluster_context", default=None)


@contextmanager
def application_context(
    *,
    correlation_id: str | None = None,
    locale: str | None = None,
    cattr: Mapping[str, JSON] | None = None,
    **meta: Fact,
) -> Iterator[Mapping[str, JSON]]:
    """Give all jobs that the block enqueues these facts; yields the payload keys that they get.

    correlation_id: of the request; the outermost block makes one if it has none.  locale: for Ruby's I18n.  cattr: for
    Ruby's CurrentAttributes.  meta: any other fact, such as user="ann"; caller_id names who enqueues.  A block inside
    of another one, or of a job, adds to its facts, and None takes one out.  Texts are cut at 255 characters.
    Raises UsageError for a value that is none of these.
    """
    keys: dict[str, JSON] = dict(passed_on())
    given: dict[str, Fact] = {LOCALE: locale} if locale is not None else {}
    given |= {f"{META}{name}": value for name, value in meta.items()}
    given[CORRELATION_ID] = correlation_id or str(keys.get(CORRELATION_ID, "")) or uuid4().hex
    for key, value in given.items():
        keys.pop(key, None)
        if value is not None:
            keys[key] = _checked(key.removeprefix(META), value)
    if cattr is not None:
        keys[CATTR] = _checked_attributes(cattr)
    if CALLER_ID in keys:
        keys.setdefault(ROOT_CALLER_ID, keys[CALLER_ID])
    token = BLOCK.set(_Block(CURRENT_JOB.get(), keys))
    try:
        yield keys
    finally:
        BLOCK.reset(token)


def current_context() -> dict[str, JSON]:
    """Return the payload keys that a push gets here, as application_context and the running job say; {} for none."""
    return dict(passed_on())


def passed_on() -> Mapping[str, JSON]:
    """Return the same; not to be changed."""
    block, job = BLOCK.get(), CURRENT_JOB.get()
    if block is not None and block.job is job:
        return block.keys
    if job is None:
        return NOTHING
    if job.passed_on is None:
        job.passed_on = _of_job(job.payload, job.name)
    return job.passed_on


def _of_job(payload: Payload, name: str) -> Mapping[str, JSON]:
    """Return what a job passes on to the jobs that it enqueues.  Values that are of no use stay behind."""
    keys = {key: value for key, value in payload.items() if _is_passed_on(key, value)}
    if any(key == CORRELATION_ID or key.startswith(META) for key in keys):
        keys.setdefault(ROOT_CALLER_ID, keys.get(CALLER_ID, name))
        keys[CALLER_ID] = name
    return keys


def _is_passed_on(key: str, value: JSON) -> bool:
    if key in (CORRELATION_ID, LOCALE):
        return isinstance(value, str)
    if key.startswith(META):
        return isinstance(value, str | int | float)
    # An object, or a list of pairs from Sidekiq 8 on.  Ruby could neither show nor read anything else.
    return is_cattr(key) and isinstance(value, dict | list) and ruby_writes(value)


def _checked(name: str, value: Fact) -> JSON:
    if isinstance(value, str):
        text = value[:MAX_TEXT_CHARACTERS]
        return text if is_unicode(text) else text.encode(errors="replace").decode()
    if isinstance(value, int | float) and value - value == 0:
        return value
    raise UsageError(f"application_context({name}={value!r}) does not fit; a fact is text or a number")


def _checked_attributes(attributes: Mapping[str, JSON]) -> JSON:
    if isinstance(attributes, Mapping):
        try:
            check_arguments([dict(attributes)], _raise)
        except InvalidArguments as error:
            raise UsageError(f"application_context(cattr=…): {error}") from error
        return dict(attributes)
    raise UsageError(f"application_context(cattr={attributes!r}) does not fit; it takes names and values")


def _raise(error: InvalidArguments) -> None:
    raise error
