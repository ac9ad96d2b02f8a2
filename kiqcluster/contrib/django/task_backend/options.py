"""Options: what OPTIONS of a backend says, and what a task says of itself.

TASKS = {"default": {"BACKEND": "kiqcluster.contrib.django.TaskBackend", "OPTIONS": {"retry": 3, "result_ttl": 3600}}}

@task(retry=5, timeout=30)      # Django 6.1, and the backport; in Django 6.0 a task has what OPTIONS says

Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from kiqcluster.application.options import OPTIONS, check_combinations, check_options, merged
from kiqcluster.contrib.django.commits import alias_of
from kiqcluster.contrib.django.task_backend.framework import Task
from kiqcluster.errors import InvalidPush, JobDefinitionError
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.words import hint_of

__all__ = [
    "TASK_OPTIONS",
    "BackendOptions",
    "KiqTask",
    "OutboxTarget",
    "into_outbox",
    "options_of_task",
    "outbox_of_task",
    "queue_for",
    "read_options",
]

# Options of jobs that a task may have; docs/reference/job_options.md describes them.
TASK_OPTIONS = (
    "retry",
    "retry_for",
    "backtrace",
    "dead",
    "tags",
    "log_level",
    "expires_in",
    "timeout",
    "timeout_hard",
    "concurrency_limit",
    "rate_limit",
    "deduplicate",
    "deduplicate_ttl",
    "idempotent",
    "urgency",
    "resource_boundary",
    "external_dependencies",
    "feature_category",
    "data_consistency",
    "max_retries_after_interruption",
    "enqueue_on_commit",
)
DEFAULTS: Mapping[str, Any] = {"retry": 0}  # Django's tasks run once; one that fails is kept in the dead set
DEFAULT_RESULT_TTL = 86_400  # seconds
OWN_OPTIONS = ("result_ttl", "priority_queues", "outbox")
MIN_PRIORITY, MAX_PRIORITY = -100, 100  # Django's
RANGES = '"priority_queues": {(50, 100): "critical", (-100, -1): "{queue}_low"}'


@dataclass(frozen=True, slots=True)
class OutboxTarget:
    """The outbox of a push.  alias: of its database.  push_after_commit: False leaves the push to the relay."""

    alias: str
    push_after_commit: bool = True


# A task with these options; None: as OPTIONS of its backend says.  outbox: an OutboxTarget, of `outbox(task)`.
KiqTask: Any = make_dataclass(
    "KiqTask",
    [
        *[(name, Any, field(default=None, repr=False)) for name in (*TASK_OPTIONS, "result_ttl")],
        ("outbox", Any, field(default=None, repr=False, compare=False)),
    ],
    bases=(Task,),
    frozen=True,
    slots=True,
    kw_only=True,
)
KiqTask.__module__ = __name__  # for pickle


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """OPTIONS of a backend.

    jobs: options of its tasks.  result_ttl: seconds that results are kept, 0 for none.  queues: (lowest priority,
    highest, queue).  outbox: in which tasks are written, None for none.
    """

    jobs: Mapping[str, Any] = field(default_factory=dict)
    result_ttl: int = DEFAULT_RESULT_TTL
    queues: tuple[tuple[int, int, str], ...] = ()
    outbox: OutboxTarget | None = None


def read_options(alias: str, raw: Mapping[str, Any]) -> BackendOptions:
    """Return OPTIONS of a backend.  Raises ImproperlyConfigured, with the nearest name for one that there is not."""
    place = f"TASKS[{alias!r}]['OPTIONS']"
    known = (*TASK_OPTIONS, *OWN_OPTIONS)
    for name in raw:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            hint = hint_of("option", str(name)) or hint
            raise ImproperlyConfigured(f"{place}: there is no option {name!r}; {hint}")
    given = {name: value for name, value in raw.items() if name in TASK_OPTIONS}
    try:
        jobs = merged(DEFAULTS, check_options(given, place))
        check_combinations(jobs, place)
    except JobDefinitionError as error:
        raise ImproperlyConfigured(str(error)) from error
    ttl = raw.get("result_ttl", DEFAULT_RESULT_TTL)
    if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl < 0:
        raise ImproperlyConfigured(
            f"{place}: result_ttl = {ttl!r} does not fit; it takes whole seconds, 0 for no results"
        )
    outbox = raw.get("outbox", False)
    if not isinstance(outbox, bool | str):
        raise ImproperlyConfigured(f"{place}: outbox is True, False or the alias of a database, not {outbox!r}")
    database = alias_of(outbox)
    target = None if database is None else OutboxTarget(database)
    return BackendOptions(jobs, ttl, _read_queues(place, raw.get("priority_queues", {})), target)


def _read_queues(place: str, raw: Any) -> tuple[tuple[int, int, str], ...]:
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"{place}: priority_queues is a dict of ranges, as in {RANGES}")
    queues = []
    for numbers, queue in raw.items():
        fits = isinstance(numbers, tuple) and len(numbers) == 2 and all(type(each) is int for each in numbers)
        if not fits or not MIN_PRIORITY <= numbers[0] <= numbers[1] <= MAX_PRIORITY:
            raise ImproperlyConfigured(
                f"{place}: {numbers!r} is no range of priorities from {MIN_PRIORITY} to {MAX_PRIORITY}; write {RANGES}"
            )
        try:
            check_queue_name(queue_name(queue, "default") if isinstance(queue, str) else queue)
        except InvalidPush as error:
            raise ImproperlyConfigured(f"{place}: priority_queues: {error}") from error
        queues.append((*numbers, queue))
    return tuple(sorted(queues))


def queue_name(pattern: str, queue: str) -> str:
    """Return the name of a queue where {queue} stands for the one of the task."""
    return pattern.replace("{queue}", queue)


def queue_for(options: BackendOptions, priority: int, queue: str) -> str:
    """Return the queue of a task: the one of its priority, else its own."""
    for lowest, highest, pattern in options.queues:
        if lowest <= priority <= highest:
            return queue_name(pattern, queue)
    return queue


def options_of_task(options: BackendOptions, task: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the options of a task that its payload has, those that it has not, and for how long its result is kept.

    Raises JobDefinitionError for an option that cannot be.
    """
    own = {name: value for name in TASK_OPTIONS if (value := getattr(task, name, None)) is not None}
    jobs = merged(options.jobs, check_options(own, task.module_path))
    check_combinations(jobs, task.module_path)
    ttl = getattr(task, "result_ttl", None)
    wire = {name: value for name, value in jobs.items() if OPTIONS[name].on_wire}
    local = {name: value for name, value in jobs.items() if not OPTIONS[name].on_wire}
    return wire, local, options.result_ttl if ttl is None else ttl


def into_outbox(task: Any, target: OutboxTarget) -> Any:
    """Return a task like this one whose pushes go to an outbox.  task: of our backend, declared for any."""
    return KiqTask(**{**{each.name: getattr(task, each.name) for each in fields(task)}, "outbox": target})


def outbox_of_task(options: BackendOptions, task: Any) -> OutboxTarget | None:
    """Return the outbox of a task: the one of the call, else that of its backend.

    Raises JobDefinitionError for one in the decorator, where nobody could find the result of a row that waits.
    """
    own = getattr(task, "outbox", None)
    if own is not None and not isinstance(own, OutboxTarget):
        raise JobDefinitionError(
            f"{task.module_path}: outbox is no option of a task; write it into OPTIONS of its backend, or enqueue by "
            "outbox(task)"
        )
    return options.outbox if own is None else own
