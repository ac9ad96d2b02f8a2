"""Source location: where a job is declared, and whether another declaration of its name is the same job once more."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

__all__ = ["SourceLocation", "caller_location"]

PACKAGE = __name__.partition(".")[0]
SET_BY_PACKAGE = frozenset({"definition", "declared_options", "declared_namespace"})  # attributes of a class of jobs
MODULE_BODY = "<module>"  # the name of the code of a module, of a cell of a notebook, and of a line at a prompt


@dataclass(frozen=True, slots=True, eq=False)
class SourceLocation:
    """line: file and line of the declaration.  target: the class or function.

    module, body, names: of the module that ran then, None for none.  Each import or reload compiles or loads the body
    anew; a notebook and a prompt do so for each cell or line.
    """

    line: str
    target: Any
    module: str | None = None
    body: CodeType | None = None
    names: dict[str, Any] | None = None

    def replaces(self, former: SourceLocation) -> bool:
        """Return whether this job may take the name of a former one: its module runs again, or both do the same."""
        is_same_run = self.body is former.body and self.names is former.names
        is_again = self.module == former.module and not is_same_run
        return is_again or _do_the_same(self.target, former.target)


def caller_location(target: Any) -> SourceLocation:
    """Return the location outside of this package that declares a job now.  target: its class or function."""
    frame = sys._getframe()
    while frame.f_back is not None and _package_of(frame.f_globals) == PACKAGE:
        frame = frame.f_back
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    while frame.f_code.co_name != MODULE_BODY:
        if frame.f_back is None:  # a thread
            return SourceLocation(line, target)
        frame = frame.f_back
    return SourceLocation(line, target, frame.f_globals.get("__name__"), frame.f_code, frame.f_globals)


def _do_the_same(one: Any, other: Any) -> bool:
    """Return whether two functions, or two classes, have the same code and the same values around it.

    Then it does no harm that one has the name of the other: a function that declares a job is called a second time.
    """
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return one.__code__ == other.__code__ and _same_around(one, other)
    if isinstance(one, type) and isinstance(other, type):
        same = _attributes(one) == _attributes(other)
        return same and _do_the_same(getattr(one, "perform", None), getattr(other, "perform", None))
    return False


def _same_around(one: FunctionType, other: FunctionType) -> bool:
    """Return whether two functions of one code have the same defaults, and the same from the function around them."""
    pairs = [*zip(_defaults(one), _defaults(other), strict=False)]
    for cell, former in zip(one.__closure__ or (), other.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty: the name, that of the job itself say, is bound after the declaration
            pairs.append((cell.cell_contents, former.cell_contents))
    return all(value is former for value, former in pairs)


def _defaults(function: FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _attributes(job: type) -> dict[str, int]:
    """Return the identities of what the body of a class gives its jobs, apart from functions."""
    return {
        name: id(value)
        for name, value in vars(job).items()
        if name not in SET_BY_PACKAGE and not name.startswith("__") and not isinstance(value, FunctionType)
    }


def _package_of(names: dict[str, Any]) -> str:
    return str(names.get("__name__")).partition(".")[0]
