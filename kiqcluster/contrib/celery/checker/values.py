"""Values: an expression of a file → its value, as far as the file tells it.  Nothing is run.

value_of    literals, names of the module that are set once, errors of Python, timedelta(…); UNREAD for all others
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kiqcluster.contrib.celery.checker.source import Source
from kiqcluster.contrib.celery.rules import UNREAD

__all__ = ["value_of"]

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def value_of(source: Source, node: ast.expr, seen: frozenset[str] = frozenset()) -> Any:
    """Return the value of an expression; a part that is not known is UNREAD.  seen: names that led to it."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _of_name(source, node.id, seen)
        case ast.Tuple():
            return tuple(value_of(source, each, seen) for each in node.elts)
        case ast.List() | ast.Set():
            return [value_of(source, each, seen) for each in node.elts]
        case ast.Dict():
            return _of_dict(source, node, seen)
        case ast.UnaryOp(op=ast.USub()):
            value = value_of(source, node.operand, seen)
            return -value if _is_number(value) else UNREAD
        case ast.BinOp():
            return _of_operation(node, value_of(source, node.left, seen), value_of(source, node.right, seen))
        case ast.Call() if source.full_name(node.func) == "datetime.timedelta":
            return _of_timedelta(source, node, seen)
    return UNREAD


def _of_name(source: Source, name: str, seen: frozenset[str]) -> Any:
    if name in source.constants and name not in source.rebound and name not in seen:
        return value_of(source, source.constants[name], seen | {name})
    found = getattr(builtins, name, None)
    is_error = isinstance(found, type) and issubclass(found, BaseException) and name not in source.constants
    return found if is_error else UNREAD


def _of_dict(source: Source, node: ast.Dict, seen: frozenset[str]) -> Any:
    keys = [key and value_of(source, key, seen) for key in node.keys]
    if not all(isinstance(key, str) for key in keys):
        return UNREAD
    return {key: value_of(source, value, seen) for key, value in zip(keys, node.values, strict=True)}


def _of_operation(node: ast.BinOp, left: Any, right: Any) -> Any:
    operation = OPERATORS.get(type(node.op))
    if operation is None or not (_is_number(left) and _is_number(right)):
        return UNREAD
    try:
        return operation(left, right)
    except ArithmeticError:
        return UNREAD


def _of_timedelta(source: Source, node: ast.Call, seen: frozenset[str]) -> Any:
    positions = [value_of(source, each, seen) for each in node.args]
    keywords = {str(each.arg): value_of(source, each.value, seen) for each in node.keywords}
    try:
        return timedelta(*positions, **keywords)
    except (TypeError, OverflowError):  # a part is UNREAD, or it is none of datetime
        return UNREAD


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
