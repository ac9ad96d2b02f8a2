"""Selection: which jobs of many are meant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

from kiqcluster.api import JobRecord
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import DURATION
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.selectors import Selector, SelectorError, Values, attributes_of, parse

__all__ = ["Selection", "entry_filters", "job_filters"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job has to be like; None: anything.

    error: a part of `class: message`.  text: a glob, or a part of its bytes, for Redis to look for.  arguments: a part
    of them, as JSON.  older, newer: seconds.
    """

    name: str | None = None
    queue: str | None = None
    error: str | None = None
    text: str | None = None
    tag: str | None = None
    jid: str | None = None
    arguments: str | None = None
    older: float | None = None
    newer: float | None = None
    selector: Selector | None = None

    @property
    def has_filters(self) -> bool:
        """Whether it leaves anything out."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    def matches(self, job: JobRecord, now: float, since: float | None = None) -> bool:
        """Return whether a job is meant; `text` is for Redis to tell.  since: when the age that counts began."""
        return (
            (self.jid is None or job.jid == self.jid)
            and (self.name is None or self.name in (job.name, job.display_class))
            and (self.queue is None or job.queue == self.queue)
            and (self.error is None or self.error in f"{job.error_class or ''}: {job.error_message or ''}")
            and (self.tag is None or self.tag in job.tags)
            and (self.arguments is None or self.arguments in _arguments(job))
            and (self.older is None or (since is not None and now - since >= self.older))
            and (self.newer is None or (since is not None and now - since <= self.newer))
            and (self.selector is None or self.selector.matches(_attributes(job)))
        )


def _arguments(job: JobRecord) -> str:
    """Return a job's arguments as Ruby would print them, without spaces."""
    return ruby_json.encode(job.display_args).decode(errors="replace")


def _attributes(job: JobRecord) -> Values:
    """Return the attributes that a payload has; a job that ActiveJob has wrapped has both class names."""
    known = attributes_of(job.display_class, job.queue or "", {"tags": job.tags}).values
    return {**known, "worker_name": frozenset((job.name, job.display_class))}


class SelectorType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A selector over what a payload says of its class."""

    name = "selector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Selector:
        if isinstance(value, Selector):
            return value
        try:
            return parse(value, PAYLOAD_ATTRIBUTES, NOT_IN_PAYLOADS)
        except SelectorError as error:
            self.fail(str(error), param, ctx)


PAYLOAD_ATTRIBUTES = ("worker_name", "name", "queue_namespace", "tags")
NOT_IN_PAYLOADS = ", since payloads do not carry it"
SELECTOR = click.option(
    "--selector",
    type=SelectorType(),
    metavar="SELECTOR",
    help="jobs that match, by worker_name, name (of the queue), queue_namespace and tags: 'worker_name=A,B&tags!=vip'",
)
NAME = click.option(
    "--class",
    "name",
    metavar="NAME",
    shell_complete=complete_classes,
    help="jobs of this class, ActiveJob's inner one as well",
)
TAG = click.option("--tag", metavar="TAG", help="jobs with this tag")
FILTERS = {
    "name": NAME,
    "queue": click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="jobs of this queue"),
    "error": click.option("--error", metavar="TEXT", help="jobs whose last error, `class: message`, has this in it"),
    "text": click.option(
        "--text", metavar="TEXT", help="jobs with this in their JSON; with a *, a glob, as '*inv?ice*'"
    ),
    "tag": TAG,
    "older": click.option("--older", type=DURATION, metavar="DURATION", help="jobs that lie there for longer"),
    "newer": click.option("--newer", type=DURATION, metavar="DURATION", help="jobs that came there since"),
    "selector": SELECTOR,
}
QUEUE_FILTERS = {
    "name": NAME,
    "tag": TAG,
    "jid": click.option("--jid", metavar="JID", help="the job of this id, in full"),
    "arguments": click.option("--args-contain", "arguments", metavar="TEXT", help="jobs with this in their arguments"),
    "selector": SELECTOR,
}


def entry_filters(function: F) -> F:
    """Add the filters of entries of sets; the command is given its Selection."""
    return _filters(function, FILTERS)


def job_filters(function: F) -> F:
    """Add the filters of jobs in queues; the command is given its Selection."""
    return _filters(function, QUEUE_FILTERS)


def _filters(function: F, filters: dict[str, Callable[[Any], Any]]) -> F:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        selection = Selection(**{name: options.pop(name) for name in filters})
        return function(*arguments, selection=selection, **options)

    for option in reversed(filters.values()):
        run = option(run)
    return run  # type: ignore[return-value]  # click's wrapper has the place of the function
