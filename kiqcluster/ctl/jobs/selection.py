"""Selection: the options that say which jobs of many are meant (api/bulk/selection)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kiqcluster.api.bulk.selection import PAYLOAD_ATTRIBUTES, Selection
from kiqcluster.ctl.text.application import load_attributes
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import DURATION
from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.selectors import parse

__all__ = ["Selection", "entry_filters", "job_filters"]

F = TypeVar("F", bound=Callable[..., Any])


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
