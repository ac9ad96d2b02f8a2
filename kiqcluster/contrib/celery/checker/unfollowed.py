"""Unfollowed: what the checker could not read, and says so.

unfollowed_findings   apps that it could not follow to Celery(…), so that it has not read their tasks and calls
unread_findings       settings that are in none of the files, or in one of several that may be meant
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kiqcluster.contrib.celery.catalogue import change
from kiqcluster.contrib.celery.checker.configs import unread_of
from kiqcluster.contrib.celery.checker.finding import Finding, finding
from kiqcluster.contrib.celery.checker.known import Known
from kiqcluster.contrib.celery.checker.modules import Modules
from kiqcluster.contrib.celery.checker.source import Source, dotted

__all__ = ["unfollowed_findings", "unread_findings"]

OF_CELERY_ALONE = ("send_task", "autodiscover_tasks", "config_from_object", "on_after_configure", "on_after_finalize")
NOT_FOLLOWED = change(
    "this may be an app that could not be followed to Celery(…), so that its tasks and calls were not checked; "
    "annotate it where it is made, app: Celery = …, and run the check again"
)

NOT_READ = change("no file tells these settings; compare them with those that the layer takes, or write them out")


def unfollowed_findings(source: Source, known: Known) -> Iterator[Finding]:
    """Yield each name once, where the file first uses it as an app."""
    found: dict[str, ast.AST] = {}
    for node in source.nodes:
        for owner in _owners(source, known, node):
            found.setdefault(dotted(owner), owner)
    for name, node in found.items():
        yield finding(source.path, node, "app", name, NOT_FOLLOWED)


def unread_findings(modules: Modules) -> Iterator[Finding]:
    """Yield the calls of config_from_object whose settings no file tells, or several that may be meant."""
    for source, call, configs in unread_of(modules):
        paths = " or ".join(dict.fromkeys(each.source.path for each in configs))
        entry = change(f"this may be {paths}; both were read") if configs else NOT_READ
        yield finding(source.path, call, "setting", getattr(call.func, "attr", ""), entry)


def _owners(source: Source, known: Known, node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a decorator, or an attribute that only Celery has, belongs to, if it may be an app."""
    for each in getattr(node, "decorator_list", ()):
        named = each.func if isinstance(each, ast.Call) else each
        if isinstance(named, ast.Attribute) and named.attr == "task" and known.is_unfollowed(source, named.value):
            yield named.value
    if isinstance(node, ast.Attribute) and node.attr in OF_CELERY_ALONE and _may_be_app(source, known, node.value):
        yield node.value


def _may_be_app(source: Source, known: Known, node: ast.expr) -> bool:
    is_known = known.is_app(source, node) or bool(source.resolve(node))
    return known.has_celery and bool(dotted(node)) and not is_known
