"""Routes: the setting task_routes → the queue of a task.  Pure.

A route is a name, a glob ("shop.mail.*") or a compiled pattern, with a queue as text or as {"queue": …}.  An exact name
goes first, then the first pattern that matches, as in Celery.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.words import page

__all__ = ["Routes", "unusable_route"]

REMEDY = f"give the queue as text or as {{'queue': …}}; other rules belong to kiqcluster.toml ({page('guides/route')})"


@dataclass(frozen=True, slots=True)
class Routes:
    """names: of tasks → queue.  patterns: in the order in which they are asked."""

    names: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[tuple[str | re.Pattern[str], str], ...] = ()

    @classmethod
    def of(cls, owner: str, setting: Any) -> Routes:
        """Return the routes of a setting.  Raises Unsupported for a rule that names no queue."""
        if (reason := unusable_route(setting)) is not None:
            raise Unsupported(f"{owner}: {reason}")
        names: dict[str, str] = {}
        patterns: list[tuple[str | re.Pattern[str], str]] = []
        for key, destination in _pairs(setting):
            queue = destination if isinstance(destination, str) else destination["queue"]
            if isinstance(key, str) and not _is_glob(key):
                names.setdefault(key, queue)
            else:
                patterns.append((key, queue))
        return cls(names, tuple(patterns))

    def queue_of(self, task: str) -> str | None:
        """Return the queue of a task, None where no route matches."""
        if task in self.names:
            return self.names[task]
        return next((queue for pattern, queue in self.patterns if _matches(pattern, task)), None)


def unusable_route(setting: Any) -> str | None:
    """Return the reason why task_routes cannot have this value, None where it can."""
    for key, destination in _pairs(setting):
        keys = set(destination) if isinstance(destination, Mapping) else set()
        is_queue = isinstance(destination, str) or (keys == {"queue"} and isinstance(destination["queue"], str))
        if not isinstance(key, str | re.Pattern) or not is_queue:
            return f"task_routes: the rule {key!r} cannot be used; {REMEDY}"
    return None


def _pairs(setting: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rules of a mapping, of a list of pairs, and of a list of either; a key of None is no rule."""
    if setting is None:
        return
    if isinstance(setting, Mapping):
        yield from setting.items()
    elif isinstance(setting, list | tuple):
        if len(setting) == 2 and isinstance(setting[0], str | re.Pattern):  # a pair
            yield setting[0], setting[1]
            return
        for each in setting:
            yield from _pairs(each)
    else:
        yield setting, None


def _is_glob(name: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(name)


def _matches(pattern: str | re.Pattern[str], task: str) -> bool:
    return fnmatchcase(task, pattern) if isinstance(pattern, str) else pattern.match(task) is not None
