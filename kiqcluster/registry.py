"""Registry: which names may run here, and what each of them runs.  Only registered names ever run.

A definition that comes again from the same place (module and qualified name) replaces the old one, as a reload
does; anything else that claims a taken name is an error that names both.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kiqcluster.errors import InvalidArguments, JobDefinitionError
from kiqcluster.rubyjson import JSON

__all__ = ["Definition", "Registry", "current_registry", "using_registry"]

Perform = Callable[..., Any]


@dataclass(frozen=True, slots=True, repr=False)
class Definition:
    """A job: its name on the wire, its options, and how it is run.

    options: those that travel in the payload, retry and queue first.  prepare: returns the instance (None for a
    function) and its bound perform, for one run.  origin: module and qualified name.
    """

    name: str
    queue: str
    options: Mapping[str, JSON]
    prepare: Callable[[], tuple[object, Perform]]
    signature: inspect.Signature
    origin: tuple[str, str]
    retry_in: Callable[..., Any] | None = None
    retries_exhausted: Callable[..., Any] | None = None
    local: Mapping[str, Any] = field(default_factory=dict)  # options that stay in the process
    fewest: int = field(init=False)  # arguments that perform takes, so that the hot path compares two numbers
    most: int = field(init=False)

    def __post_init__(self) -> None:
        parameters = self.signature.parameters.values()
        positions = [each for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]
        object.__setattr__(self, "fewest", sum(each.default is inspect.Parameter.empty for each in positions))
        object.__setattr__(self, "most", len(positions) if len(positions) == len(parameters) else sys.maxsize)

    def __repr__(self) -> str:
        return f"<job {self.name}{self.signature} on {self.queue}>"

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments as the list that travels: keywords bound to positions, trailing defaults left off.

        Raises InvalidArguments when they do not fit `perform`.
        """
        if not kwargs and self.fewest <= len(args) <= self.most:
            return list(args)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(
                f"{self.name} was not enqueued: {error}; its parameters are {self.signature}"
            ) from error
        positions: list[Any] = []
        gap: list[Any] = []  # defaults that travel only if an argument after them does
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positions += bound.arguments.get(name, ())
            elif name in bound.arguments:
                positions += (*gap, bound.arguments[name])
                gap = []
            else:
                gap.append(parameter.default)
        return positions

    def fits(self, arguments: list[JSON]) -> str | None:
        """Return None when `perform` can be called with these arguments, else the reason why not."""
        if self.fewest <= len(arguments) <= self.most:
            return None
        try:
            self.signature.bind(*arguments)
        except TypeError as error:
            return f"{self.name}{self.signature}: {error}"
        return None


class Registry:
    """Job definitions by name."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def add(self, definition: Definition) -> None:
        """Register a definition.  Raises JobDefinitionError when something else has its name."""
        taken = self._definitions.get(definition.name)
        if taken is not None and taken.origin != definition.origin:
            raise JobDefinitionError(
                f"two jobs are named {definition.name!r}: {'.'.join(taken.origin)} and {'.'.join(definition.origin)}; "
                "give one of them another name (name=…), or payloads would run the wrong code"
            )
        self._definitions[definition.name] = definition

    def get(self, name: str) -> Definition | None:
        return self._definitions.get(name)

    def __iter__(self) -> Iterator[Definition]:
        return iter(list(self._definitions.values()))

    def __len__(self) -> int:
        return len(self._definitions)


class Process:
    """Holder of the registry in force; swapped as a whole, by tests only."""

    registry = Registry()


def current_registry() -> Registry:
    """Return the registry that declarations go to and names are looked up in."""
    return Process.registry


@contextmanager
def using_registry(registry: Registry) -> Iterator[Registry]:
    """Use another registry for a while, for tests."""
    before, Process.registry = Process.registry, registry
    try:
        yield registry
    finally:
        Process.registry = before
