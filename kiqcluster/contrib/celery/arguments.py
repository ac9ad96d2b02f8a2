"""Arguments: how the arguments of a task travel in a payload, which has positions only.

A keyword that names an ordinary parameter travels at the position of that parameter.  A function with keyword-only
parameters or **kwargs gets one object more, always the last argument, which has these keywords:

    def export(order_id, *, fmt="csv")      export.delay(7, fmt="pdf")  →  [7, {"fmt": "pdf"}]

Ruby reads it as `def perform(order_id, options = {})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any

from kiqcluster.errors import InvalidArguments

__all__ = ["KEYWORDS", "Arguments"]

KEYWORDS = "keywords"  # name of the parameter that has them
BY_KEYWORD = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)


class Arguments:
    """The arguments of one function.

    signature: as callers see it, without `self`.  wire: as the payload has it.
    """

    def __init__(self, function: Callable[..., Any], *, is_bound: bool) -> None:
        own = signature(function)
        parameters = list(own.parameters.values())[1 if is_bound else 0 :]
        self.signature = own.replace(parameters=parameters)
        self._positions = [each for each in parameters if each.kind not in BY_KEYWORD]
        self._is_variadic = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
        self.has_keywords = len(self._positions) < len(parameters)
        self.wire = self.signature if not self.has_keywords else self._with_object()

    def _with_object(self) -> Signature:
        """Return the signature of the payload: the positions, and the object with the keywords."""
        if self._is_variadic:
            return self.signature.replace(parameters=self._positions)
        last = self._positions[-1].kind if self._positions else Parameter.POSITIONAL_ONLY
        kind = Parameter.POSITIONAL_OR_KEYWORD if last is Parameter.POSITIONAL_OR_KEYWORD else Parameter.POSITIONAL_ONLY
        return self.signature.replace(parameters=[*self._positions, Parameter(KEYWORDS, kind, default=None)])

    def pack(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call as the payload has them.  Raises InvalidArguments where they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{name} was not enqueued: {error}; its parameters are {self.signature}") from error
        if self.has_keywords:
            keywords = dict(bound.kwargs)
            bound.apply_defaults()
            return [*bound.args, {key: value for key, value in keywords.items() if key not in self._names()}]
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
        """Return positions and keywords of the arguments that a payload has."""
        arguments = list(wire)
        if not self.has_keywords:
            return arguments, {}
        fewest = len(self._positions) - self._is_variadic
        is_there = len(arguments) > fewest and (not self._is_variadic or isinstance(arguments[-1], dict))
        keywords = arguments.pop() if is_there else None
        if keywords is not None and not isinstance(keywords, dict):
            raise TypeError(f"the last argument has the keywords, and is an object, not {keywords!r}")
        return arguments, keywords or {}
