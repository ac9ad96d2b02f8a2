"""Definitions: what the class or function of a job says → its Definition, checked and registered.

1. wire_name_of, check_function   the name of the job in payloads; what @job refuses
2. define                         options (options.py), signature, queue; adds the definition to the registry
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kiqcluster.application.argument_types import typed
from kiqcluster.application.options import OPTIONS, check_combinations, check_options
from kiqcluster.application.registry import BY_KEYWORD, Definition, current_registry
from kiqcluster.application.signatures import hidden_by_decorator, hides_parameters
from kiqcluster.application.source_location import caller_location
from kiqcluster.errors import InvalidPush, JobDefinitionError, UsageError
from kiqcluster.process.boundary.forms import check_form
from kiqcluster.sidekiq.payload import check_queue_name

__all__ = ["check_function", "cron_queue", "define", "queue_for", "underscored", "wire_name_of"]

CRON_NAMESPACE = "cronjob"  # of the queues of jobs with a schedule that declare none (GitLab)
DEFAULT_QUEUE = "default"
KEY_FUNCTIONS = frozenset({"deduplicate_key", "concurrency_key"})  # options that are called with the arguments
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def wire_name_of(name: str | None, own: str, namespace: str | None) -> str:
    """Return the name of a job in payloads.  own: name of its class or function; a namespace is put before it."""
    if namespace is None:
        return name or own
    if name is not None:
        raise JobDefinitionError(f"{name}: name is all of the name in payloads; leave out namespace = {namespace!r}")
    if not namespace or not namespace.isprintable():
        raise JobDefinitionError(f"{own}: namespace = {namespace!r} does not fit; it takes a word such as Billing")
    return f"{namespace}::{own}"


def check_function(function: Callable[..., Any], name: str | None) -> None:
    """Raise JobDefinitionError for a function that has no name for payloads, or that a worker could not call."""
    own, qualified = function.__name__, function.__qualname__
    scope = qualified.rpartition(".")[0]
    if own == "<lambda>" and name is None:
        raise JobDefinitionError("@job needs a name for its payloads, and a lambda has none; write a def, or name=…")
    if own != "<lambda>" and scope and not scope.endswith("<locals>"):
        raise JobDefinitionError(
            f"@job cannot decorate {qualified}: it is defined in a class, and a worker has no instance to call it on; "
            f"write a function at the level of the module, or class {_camel_case(own)}(Job) with perform"
        )


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def define(
    name: str,
    options: Mapping[str, Any],
    prepare: Callable[[], tuple[object, Callable[..., Any]]],
    signature: inspect.Signature,
    target: Any,
) -> Definition:
    """Register a job and return its definition.  Raises JobDefinitionError if it cannot work.

    prepare, signature: see Definition; the signature has no `self`.  target: the class or function, for its origin.
    """
    if not name or not name.isprintable():
        raise JobDefinitionError(f"{name!r} is not a valid name for a job; use a class name like Acme::WelcomeMail")
    checked = check_options(options, name)
    check_combinations(checked, name)
    is_iterable = getattr(target, "is_iterable", False) is True
    _check_effects(name, checked, is_iterable=is_iterable)
    is_active_job = checked.get("active_job", False)
    is_hidden = not is_active_job and hides_parameters(getattr(target, "perform", target))
    _check_signature(name, signature, target, () if is_active_job or is_hidden else BY_KEYWORD)
    _check_key_functions(name, checked, signature)
    declared = frozenset(checked)
    if "cron" in checked:
        checked = _with_cron_defaults(name, checked, signature)
    queue = queue_for(name, checked)
    wire = {key: value for key, value in checked.items() if OPTIONS[key].on_wire and key != "queue"}
    if "loggable_arguments" in checked:
        checked["loggable_arguments"] = _positions(name, signature, checked["loggable_arguments"])
    definition = Definition(
        name=name,
        queue=queue,
        options={"retry": True, "queue": queue, **wire},
        prepare=prepare,
        signature=signature,
        origin=(target.__module__, target.__qualname__),
        declared_at=caller_location(target),
        local={key: value for key, value in checked.items() if not OPTIONS[key].on_wire},
        declared=declared,
        is_async=inspect.iscoroutinefunction(getattr(target, "perform", target)),
        is_iterable=is_iterable,
    )
    if is_hidden:
        definition = hidden_by_decorator(definition, target)
    else:
        definition = definition.with_envelope() if is_active_job else typed(definition, target)
    current_registry().add(definition)
    return definition


def _check_effects(name: str, options: Mapping[str, Any], *, is_iterable: bool) -> None:
    """Raise JobDefinitionError for an option that has no effect without something else."""
    if "max_iteration_runtime" in options and not is_iterable:
        raise JobDefinitionError(f"{name}: max_iteration_runtime has no effect: the class is no IterableJob")
    if "concurrency_key" in options and "concurrency_limit" not in options:
        raise JobDefinitionError(f"{name}: concurrency_key = … has no effect without a concurrency_limit")


def _check_key_functions(name: str, options: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raise JobDefinitionError for a key function that cannot be called with all arguments of `perform`."""
    parameters = signature.parameters.values()
    if any(each.kind in VARIADIC for each in parameters):
        return  # their number is known at a push only
    positions = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options.keys() & KEY_FUNCTIONS:
        try:
            check_form(f"{option} of {name}", options[option], str(signature), *positions, **dict.fromkeys(keywords))
        except UsageError as error:
            raise JobDefinitionError(f"{error}, defaults included") from error


def _with_cron_defaults(name: str, options: dict[str, Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the options of a job with a schedule.  Raises JobDefinitionError for one that needs arguments.

    It lands in the namespace `cronjob` and is not retried, since it comes again, unless it declares otherwise.
    """
    needed = [
        each for each in signature.parameters.values() if each.default is each.empty and each.kind not in VARIADIC
    ]
    if needed:
        raise JobDefinitionError(
            f"{name}: a job with the option cron runs without arguments, and {needed[0].name} has no default; give it "
            f"one, or write the entry with args into the configuration: [cron.{underscored(name)}]"
        )
    defaults = {} if options.keys() & {"queue", "queue_namespace"} else {"queue_namespace": CRON_NAMESPACE}
    return {"retry": "retry_for" in options or 0, **defaults, **options}


def _positions(name: str, signature: inspect.Signature, arguments: Iterable[int | str]) -> frozenset[int]:
    """Return the positions of arguments that are named or numbered.  Raises JobDefinitionError for an unknown name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in signature.parameters.values() if each.kind in kinds]
    for argument in arguments:
        if isinstance(argument, str) and argument not in names:
            raise JobDefinitionError(
                f"{name}: loggable_arguments names {argument!r}, which has no position; the parameters with one are "
                f"{', '.join(names) or 'none'}, and others have a number"
            )
    return frozenset(names.index(each) if isinstance(each, str) else each for each in arguments)


def queue_for(name: str, options: Mapping[str, Any]) -> str:
    """Return the queue of a job: the given one, or the one by GitLab's rule for a namespace.

    `SomeScheduledTaskWorker` in `cronjob` → `cronjob:some_scheduled_task`.
    """
    namespace = options.get("queue_namespace")
    queue = options.get("queue")
    if namespace is not None:
        queue = f"{namespace}:{queue or underscored(name)}"
    try:
        return check_queue_name(queue or DEFAULT_QUEUE)
    except InvalidPush as error:
        raise JobDefinitionError(f"{name}: {error}") from error


def cron_queue(name: str, queue: str, *, is_declared: bool) -> str:
    """Return the queue of the jobs of a cron entry that names none.  queue: to which other jobs of the class go.

    is_declared: whether the class or a routing rule names that queue.  Else the jobs are in the namespace `cronjob`.
    """
    return queue if is_declared else queue_for(name, {"queue_namespace": CRON_NAMESPACE})


def underscored(name: str) -> str:
    """Return a class name as GitLab names its queue: no Worker at the end, words and namespaces joined by `_`."""
    name = name.removeprefix("Gitlab::").removesuffix("Worker").replace("::", "/")
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    name = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", name)
    return name.lower().replace("/", "_")


def _check_signature(
    name: str, signature: inspect.Signature, target: Any, refused: Collection[inspect._ParameterKind]
) -> None:
    perform = getattr(target, "perform", target)
    if inspect.isgeneratorfunction(perform) or inspect.isasyncgenfunction(perform):
        raise JobDefinitionError(f"{name} has a yield in it, so calling it would run nothing; return instead")
    for parameter in signature.parameters.values():
        if parameter.kind in refused:
            raise JobDefinitionError(
                f"{name}: {parameter} can only be passed by keyword, and a payload has positions only; "
                "make it an ordinary parameter"
            )
