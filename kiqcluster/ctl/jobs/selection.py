"""Selection: which jobs of many are meant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

from kiqcluster.api import JobRecord
from kiqcluster.ctl.text.application import load_attributes
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import DURATION
from kiqcluster.errors import UsageError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.selectors import JobAttributes, Selector, Values, attributes_of, parse

__all__ = ["Selection", "entry_filters", "job_filters"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job has to be like; None: anything.

    error: a part of `class: message`.  text: a glob, or a part of its bytes, for Redis to look for.  arguments: a part
    of them, as JSON.  older, newer: seconds.  declared: class → what the application declares of it (-r); then a job
    of any other class matches no selector.
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
    declared: Mapping[str, JobAttributes] | None = None

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
            and (self.selector is None or self._is_selected(self.selector, job))
        )

    def _is_selected(self, selector: Selector, job: JobRecord) -> bool:
        if self.declared is None:
            return selector.matches(_attributes(job))
        known = self.declared.get(job.display_class) or self.declared.get(job.name)
        if known is None:  # its urgency, say, would be a guess, and a filter may delete
            return False
        of_payload = {name: _attributes(job)[name] for name in PAYLOAD_ATTRIBUTES}
        namespace = known.values["queue_namespace"] or of_payload["queue_namespace"]
        tags = known.values["tags"] | of_payload["tags"]
        return selector.matches({**known.values, **of_payload, "queue_namespace": namespace, "tags": tags})


def _arguments(job: JobRecord) -> str:
    """Return a job's arguments as Ruby would print them, without spaces."""
    return ruby_json.encode(job.display_args).decode(errors="replace")


def _attributes(job: JobRecord) -> Values:
    """Return the attributes that a payload has; a job that ActiveJob has wrapped has both class names."""
    known = attributes_of(job.display_class, job.queue or "", {"tags": job.tags}).values
    return {**known, "worker_name": frozenset((job.name, job.display_class))}


PAYLOAD_ATTRIBUTES = ("worker_name", "name", "queue_namespace", "tags")
NOT_IN_PAYLOADS = ", since payloads do not carry it: name the application that declares it, as in -r app.jobs"
SELECTOR = click.option(
    "--selector",
    metavar="SELECTOR",
    help="jobs that match, by worker_name, name (of the queue), queue_namespace and tags: 'worker_name=A,B&tags!=vip'",
)
REQUIRE = click.option(
    "-r",
    "--require",
    multiple=True,
    metavar="APP",
    help="with --selector: the application, whose classes say their urgency and other attributes",
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
    "require": REQUIRE,
}
QUEUE_FILTERS = {
    "name": NAME,
    "tag": TAG,
    "jid": click.option("--jid", metavar="JID", help="the job of this id, in full"),
    "arguments": click.option("--args-contain", "arguments", metavar="TEXT", help="jobs with this in their arguments"),
    "selector": SELECTOR,
    "require": REQUIRE,
}


def entry_filters(function: F) -> F:
    """Add the filters of entries of sets; the command is given its Selection."""
    return _filters(function, FILTERS)


def job_filters(function: F) -> F:
    """Add the filters of jobs in queues; the command is given its Selection."""
    return _filters(function, QUEUE_FILTERS)


def _selected(text: str, require: Sequence[str]) -> dict[str, Any]:
    """Return a selector, and what the application declares.  Raises SelectorError, ApplicationError."""
    if not require:
        return {"selector": parse(text, PAYLOAD_ATTRIBUTES, NOT_IN_PAYLOADS)}
    return {"selector": parse(text), "declared": load_attributes(require)}


def _filters(function: F, filters: dict[str, Callable[[Any], Any]]) -> F:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        found = {name: options.pop(name) for name in filters}
        text, require = found.pop("selector"), found.pop("require")
        if require and text is None:
            raise UsageError(
                "-r says what the classes of --selector declare; give a --selector as well, or leave -r out"
            )
        selection = Selection(**found, **({} if text is None else _selected(text, require)))
        return function(*arguments, selection=selection, **options)

    for option in reversed(filters.values()):
        run = option(run)
    return run  # type: ignore[return-value]  # click's wrapper has the place of the function
