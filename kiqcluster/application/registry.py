"""Registry: maps names to job definitions.  Only registered names ever run.

A module that runs again, as after a reload, declares its jobs again, and the new definitions replace the old ones.  Any
other definition under a registered name is an error that names both locations.
"""

from __future__ import annotations

import logging
import sys
from asyncio import Future
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, Signature
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from kiqcluster.application.source_location import SourceLocation
from kiqcluster.errors import InvalidArguments, JobDefinitionError, UsageError, class_name, message_of
from kiqcluster.process.boundary.calls import exc_info, guarded, is_a
from kiqcluster.process.in_force import InForce
from kiqcluster.process.job_context import version_of
from kiqcluster.sidekiq import active_job
from kiqcluster.sidekiq.conversions import with_article
from kiqcluster.sidekiq.payload import VERSION, Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.sidekiq.selectors import DECLARED

__all__ = [
    "BY_KEYWORD",
    "ENVELOPE",
    "Definition",
    "Perform",
    "Registry",
    "current_registry",
    "misfit_of",
    "using_registry",
]

Perform = Callable[..., Any]
LOGGER = logging.getLogger("kiqcluster")
BY_KEYWORD = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)  # kinds of parameters that take no positional argument
LAZY = (CoroutineType, GeneratorType, AsyncGeneratorType, map, filter)  # they do nothing until somebody asks
LOCALS = "<locals>"  # in the qualified name of what a function defines
ENVELOPE = Signature([Parameter("envelope", Parameter.POSITIONAL_ONLY)])


def misfit_of(name: str, signature: Signature, keywords: Mapping[str, Any], error: TypeError) -> InvalidArguments:
    """Return the error of a push whose arguments do not fit.

    error: of Signature.bind, which names a parameter that is missing before a keyword that no parameter has.
    """
    unknown = ", ".join(repr(each) for each in keywords if each not in signature.parameters)
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in signature.parameters.values())
    reason = f"got an unexpected keyword argument {unknown}" if unknown and not takes_any else str(error)
    return InvalidArguments(f"{name} was not enqueued: {reason}; its parameters are {signature}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Definition:
    """A job: its name on the wire, its options, and the code that runs it.

    options: those written to the payload, retry and queue first.  local: those that are not.  declared: names of the
    options that the job or a base of it gives, whatever their values; all others have their defaults.
    prepare: returns the instance (None for a function) and its bound perform, for one run.  origin: module and
    qualified name.  declared_at: where the application declares it; None for a job that an integration has found.
    enveloped: the same job, with an envelope of ActiveJob as its argument; None for a job without envelopes.
    called: the signature of the code, where `signature` is that of an envelope.
    """

    name: str
    queue: str
    options: Mapping[str, JSON]
    prepare: Callable[[], tuple[object, Perform]]
    signature: Signature
    origin: tuple[str, str]
    declared_at: SourceLocation | None = None
    local: Mapping[str, Any] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    enveloped: Definition | None = None
    called: Signature = ENVELOPE
    is_async: bool = False  # perform is a coroutine function
    is_iterable: bool = False  # an IterableJob
    fewest: int = field(init=False)  # arguments that perform takes, so that the hot path compares two numbers
    most: int = field(init=False)
    has_timeout: bool = field(init=False)  # features/timeouts

    def __post_init__(self) -> None:
        if self.signature is not ENVELOPE:
            object.__setattr__(self, "called", self.signature)
        parameters = list(self.signature.parameters.values())
        rest = [each for each in parameters if each.kind is Parameter.VAR_POSITIONAL]
        keywords = [each for each in parameters if each.kind in BY_KEYWORD]
        positions = [each for each in parameters if each not in rest + keywords]
        fewest = sum(each.default is Parameter.empty for each in positions)
        if any(each.kind is Parameter.KEYWORD_ONLY and each.default is Parameter.empty for each in keywords):
            fewest = sys.maxsize  # no number of positions fits
        object.__setattr__(self, "fewest", fewest)
        object.__setattr__(self, "most", sys.maxsize if rest else len(positions))
        object.__setattr__(self, "has_timeout", not self.local.keys().isdisjoint(("timeout", "timeout_hard")))

    def __repr__(self) -> str:
        return f"<job {self.name}{self.signature} on {self.queue}>"

    @property
    def retry_in(self) -> Callable[..., Any] | None:
        return self.local.get("retry_in")

    @property
    def retries_exhausted(self) -> Callable[..., Any] | None:
        return self.local.get("retries_exhausted")

    @property
    def interruptions_exhausted(self) -> Callable[..., Any] | None:
        return self.local.get("interruptions_exhausted")

    @property
    def declares_queue(self) -> bool:
        """Whether the job says in which queue it is; `queue="default"` says so as well."""
        return not self.declared.isdisjoint(("queue", "queue_namespace"))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that the job declares, for `selectors.attributes_of`; JSON-native."""
        declared = {**self.options, **self.local}
        return {name: declared[name] for name in DECLARED if name in declared}

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments as the payload's list: keywords bound to positions, trailing defaults left off.

        Keyword-only arguments, which need an envelope, are at the end.  Raises InvalidArguments when the arguments do
        not fit `perform`.
        """
        if not kwargs and self.fewest <= len(args) <= self.most:
            return list(args)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit_of(self.name, self.signature, kwargs, error) from error
        positions: list[Any] = []
        gap: list[Any] = []  # defaults that are sent only if a later argument is
        keywords = active_job.Keywords()
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is Parameter.VAR_POSITIONAL:
                positions += bound.arguments.get(name, ())
            elif parameter.kind is Parameter.VAR_KEYWORD:
                keywords.update(bound.arguments.get(name, {}))
            elif name not in bound.arguments:
                gap.append(parameter.default)
            elif parameter.kind is Parameter.KEYWORD_ONLY:
                keywords[name] = bound.arguments[name]
            else:
                positions += (*gap, bound.arguments[name])
                gap = []
        return [*positions, keywords] if keywords else positions

    def following(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the same for a job of a chain, with None as the first, which the job before it gives."""
        return self.positional((None, *args), kwargs)

    def write(self, arguments: list[Any]) -> list[JSON]:
        """Return arguments as JSON, where annotations of `perform` say how.  Raises InvalidArguments."""
        return arguments

    def values(self, arguments: list[JSON], *, is_sealed: bool = False) -> list[Any]:  # noqa: ARG002
        """Return what `perform` gets for the payload's list.  is_sealed: the last one is encrypted, and stays so.

        Raises MisfitArguments.
        """
        return arguments

    def write_result(self, value: Any) -> JSON:
        """Return what `perform` has returned as JSON, where its annotation says how.  Raises InvalidArguments."""
        return value

    def read_result(self, value: JSON) -> Any:
        """Return what `write_result` was given.  Raises UsageError."""
        return value

    def envelope(
        self, options: Mapping[str, JSON], now: float
    ) -> tuple[str, Mapping[str, JSON], Callable[[list[Any]], list[JSON]]]:
        """Return class and options of payloads with an envelope, and a function that wraps a list of arguments.

        The function raises InvalidArguments for values that ActiveJob cannot represent.
        """
        queue = options["queue"]

        def wrap(arguments: list[Any]) -> list[JSON]:
            try:
                return [active_job.enveloped(self.name, queue, arguments, now)]
            except InvalidArguments as error:
                error.args = (f"{self.name}: {error}",)
                raise

        return active_job.WRAPPER, {**options, "wrapped": self.name}, wrap

    def with_envelope(self) -> Definition:
        """Return the same job, which sends and runs ActiveJob's envelopes."""
        return replace(self, enveloped=replace(self, signature=ENVELOPE, prepare=self._prepare_enveloped))

    def _prepare_enveloped(self) -> tuple[object, Perform]:
        instance, perform = self.prepare()
        return instance, partial(active_job.run, self.name, self.signature, perform)

    @property
    def version(self) -> int:
        """The option `version`; 0 for a class that declares none, as in GitLab."""
        version: int = self.options.get(VERSION, 0)
        return version

    def is_older_than(self, payload: Payload) -> bool:
        """Return whether a payload may have arguments that this class does not know yet."""
        return version_of(payload) > self.version

    def misfit(self, payload: Payload) -> str | None:
        """Return why `perform` cannot be called with the arguments of a payload, None if it can.

        A payload that is newer than the class fits: it waits for a process that has its version (features/versions).
        """
        return None if self.is_older_than(payload) else self.fits(payload["args"])

    def fits(self, arguments: list[JSON]) -> str | None:
        """Return None if `perform` can be called with these arguments, else the reason."""
        if self.fewest <= len(arguments) <= self.most:
            return None
        try:
            self.signature.bind(*arguments)
        except TypeError as error:
            return f"{self.name}{self.signature}: {error}"
        return None

    def check_returned(self, returned: object) -> None:
        """Check what `perform` has returned.  Raises UsageError for work that nobody would begin or wait for.

        That is a coroutine or a task, which nobody awaits, or a generator, `map` or `filter`, which nobody iterates.
        """
        if returned is None:
            return
        if not (is_a(returned, LAZY) or hasattr(type(returned), "__await__")) or _has_ended(returned):
            return
        _end_unawaited(returned)
        raise UsageError(
            f"{self.name} has returned {with_article(type(returned).__name__)}, which nobody awaits or iterates, so "
            "its work is not done: await it in the job, or iterate over it there; a decorator around the function must "
            "do so too"
        )


def _has_ended(returned: object) -> bool:
    return is_a(returned, Future) and returned.done() and not returned.cancelled()


def _end_unawaited(returned: object) -> None:
    """Have a coroutine give no warning, and a task not go on beside the next try of its job."""
    if is_a(returned, CoroutineType):
        returned.close()
    elif is_a(returned, Future):
        returned.cancel()


class Registry:
    """Job definitions by name.

    resolve: asked for a name that is not registered; an integration finds jobs by it that are declared in modules which
    nothing has imported yet.  It registers what it finds.
    """

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}
        self.resolve: Callable[[str], Definition | None] | None = None

    def add(self, definition: Definition) -> None:
        """Register a definition.  Raises JobDefinitionError if another definition has its name."""
        taken = self._definitions.get(definition.name)
        if taken is not None and taken is not definition and not _is_declared_again(taken, definition):
            raise JobDefinitionError(_two_of_one_name(taken, definition))
        self._definitions[definition.name] = definition

    def get(self, name: str) -> Definition | None:
        return self._definitions.get(name)

    def find(self, payload: Payload) -> tuple[str, Definition | None]:
        """Return the name of a payload's job, and the definition that runs it here (None if there is none).

        For a job that ActiveJob has wrapped, the name is that of its own class.
        """
        name: str = payload["class"]
        definition = self._definitions.get(name)
        if definition is None and self.resolve is not None:
            definition = guarded(partial(_log_unresolved, name), self.resolve, name)
        if definition is None and (envelope := active_job.unwrapped(payload)) is not None:
            name = envelope.job_class
            wrapped = self._definitions.get(name)
            definition = None if wrapped is None else wrapped.enveloped
        return name, definition

    def __iter__(self) -> Iterator[Definition]:
        return iter(list(self._definitions.values()))

    def __len__(self) -> int:
        return len(self._definitions)


def _is_declared_again(old: Definition, new: Definition) -> bool:
    """Return whether a definition replaces another one, which its module has declared before."""
    if old.origin != new.origin:
        return False
    return old.declared_at is None or new.declared_at is None or new.declared_at.replaces(old.declared_at)


def _two_of_one_name(taken: Definition, definition: Definition) -> str:
    locations = " and ".join(
        ".".join(each.origin) + (f" ({each.declared_at.line})" if each.declared_at else "")
        for each in (taken, definition)
    )
    remedy = "give one of them another name (name=… or namespace=…), or payloads would run the wrong code"
    if taken.origin == definition.origin and LOCALS in definition.origin[1]:
        remedy += (
            ". A function that returns functions gives all of them one name: a decorator needs functools.wraps, "
            "and one that makes jobs needs name=…"
        )
    return f"two jobs are named {definition.name!r}: {locations}; {remedy}"


def _log_unresolved(name: str, error: BaseException) -> None:
    message = "%s is not found, so its jobs count as those of an unknown class: %s: %s"
    LOGGER.warning(message, name, class_name(error), message_of(error), exc_info=exc_info(error))


REGISTRY = InForce(Registry())


def current_registry() -> Registry:
    """Return the registry that declarations go to and names are looked up in."""
    return REGISTRY.value


def using_registry(registry: Registry) -> AbstractContextManager[Registry]:
    """Use another registry for a while, for tests."""
    return REGISTRY.using(registry)
