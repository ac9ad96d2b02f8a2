"""Settings: the settings that files set, each with what it becomes, and whether those of one app go together."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kiqcluster.contrib.celery.checker.assigned import Setting
from kiqcluster.contrib.celery.checker.finding import Finding, finding
from kiqcluster.contrib.celery.checker.options import entry_of
from kiqcluster.contrib.celery.checker.source import Source, assigned, call_name, dotted
from kiqcluster.contrib.celery.checker.values import value_of
from kiqcluster.contrib.celery.rules import UNREAD, of_settings
from kiqcluster.contrib.celery.settings import OF_BUILD, SETTINGS

__all__ = ["setting_findings"]

Owner = tuple[str, str]  # the file, and the name of the app in it


def setting_findings(sources: Sequence[Source], settings: Sequence[Setting]) -> Iterator[Finding]:
    """Yield each setting.  One that an app has in several places is compared with no other setting."""
    values: dict[Owner, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        for owner, setting, value in _of_builds(source):
            values[source.path, owner][setting].append(value)
    for each in settings:
        values[each.source.path, each.owner][each.name].append(value_of(each.source, each.value))
    for each in settings:
        others = {
            name: found[0] if len(found) == 1 else UNREAD
            for name, found in values[each.source.path, each.owner].items()
        }
        refused = list(of_settings({**others, each.name: value_of(each.source, each.value)}))
        yield finding(each.source.path, each.value, "setting", each.name, entry_of(SETTINGS, each.name, refused))


def _of_builds(source: Source) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of an app, and each setting that an argument of Celery(…) is."""
    for node in source.nodes:
        for target, call in assigned(node):
            if isinstance(call, ast.Call) and call_name(source, call) == "Celery":
                for each in call.keywords:
                    if each.arg in OF_BUILD:
                        yield dotted(target), OF_BUILD[each.arg], value_of(source, each.value)
