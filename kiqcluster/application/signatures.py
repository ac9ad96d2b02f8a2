"""Signatures: which arguments a job takes, by the function that is called for it.

A decorator with functools.wraps need not pass on what it gets: one that opens a session puts it before the arguments.
So the outermost function says which arguments there are, and not the one that it hides.  Most of these say
`(*args, **kwargs)`, and then nobody can check or convert the arguments of a push; only the hidden function could tell.

signature_of       the signature of a function, without `self`
HiddenDefinition   a job whose parameters are hidden so: a keyword finds its position where that is certain

A decorator of contextlib (Django's `atomic`, say) passes on what it gets, so the function below it counts.  So does
whatever a decorator says in `__signature__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncContextDecorator, ContextDecorator
from dataclasses import dataclass, fields
from inspect import Parameter, Signature, isfunction, signature, unwrap
from typing import Any

from kiqcluster.application.annotations import names_of
from kiqcluster.application.argument_types import ArgumentTypes, TypedResult
from kiqcluster.application.registry import Definition
from kiqcluster.errors import InvalidArguments

__all__ = ["HiddenDefinition", "hidden_by_decorator", "hides_parameters", "signature_of"]

KINDS_OF_POSITIONS = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _nothing() -> None: ...


async def _nothing_async() -> None: ...


PASS_ON = (ContextDecorator()(_nothing).__code__, AsyncContextDecorator()(_nothing_async).__code__)


def signature_of(function: Callable[..., Any], *, has_self: bool = False) -> Signature:
    """Return the signature of a function as its caller sees it.  has_self: whether its first argument is `self`."""
    found = signature(_called(function), follow_wrapped=False)
    parameters = list(found.parameters.values())
    if has_self and parameters and parameters[0].kind is not Parameter.VAR_POSITIONAL:
        del parameters[0]
    return found.replace(parameters=parameters)


def hides_parameters(function: Callable[..., Any]) -> bool:
    """Return whether a decorator hides which parameters a function has: it takes `(*args, **kwargs)`."""
    called = _called(function)
    kinds = {each.kind for each in signature(called, follow_wrapped=False).parameters.values()}
    return hasattr(called, "__wrapped__") and {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD} <= kinds


def _called(function: Any) -> Any:
    while isfunction(function) and function.__code__ in PASS_ON and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HiddenDefinition(TypedResult):
    """A job whose parameters a decorator hides: its arguments are JSON.

    names: of the hidden function's parameters, by position.
    """

    names: tuple[str, ...] = ()

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments as the payload's list.

        Keywords are taken if they name the parameters right behind the positions.  With one left out, the decorator may
        give that argument, and all others would move.  Raises InvalidArguments.
        """
        left, made = dict(kwargs), list(args)
        for name in self.names[len(args) :]:
            if name not in left:
                break
            made.append(left.pop(name))
        if left:
            raise InvalidArguments(
                f"{self.name} was not enqueued: a decorator hides its parameters, so {next(iter(left))!r} has no "
                "certain position. Pass the arguments by position, or have the decorator set __signature__"
            )
        return made


def hidden_by_decorator(definition: Definition, target: Any) -> Definition:
    """Return the definition of a job whose parameters a decorator hides.  target: its class or function."""
    function = unwrap(getattr(target, "perform", target))
    is_method = isinstance(target, type) and isfunction(vars(target).get("perform"))
    below = list(signature(function).parameters.values())[1 if is_method else 0 :]
    names = tuple(each.name for each in below if each.kind in KINDS_OF_POSITIONS)
    known = {each.name: getattr(definition, each.name) for each in fields(definition) if each.init}
    positions = [each for each in definition.signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    seen = definition.signature.replace(parameters=positions)
    types = ArgumentTypes(definition.name, seen, names_of(target))
    return HiddenDefinition(**{**known, "signature": seen}, types=types, names=names)
