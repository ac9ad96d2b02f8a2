"""Conf: app.conf, and which options its settings give to the tasks that are declared.

Conf                each key has a known effect, or raises Unsupported with its counterpart
use_for_shared      the app whose settings tasks of @shared_task get: the one that was created last, as in Celery
options_of_shared   those settings as options of one task
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from kiqcluster.application.registry import Registry, current_registry
from kiqcluster.contrib.celery.attributes import RefusesAttributes
from kiqcluster.contrib.celery.catalogue import find, refusal
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.contrib.celery.routes import Routes
from kiqcluster.contrib.celery.rules import of_settings
from kiqcluster.contrib.celery.settings import SETTINGS, setting_name
from kiqcluster.process.runtime import current_setup

__all__ = ["Conf", "options_of_shared", "use_for_shared"]

OPTION_OF = {  # setting → option of the tasks that are declared afterwards
    "task_default_queue": "queue",
    "task_ignore_result": "ignore_result",
    "result_expires": "result_expires",
    "task_time_limit": "time_limit",
    "task_soft_time_limit": "soft_time_limit",
}
URLS = ("broker_url", "result_backend")  # of one Redis
READ_BY_TASKS = OPTION_OF.keys() | {"task_routes"}
USABLE = frozenset(name for name, entry in SETTINGS.items() if entry.verdict == "works") | OPTION_OF.keys()


@dataclass(slots=True)
class _Shared:
    """What tasks of @shared_task have of an app.  conf: None while none was created.  has_tasks: some are declared."""

    conf: Conf | None = None
    has_tasks: bool = False


SHARED: WeakKeyDictionary[Registry, _Shared] = WeakKeyDictionary()


class Conf(RefusesAttributes):
    """Settings of an app: `app.conf.task_default_queue = "mailers"`, `app.conf.update(…)`, `app.conf.get(…)`."""

    def __init__(self, owner: str) -> None:
        self.__dict__.update(_owner=owner, _values={}, _routes=Routes(), _read_by="")

    def update(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Set several keys.  Raises Unsupported for the first one that would have no effect."""
        for name, value in {**(values or {}), **more}.items():
            self._set(setting_name(name), value)

    def _set(self, name: str, value: Any) -> None:
        owner, values = self.__dict__["_owner"], self.__dict__["_values"]
        if name not in USABLE:
            raise refusal(SETTINGS, name, f"{owner}.conf")
        urls = {key: values[key] for key in URLS if key in values and name in URLS}
        for refused in of_settings({**urls, name: value}):
            raise Unsupported(f"{owner}.conf: {refused.reason}")
        if name in READ_BY_TASKS and (task := self.__dict__["_read_by"]):
            raise Unsupported(f"{owner}.conf: set {name} before the first task is declared; {task} has read it")
        values[name] = value
        if name == "task_routes":
            self.__dict__["_routes"] = Routes.of(f"{owner}.conf", value)
        if name == "broker_url":
            current_setup().configure(redis=value)

    def options(self, task: str) -> dict[str, Any]:
        """Return the options that a task gets which does not declare them itself."""
        values = self.__dict__["_values"]
        self.read_by(task)
        common = {option: values[name] for name, option in OPTION_OF.items() if values.get(name) is not None}
        return {**common, **self.queue_of(task)}

    def read_by(self, task: str) -> None:
        """Note that a task was declared, so that settings which it would have read cannot change any more."""
        self.__dict__["_read_by"] = self.__dict__["_read_by"] or task

    def queue_of(self, task: str) -> dict[str, Any]:
        """Return the queue that the settings name for a task, as an option; nothing where they name none."""
        queue = self.__dict__["_routes"].queue_of(task) or self.__dict__["_values"].get("task_default_queue")
        return {} if queue is None else {"queue": queue}

    def __setattr__(self, name: str, value: Any) -> None:
        self._set(setting_name(name), value)

    __setitem__ = __setattr__

    def _missing(self, name: str) -> Any:
        values, key = self.__dict__["_values"], setting_name(name)
        if key not in values:
            advice = "" if key in USABLE else f"; {find(SETTINGS, key).advice}"
            raise Unsupported(f"{self.__dict__['_owner']}.conf.{name} was not set here{advice}")
        return values[key]

    def __getitem__(self, name: str) -> Any:
        return self._missing(name)

    # A mapping of the keys that were set; Celery's has the defaults, too.

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key that was set, else the default."""
        return self.__dict__["_values"].get(setting_name(name), default)

    def keys(self) -> KeysView[str]:
        """Return the present names of the keys that were set."""
        return dict(self.__dict__["_values"]).keys()

    def values(self) -> ValuesView[Any]:
        return dict(self.__dict__["_values"]).values()

    def items(self) -> ItemsView[str, Any]:
        return dict(self.__dict__["_values"]).items()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and setting_name(name) in self.__dict__["_values"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def use_for_shared(conf: Conf) -> None:
    """Have tasks of @shared_task get these settings from now on."""
    shared = SHARED.setdefault(current_registry(), _Shared())
    if shared.has_tasks and shared.conf is None:
        conf.read_by("a task of @shared_task")
    shared.conf = conf


def options_of_shared(task: str) -> dict[str, Any]:
    """Return the options that a task of @shared_task gets which does not declare them itself."""
    shared = SHARED.setdefault(current_registry(), _Shared())
    shared.has_tasks = True
    return {} if shared.conf is None else shared.conf.options(task)
