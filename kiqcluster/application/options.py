"""Options of jobs: their names, their valid values, and hints for typos.

OPTIONS is for checks at run time, PushOptions and JobOptions for mypy and pyright; a test compares them.
Features add rows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from kiqcluster.errors import InvalidPush, JobDefinitionError, UsageError
from kiqcluster.limits import RateLimit
from kiqcluster.policies import Policy
from kiqcluster.process.config import LOG_LEVELS, NO_LIMIT, LogLevel
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.sidekiq.queue_groups import MAX_WEIGHT
from kiqcluster.sidekiq.schedules import Schedule
from kiqcluster.sidekiq.selectors import ATTRIBUTES, DataConsistency, ResourceBoundary, Urgency
from kiqcluster.words import hint_of

__all__ = [
    "CLAIMING",
    "EXCLUSIVE",
    "HOOKS",
    "NO_STRATEGY",
    "OPTIONS",
    "RESERVED_NAMES",
    "RESULT_TTL",
    "UNTIL_START",
    "JobOptions",
    "Option",
    "PushOptions",
    "check_class_body",
    "check_combinations",
    "check_options",
    "check_retries",
    "merged",
    "near_option",
]

RESULT_TTL = "result_ttl"
HOOKS = {  # method → its arguments
    "retry_in": "count, error, payload",
    "retries_exhausted": "payload, error",
    "interruptions_exhausted": "payload, error",
}
RESERVED_NAMES = frozenset(  # of a job class: its verbs
    {
        "queue",
        "set",
        "then",
        "enqueue",
        "aenqueue",
        "aenqueue_bulk",
        "perform_async",
        "perform_in",
        "perform_at",
        "perform_bulk",
        "perform_inline",
    }
)
RETRY, RETRY_FOR = "retry", "retry_for"  # options that replace each other
HOOK_TYPO_SIMILARITY = 0.9  # a method whose name is this similar to a hook's is a typo
MAX_DURATION_SECONDS = 1e9  # a larger number is a point in time, or a mistake
UNTIL_START = ("until_executing", "until_and_while_executing")  # strategies whose lock ends when the job begins
CLAIMING = (*UNTIL_START, "until_executed")  # … whose pushes claim a lock
EXCLUSIVE = ("while_executing", "until_and_while_executing")  # … with one run at a time
STRATEGIES = ("until_executing", "until_executed", "while_executing", "until_and_while_executing")  # of `deduplicate`
NO_STRATEGY = "none"  # overrides an inherited one
NEEDED = {  # option → values of `deduplicate` without which it would do nothing
    "deduplicate_key": STRATEGIES,
    "deduplicate_ttl": CLAIMING,
    "deduplicate_scheduled": CLAIMING,
    "reschedule_once": ("until_executed",),
}
MAX_TTL_SECONDS = 10 * 365 * 86_400  # of a lock


class PushOptions(TypedDict, total=False):
    """Options of one push: `Thumbnail.set(queue="critical")`."""

    queue: str
    retry: bool | int
    retry_for: int
    retry_queue: str
    backtrace: bool | int
    dead: bool
    tags: list[str]
    log_level: LogLevel
    wait_replicas: int
    version: int
    expires_in: float
    encrypt: bool


class JobOptions(PushOptions, total=False):
    """Options of a definition: `@job(queue="mailers")`, `class Thumbnail(Job, queue="images")`."""

    active_job: bool
    queue_namespace: str
    urgency: Urgency
    feature_category: str
    resource_boundary: ResourceBoundary
    external_dependencies: bool
    big_payload: bool
    loggable_arguments: Sequence[int | str]
    weight: int
    idempotent: bool
    data_consistency: DataConsistency
    max_retries_after_interruption: int
    timeout: float
    timeout_hard: float
    max_iteration_runtime: float
    result_ttl: int
    enqueue_on_commit: bool | str
    cron: str
    tz: str
    rate_limit: RateLimit
    policy: Policy | Sequence[Policy]
    concurrency_limit: int | str | Callable[[], int | str | None]
    concurrency_key: Callable[..., str | int | None]
    deduplicate: Literal["none", "until_executing", "until_executed", "while_executing", "until_and_while_executing"]
    deduplicate_key: Callable[..., str | int | None]
    deduplicate_ttl: int
    deduplicate_scheduled: bool
    reschedule_once: bool
    retry_in: Callable[[int, Any, Any], object]
    retries_exhausted: Callable[[Any, Any], object]
    interruptions_exhausted: Callable[[Any, Any], object]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a job.  accepts: whether a value is valid.  on_wire: whether it is written to the payload."""

    name: str
    accepts: Callable[[Any], bool]
    expected: str
    on_wire: bool = True


def _choice(name: str, *words: str, on_wire: bool = True) -> Option:
    """Return an option that has one of some words as its value."""
    return Option(name, lambda value: value in words, f"{', '.join(words[:-1])} or {words[-1]}", on_wire)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_queue(value: Any) -> bool:
    try:
        check_queue_name(value)
    except InvalidPush:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_number(value: Any) -> bool:
    return _is_count(value) and not isinstance(value, bool)


def _is_window(value: Any) -> bool:
    return _is_number(value) and 1 <= value < MAX_DURATION_SECONDS  # a worker takes 0 for not given, as some clients do


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < MAX_DURATION_SECONDS


def _is_limit(value: Any) -> bool:
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)%", value)
        return found is not None and 0 < float(found[1]) <= 100
    return callable(value) or (isinstance(value, int) and not isinstance(value, bool))


def _is_policy(value: Any) -> bool:
    return callable(value) or (isinstance(value, list | tuple) and all(map(callable, value)))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_weight(value: Any) -> bool:
    return _is_number(value) and 1 <= value <= MAX_WEIGHT


def _is_ttl(value: Any) -> bool:
    return _is_number(value) and 1 <= value <= MAX_TTL_SECONDS


def _are_positions(value: Any) -> bool:
    return isinstance(value, list | tuple | frozenset) and all(_is_number(each) or _is_text(each) for each in value)


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("queue", _is_text, "the name of a queue"),
        Option(RETRY, _is_count, "True, False, or how many retries"),
        Option(RETRY_FOR, _is_window, "whole seconds from the first failure, at least 1"),
        Option("retry_queue", _is_queue, "the name of a queue"),
        Option("backtrace", _is_count, "True (the default), False, or how many lines in Sidekiq's form"),
        Option("dead", lambda value: isinstance(value, bool), "True or False"),
        Option("tags", lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of strings"),
        _choice("log_level", *LOG_LEVELS),
        Option("version", _is_number, "the version of the arguments, 0 or more"),
        Option("expires_in", _is_duration, "seconds, more than 0"),
        Option("encrypt", _is_bool, "True or False"),
        Option("active_job", lambda value: isinstance(value, bool), "True or False", on_wire=False),
        Option("wait_replicas", _is_number, "how many replicas confirm a push", on_wire=False),
        Option("queue_namespace", _is_text, "the part of the queue's name before the colon", on_wire=False),
        _choice("urgency", *ATTRIBUTES["urgency"], on_wire=False),
        Option("feature_category", _is_text, "a name", on_wire=False),
        _choice("resource_boundary", *ATTRIBUTES["resource_boundary"], on_wire=False),
        Option("external_dependencies", _is_bool, "True or False", on_wire=False),
        Option("weight", _is_weight, f"an integer from 1 to {MAX_WEIGHT}", on_wire=False),
        Option("idempotent", _is_bool, "True or False", on_wire=False),
        _choice("data_consistency", *ATTRIBUTES["data_consistency"], on_wire=False),
        Option("loggable_arguments", _are_positions, "positions (from 0) or names of parameters", on_wire=False),
        Option("big_payload", lambda value: isinstance(value, bool), "True or False", on_wire=False),
        Option(
            "max_retries_after_interruption",
            lambda value: isinstance(value, int) and value >= NO_LIMIT,
            f"how many processes may die of it, and how often a forced stop may interrupt it; {NO_LIMIT}: no limit",
            on_wire=False,
        ),
        Option("cron", _is_text, "5 or 6 fields as in '0 9 * * *', or a macro such as @daily", on_wire=False),
        Option("tz", _is_text, "the name of a time zone such as Europe/Berlin", on_wire=False),
        Option("timeout", _is_duration, "seconds, more than 0", on_wire=False),
        Option("timeout_hard", _is_duration, "seconds, more than 0", on_wire=False),
        Option(
            "rate_limit",
            lambda value: isinstance(value, RateLimit),
            "a limit of kiqcluster.limits, such as limits.sliding_window(100, 60)",
            on_wire=False,
        ),
        Option(
            "policy", _is_policy, "a policy of kiqcluster.policies, a function of the run, or several", on_wire=False
        ),
        Option(
            "concurrency_limit",
            _is_limit,
            'a number (0 none, below 0 paused), a percentage of the threads like "10%", or a function that returns one',
            on_wire=False,
        ),
        Option(
            "concurrency_key",
            callable,
            "a function of the arguments → text, a number or None",
            on_wire=False,
        ),
        Option(
            "deduplicate",
            lambda value: value in (NO_STRATEGY, *STRATEGIES),
            ", ".join((NO_STRATEGY, *STRATEGIES)),
            on_wire=False,
        ),
        Option("max_iteration_runtime", _is_duration, "seconds, more than 0", on_wire=False),
        Option("result_ttl", _is_ttl, "whole seconds, at least 1", on_wire=False),
        Option(
            "enqueue_on_commit",
            lambda value: isinstance(value, bool) or _is_text(value),
            "True, False, or the alias of a database",
            on_wire=False,
        ),
        Option(
            "deduplicate_key",
            callable,
            "a function of the arguments → text, a number or None",
            on_wire=False,
        ),
        Option("deduplicate_ttl", _is_ttl, "whole seconds, at least 1", on_wire=False),
        Option("deduplicate_scheduled", lambda value: isinstance(value, bool), "True or False", on_wire=False),
        Option("reschedule_once", lambda value: isinstance(value, bool), "True or False", on_wire=False),
        Option("retry_in", callable, "a function (count, error, payload) → seconds, DISCARD or KILL", on_wire=False),
        Option("retries_exhausted", callable, "a function (payload, error)", on_wire=False),
        Option("interruptions_exhausted", callable, "a function (payload, error)", on_wire=False),
    )
}


def check_options(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options if all are known and valid.

    Raises JobDefinitionError, with the nearest known name.
    """
    for key, value in options.items():
        option = OPTIONS.get(key)
        if option is None:
            raise JobDefinitionError(f"{name}: there is no option {key!r}; {near_option(key)}")
        if not option.accepts(value):
            raise JobDefinitionError(f"{name}: {key} = {value!r} does not fit; it takes {option.expected}")
    return dict(options)


def merged(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return options where the nearer source counts: a class before its base, a push before its class.

    `retry` and `retry_for` replace each other, so the nearer one of the two holds alone.
    """
    options = {**inherited, **own}
    if own.get(RETRY_FOR) is None:
        if RETRY in own:
            options.pop(RETRY_FOR, None)
    elif RETRY not in own:
        options[RETRY] = True
    return options


def check_retries(options: Mapping[str, Any], name: str) -> None:
    """Raise JobDefinitionError where both the number of retries and their time are limited."""
    if RETRY_FOR in options and options.get(RETRY, True) is not True:
        raise JobDefinitionError(
            f"{name}: retry = {options[RETRY]!r} and retry_for = {options[RETRY_FOR]!r} exclude each other: a job is "
            "retried so often or for so long; leave one out"
        )


def check_combinations(options: Mapping[str, Any], name: str) -> None:
    """Raise JobDefinitionError for attributes that contradict each other.

    options: all that hold for the job, inherited ones included.  Source: GitLab's worker attributes.
    """
    if options.get("urgency") == "high":
        for attribute, value, reason in (
            ("resource_boundary", "memory", "a job that waits for memory cannot keep the targets of high urgency"),
            ("external_dependencies", True, "a service elsewhere decides when such a job ends"),
        ):
            if options.get(attribute) == value:
                raise JobDefinitionError(
                    f"{name}: urgency = 'high' and {attribute} = {value!r} exclude each other: {reason}; "
                    f"make it urgency='low', or move that part into a job of its own"
                )
    if options.get("data_consistency") == "delayed" and not options.get("retry", True):
        raise JobDefinitionError(
            f"{name}: data_consistency = 'delayed' needs retries, and retry = {options['retry']!r} has none: the job "
            "waits for a replica of the database by running again later; allow retries, or use 'sticky'"
        )
    check_retries(options, name)
    if options.get("encrypt") and options.get("active_job"):
        raise JobDefinitionError(f"{name}: encrypt does not go with active_job: Rails would not decrypt; leave one out")
    if options.get("timeout", 0) >= options.get("timeout_hard", MAX_DURATION_SECONDS):
        raise JobDefinitionError(
            f"{name}: timeout = {options['timeout']!r} has no effect with timeout_hard = {options['timeout_hard']!r}: "
            "the job needs time to end by itself; make timeout_hard the larger one"
        )
    _check_deduplication(options, name)
    _check_cron(options, name)


def _check_cron(options: Mapping[str, Any], name: str) -> None:
    """Raise JobDefinitionError for a schedule without ticks, or a time zone without a schedule."""
    if "tz" in options and "cron" not in options:
        raise JobDefinitionError(f"{name}: tz has no effect without cron, the schedule whose time zone it is")
    if "cron" in options:
        try:
            Schedule.parse(options["cron"], options.get("tz")).check_steps()
        except UsageError as error:
            raise JobDefinitionError(f"{name}: {error}") from error


def _check_deduplication(options: Mapping[str, Any], name: str) -> None:
    """Raise JobDefinitionError for an option of deduplication that has no effect with the strategy."""
    strategy = options.get("deduplicate")
    for key, strategies in NEEDED.items():
        if options.get(key) and strategy not in (NO_STRATEGY, *strategies):
            raise JobDefinitionError(
                f"{name}: {key} has no effect with deduplicate = {strategy!r}; it needs {' or '.join(strategies)}"
            )


def near_option(word: str) -> str:
    """Return the hint for an option that does not exist."""
    if (hint := hint_of("option", word)) is not None:
        return hint
    near = difflib.get_close_matches(word, OPTIONS, 1)
    return f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(OPTIONS)}"


def check_class_body(cls: type[Any]) -> None:
    """Raise JobDefinitionError for an option in the body of a class or mixin, where it has no effect.

    Methods, properties and other descriptors of that name belong to the application.
    """
    written = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    if isinstance(written.get("sidekiq_options"), Mapping):
        raise JobDefinitionError(
            f"{cls.__qualname__}.sidekiq_options would not be read; options are class keywords: "
            f"write class {cls.__name__}(Job, {_as_keywords(written['sidekiq_options'])})"
        )
    for name, value in written.items():
        is_own = hasattr(type(value), "__get__") or (name in HOOKS and callable(value))
        if name in OPTIONS and name != "queue" and not is_own:
            raise JobDefinitionError(
                f"{cls.__qualname__}.{name} = {value!r} would not be read; {_remedy(cls.__name__, name, value)}"
            )
        near = difflib.get_close_matches(name.removeprefix("sidekiq_"), HOOKS, 1, HOOK_TYPO_SIMILARITY)
        if near and name not in HOOKS and (callable(value) or isinstance(value, classmethod)):
            raise JobDefinitionError(f"{cls.__qualname__}.{name} would never be called; the hook is {near[0]!r}")


def _remedy(class_name: str, name: str, value: object) -> str:
    if name in HOOKS:
        return f"it is a method: write def {name}(self, {HOOKS[name]})"
    return f"options are class keywords: write class {class_name}(Job, {name}={value!r})"


def _as_keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
