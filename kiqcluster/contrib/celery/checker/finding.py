"""Finding: one use of Celery in a file."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kiqcluster.contrib.celery.catalogue import Entry, Verdict

__all__ = ["Finding", "finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One use.

    kind: import, app, setting, task, option, call, canvas, retry, request, result, signal, schedule, package or file.
    """

    path: str
    line: int
    kind: str
    name: str
    verdict: Verdict
    advice: str


def finding(path: str, node: ast.AST, kind: str, name: str, entry: Entry) -> Finding:
    """Return the finding of a use at a node."""
    return Finding(path, getattr(node, "lineno", 1), kind, name, entry.verdict, entry.advice)
