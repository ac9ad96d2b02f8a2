"""Arguments: how the arguments of a task travel in a payload, which has positions only.

A keyword that names an ordinary parameter travels at the position of that parameter.  A function with keyword-only
parameters or **kwargs gets one object more, always the last argument, which has these keywords:

    def export(order_id, *, fmt="csv")      export.delay(7, fmt="pdf")  →  [7, {"fmt": "pdf"}]

Ruby reads it as `def perform(order_id, options = {})`.  Keywords are converted by their annotations, as positions are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, Signature
from typing import Any

from kiqcluster.application.annotations import Namespace, Unresolved, names_of
from kiqcluster.application.argument_types import ArgumentTypes
from kiqcluster.application.registry import misfit_of
from kiqcluster.application.signatures import signature_of

__all__ = ["KEYWORDS", "Arguments"]

KEYWORDS = "keywords"  # name of the parameter that has them
CONVERTED = (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)  # here, not by the definition
BY_KEYWORD = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)


class Arguments:
    """The arguments of one function.

    signature: as callers see it, without `self`.  wire: as the payload has it.  Positions are converted by the
    definition of the job, and what the wire does not tell apart is converted here.
    """

    def __init__(self, name: str, function: Callable[..., Any], *, is_bound: bool) -> None:
        """Raises JobDefinitionError for a keyword whose type cannot be converted.  name: of the task."""
        self.signature = signature_of(function, has_self=is_bound)
        parameters = list(self.signature.parameters.values())
        self._positions = [each for each in parameters if each.kind not in BY_KEYWORD]
        self._is_variadic = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
        self.has_keywords = len(self._positions) < len(parameters)
        names = names_of(function)
        self._types = {each.name: _types(name, each, names) for each in parameters if each.kind in CONVERTED}
        self._more = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), "")
        self.wire = self.signature if not self.has_keywords else self._with_object()

    def _with_object(self) -> Signature:
        """Return the signature of the payload: the positions, and the object with the keywords."""
        if self._is_variadic:  # *rest has no type here: the object with the keywords is among them, see _of_rest
            rest = self._positions[-1].replace(annotation=Parameter.empty)
            return self.signature.replace(parameters=[*self._positions[:-1], rest])
        last = self._positions[-1].kind if self._positions else Parameter.POSITIONAL_ONLY
        kind = Parameter.POSITIONAL_OR_KEYWORD if last is Parameter.POSITIONAL_OR_KEYWORD else Parameter.POSITIONAL_ONLY
        return self.signature.replace(parameters=[*self._positions, Parameter(KEYWORDS, kind, default=None)])

    def pack(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call as the payload has them, its keywords as JSON.

        Raises InvalidArguments where they do not fit, JobDefinitionError where an annotation names what is not known.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit_of(name, self.signature, kwargs, error) from error
        if self.has_keywords:
            keywords = dict(bound.kwargs)
            bound.apply_defaults()
            given = {key: value for key, value in keywords.items() if key not in self._names()}
            written = {key: self._types_of(key).write([value])[0] for key, value in given.items()}
            return [*self._of_rest(bound.args, ArgumentTypes.write), written]
        positions: list[Any] = []
        gap: list[Any] = []  # defaults that are sent only if a later argument is
        for each in self._positions:
            if each.kind is Parameter.VAR_POSITIONAL:
                positions += bound.arguments.get(each.name, ())
            elif each.name in bound.arguments:
                positions += (*gap, bound.arguments[each.name])
                gap = []
            else:
                gap.append(each.default)
        return positions

    def _names(self) -> set[str]:
        return {each.name for each in self._positions if each.kind is Parameter.POSITIONAL_OR_KEYWORD}

    def unpack(self, wire: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positions and keywords of the arguments that a payload has.  Raises MisfitArguments, TypeError."""
        arguments = list(wire)
        if not self.has_keywords:
            return arguments, {}
        fewest = len(self._positions) - self._is_variadic
        is_there = len(arguments) > fewest and (not self._is_variadic or isinstance(arguments[-1], dict))
        keywords = arguments.pop() if is_there else None
        if keywords is not None and not isinstance(keywords, dict):
            raise TypeError(f"the last argument has the keywords, and is an object, not {keywords!r}")
        read = {key: self._read(key, value) for key, value in (keywords or {}).items()}
        return self._of_rest(arguments, ArgumentTypes.read), read

    def _of_rest(self, arguments: Sequence[Any], convert: Callable[[ArgumentTypes, list[Any]], list[Any]]) -> list[Any]:
        """Return positions, those of *rest converted: of a function with keywords, the payload does not say which."""
        if not self._is_variadic:
            return list(arguments)
        fixed = len(self._positions) - 1
        types = self._types[self._positions[-1].name]
        return [*arguments[:fixed], *(convert(types, [each])[0] for each in arguments[fixed:])]

    def _types_of(self, key: str) -> ArgumentTypes:
        """Return the types of a keyword; those of **kwargs for one that has no parameter."""
        return self._types.get(key) or self._types[self._more]

    def _read(self, key: str, value: Any) -> Any:
        is_known = key in self._types or self._more  # the call refuses any other one
        return self._types_of(key).read([value])[0] if is_known else value


def _types(job: str, parameter: Parameter, names: Namespace) -> ArgumentTypes:
    """Return the types of one parameter, as if it had a position of its own."""
    types = ArgumentTypes(job, Signature([parameter.replace(kind=Parameter.POSITIONAL_ONLY)]), names)
    with suppress(Unresolved):  # a name that the rest of the module may bring: the first use looks again
        types.resolve()
    return types
