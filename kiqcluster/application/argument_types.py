"""Argument types: what the annotations of `perform` say of arguments; values ↔ JSON, on both sides of the queue.

typed        the definition of a job with such annotations: a push writes JSON, `perform` gets values
check_types  all annotations of an application, once all of it is imported

A job whose annotations name JSON's types only, or none, keeps its ordinary Definition, and its pushes and runs do
nothing for this module.  A name in an annotation may be known later than the job: such annotations are looked at again
by check_types, or at the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from inspect import Parameter, Signature
from typing import Any, Optional

from kiqcluster.application.annotations import Namespace, Unresolved, names_of, needs_of, resolved
from kiqcluster.application.converters import Converter, Misfit, converter_of
from kiqcluster.application.registry import BY_KEYWORD, Definition, Perform, Registry
from kiqcluster.errors import InvalidArguments, JobDefinitionError, MisfitArguments, UsageError
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["ArgumentTypes", "TypedDefinition", "TypedResult", "check_types", "typed"]

RESULT = "result"  # what messages call what a job returns
REMEDY = (
    "import the name where the job is defined, not under TYPE_CHECKING only, and define it at the level of a module; "
    "or annotate the parameter with the type that the payload has: dict, list, str"
)


@dataclass(frozen=True, slots=True)
class _Converters:
    """Of the parameters with a position, of the others, and of what the job returns; None for no conversion."""

    positions: tuple[Converter | None, ...]
    rest: Converter | None
    result: Converter | None

    @property
    def has_arguments(self) -> bool:
        return self.rest is not None or any(each is not None for each in self.positions)


class ArgumentTypes:
    """Converts the arguments of a job, and what it returns.  Thread-safe: the converters are set at once."""

    def __init__(self, job: str, signature: Signature, names: Namespace) -> None:
        self._job = job
        self._signature = signature
        self._names = names
        self._labels = [each.name for each in signature.parameters.values() if each.kind not in BY_KEYWORD]
        self._found: _Converters | None = None

    def resolve(self) -> _Converters:
        """Look at the annotations.  Raises Unresolved, JobDefinitionError."""
        positions, rest = list[Converter | None](), None
        for each in self._signature.parameters.values():
            if each.kind is Parameter.VAR_POSITIONAL:
                rest = self._converter(each.name, each.annotation)
            elif each.kind not in BY_KEYWORD:
                positions.append(self._converter(each.name, each.annotation, is_optional=each.default is None))
        self._found = _Converters(tuple(positions), rest, self._result())
        return self._found

    def _result(self) -> Converter | None:
        """Return the converter of results; None where the annotation does not say how: nobody may ask for one."""
        try:
            return self._converter(RESULT, self._signature.return_annotation)
        except (Unresolved, JobDefinitionError):
            return None

    def _converter(self, name: str, annotation: Any, *, is_optional: bool = False) -> Converter | None:
        annotation = resolved(annotation, self._names)
        try:
            needs = needs_of(annotation, name)
            if not needs:
                return None
            return converter_of(Optional[annotation] if is_optional else annotation, name, needs)  # noqa: UP045
        except JobDefinitionError as error:
            error.args = (f"{self._job}: {error}",)
            raise

    def converters(self) -> _Converters:
        """Return the converters.  Raises JobDefinitionError."""
        if self._found is not None:
            return self._found
        try:
            return self.resolve()
        except Unresolved as error:
            raise JobDefinitionError(f"{self._job}{self._signature}: {error}; {REMEDY}") from error

    def write(self, arguments: list[Any], first: int = 0) -> list[JSON]:
        """Return arguments as JSON, those before `first` unchanged.  Raises InvalidArguments, JobDefinitionError."""
        found = self.converters()
        made = arguments[:first]
        for index, value in enumerate(arguments[first:], first):
            converter = found.positions[index] if index < len(found.positions) else found.rest
            try:
                made.append(value if converter is None else converter.write(value))
            except Misfit as error:
                path = self._label(index) + error.path
                raise InvalidArguments(f"{self._job} was not enqueued: {path}: {error.reason}", path) from error
        return made

    def read(self, arguments: Iterable[JSON]) -> list[Any]:
        """Return the values of arguments.  Raises MisfitArguments."""
        try:
            found = self.converters()
        except JobDefinitionError as error:
            raise MisfitArguments(str(error)) from error
        made = list[Any]()
        for index, value in enumerate(arguments):
            converter = found.positions[index] if index < len(found.positions) else found.rest
            try:
                made.append(value if converter is None else converter.read(value))
            except Misfit as error:
                path = self._label(index) + error.path
                raise MisfitArguments(f"{self._job}{self._signature}: {path}: {error.reason}", path) from error
        return made

    def _label(self, index: int) -> str:
        """Return what messages call an argument: `order`, `dates[2]`."""
        positions = len(self.converters().positions)
        return self._labels[index] if index < positions else f"{self._labels[positions]}[{index - positions}]"

    def call(self, perform: Perform, *arguments: JSON) -> Any:
        """Call perform with the values of arguments.  Raises MisfitArguments."""
        return perform(*self.read(arguments))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class TypedResult(Definition):
    """A job that returns what JSON lacks, by its annotation; its arguments are JSON, or have no annotations."""

    types: ArgumentTypes = field(kw_only=True)

    def write_result(self, value: Any) -> JSON:
        converter = self.types.converters().result
        try:
            return value if converter is None else converter.write(value)
        except Misfit as error:
            path = RESULT + error.path
            raise InvalidArguments(f"{path}: {error.reason}", path) from error

    def read_result(self, value: JSON) -> Any:
        converter = self.types.converters().result
        try:
            return value if converter is None else converter.read(value)
        except Misfit as error:
            raise UsageError(
                f"{self.name} has ended, and what is kept of it does not fit {self.signature.return_annotation!r}: "
                f"{RESULT}{error.path}: {error.reason}. handle.status().value is that as JSON"
            ) from error


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class TypedDefinition(TypedResult):
    """A job with an argument that JSON lacks, by its annotation."""

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[JSON]:
        return self.types.write(Definition.positional(self, args, kwargs))

    def following(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[JSON]:
        return self.types.write(Definition.positional(self, (None, *args), kwargs), 1)

    def write(self, arguments: list[Any]) -> list[JSON]:
        return self.types.write(arguments)

    def values(self, arguments: list[JSON], *, is_sealed: bool = False) -> list[Any]:
        known = arguments[:-1] if is_sealed else arguments
        return self.types.read(known) + arguments[len(known) :]

    def fits(self, arguments: list[JSON]) -> str | None:
        if misfit := Definition.fits(self, arguments):
            return misfit
        try:
            self.types.write(arguments)
        except InvalidArguments as error:
            return str(error)
        return None


def typed(definition: Definition, target: Any) -> Definition:
    """Return the definition of a job, typed if its annotations need that.  target: its class or function.

    Raises JobDefinitionError for types that cannot be converted.
    """
    types = ArgumentTypes(definition.name, definition.signature, names_of(target))
    known = {each.name: getattr(definition, each.name) for each in fields(definition) if each.init}
    try:
        found = types.resolve()
    except Unresolved:  # a name that the rest of the module, or another one, may bring
        found = None
    if found is None or found.has_arguments:
        return TypedDefinition(**{**known, "prepare": partial(_prepare, definition.prepare, types)}, types=types)
    return definition if found.result is None else TypedResult(**known, types=types)


def _prepare(prepare: Callable[[], tuple[object, Perform]], types: ArgumentTypes) -> tuple[object, Perform]:
    instance, perform = prepare()
    return instance, partial(types.call, perform)


def check_types(registry: Registry) -> None:
    """Look at all annotations.  Raises JobDefinitionError."""
    for definition in registry:
        if isinstance(definition, TypedResult):
            definition.types.converters()
