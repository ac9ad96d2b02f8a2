"""Settings: KIQCLUSTER in Django's settings.

flag > environment > kiqcluster.toml > KIQCLUSTER > default.  A process of Django takes the settings that code may set
by configure(); `manage.py kiqcluster` and `manage.py kiqctl` hand all of them on as variables, but for those that the
environment or a file has.

| key                  | means                                                                   |
|----------------------|-------------------------------------------------------------------------|
| any setting          | as in kiqcluster.toml                                                   |
| enqueue_on_commit    | True, or the alias of a database: pushes wait for the commit            |
| autodiscover         | modules of each installed application that workers import               |
| keep_inbox           | a timedelta: for how long `once` remembers; None for ever               |
| outbox_interval      | seconds; the fleet looks so often for rows of outboxes                  |

KIQCLUSTER_OUTBOX_DATABASES: aliases of the databases that have outboxes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from kiqcluster.contrib.outbox.relay import INTERVAL_SECONDS, KEEP_INBOX
from kiqcluster.errors import UsageError
from kiqcluster.process import config_sources
from kiqcluster.process.config import Config, Origins, settings
from kiqcluster.process.runtime import current_setup

__all__ = [
    "DEFAULT_MODULES",
    "OUTBOX_SETTING",
    "DjangoSettings",
    "current_config",
    "outbox_databases",
    "read_settings",
    "variables",
]

SETTING = "KIQCLUSTER"
OUTBOX_SETTING = "KIQCLUSTER_OUTBOX_DATABASES"
DEFAULT_MODULES = ("tasks", "jobs")
TABLES = ("cron", "shards")  # settings that no variable can hold, and code cannot set
ADDRESSES = ("redis", "embedded")  # settings that say where Redis is
TASK_SETTINGS = "TASKS"
BACKEND = "kiqcluster.contrib.django.TaskBackend"


@dataclass(frozen=True, slots=True)
class DjangoSettings:
    """The setting KIQCLUSTER.  values: settings of kiqcluster by field of Config.  See the module for the others."""

    values: Mapping[str, Any] = field(default_factory=dict)
    enqueue_on_commit: bool | str = False
    autodiscover: Sequence[str] = DEFAULT_MODULES
    keep_inbox: timedelta | None = KEEP_INBOX
    outbox_interval: float = INTERVAL_SECONDS

    @property
    def in_code(self) -> dict[str, Any]:
        """The settings that configure() takes."""
        names = {each.name for each in settings() if each.metadata["in_code"]}
        return {name: value for name, value in self.values.items() if name in names}


def read_settings() -> DjangoSettings:
    """Return the setting KIQCLUSTER.  Raises ImproperlyConfigured for a value that cannot be used."""
    raw = getattr(django_settings, SETTING, {})
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f'{SETTING} is a dict, as in {SETTING} = {{"redis": "redis://127.0.0.1:6379/0"}}')
    values = {name: str(value) if isinstance(value, Path) else value for name, value in raw.items()}
    on_commit, modules = values.pop("enqueue_on_commit", False), values.pop("autodiscover", DEFAULT_MODULES)
    if not isinstance(on_commit, bool | str):
        raise ImproperlyConfigured(f"{SETTING}['enqueue_on_commit'] is True, False or the alias of a database")
    if isinstance(modules, str) or not all(isinstance(each, str) and each.isidentifier() for each in modules):
        raise ImproperlyConfigured(f"{SETTING}['autodiscover'] is a list of names of modules, as in ['tasks', 'jobs']")
    keep, interval = _of_outboxes(values)
    if tables := [name for name in TABLES if name in values]:
        raise ImproperlyConfigured(
            f"{SETTING}[{tables[0]!r}] is a table, which kiqcluster.toml takes: [{tables[0]}.NAME]"
        )
    try:
        values = config_sources.by_field(values, SETTING)
        config_sources.load({}, environ={}, configured=values, knows_shards=False)
    except UsageError as error:
        raise ImproperlyConfigured(f"{SETTING}: {str(error).removeprefix(f'{SETTING}: ')}") from error
    return DjangoSettings(values, on_commit, tuple(modules), keep, interval)


def _of_outboxes(values: dict[str, Any]) -> tuple[timedelta | None, float]:
    """Take keep_inbox and outbox_interval out of the values.  Raises ImproperlyConfigured."""
    keep, interval = values.pop("keep_inbox", KEEP_INBOX), values.pop("outbox_interval", INTERVAL_SECONDS)
    if keep is not None and not (isinstance(keep, timedelta) and keep > timedelta(0)):
        raise ImproperlyConfigured(f"{SETTING}['keep_inbox'] is a timedelta above 0, or None for ever, not {keep!r}")
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < inf:
        raise ImproperlyConfigured(f"{SETTING}['outbox_interval'] is a number of seconds above 0, not {interval!r}")
    return keep, interval


def outbox_databases() -> Sequence[str]:
    """Return the aliases of the databases that have outboxes; there may be none of one.

    Raises ImproperlyConfigured for what is no list of names.
    """
    aliases = getattr(django_settings, OUTBOX_SETTING, [DEFAULT_DB_ALIAS])
    if not isinstance(aliases, list | tuple) or not all(isinstance(each, str) for each in aliases):
        raise ImproperlyConfigured(f"{OUTBOX_SETTING} is a list of aliases of databases, as in ['default']")
    return aliases


def current_config(
    file: str | None = None, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> tuple[Config, Origins]:
    """Return the configuration that holds in this project, without flags, and where each value comes from.

    file: of -C.  environment: of -e.  Raises ImproperlyConfigured, UsageError.
    """
    flags = {} if environment is None else {"environment": environment}
    return config_sources.load(flags, file=file, environ=environ, configured={**_of_code(), **read_settings().values})


def variables(origins: Origins, project: str) -> dict[str, str]:
    """Return the variables that tell another process what the settings of Django say, or which Redis code has set.

    project: the module of the settings, under whose name cron entries are kept.
    """
    values = {**_of_code(), **read_settings().values}
    if origins["queues"] == "default":
        values["queues"] = queues_of_tasks()
    if origins["cron_application"] == "default":  # the name of our loader is the same in all projects
        values.setdefault("cron_application", project)
    told = {"default", "configure()"}
    return {
        f"KIQ_{name.upper()}": _text(value)
        for name, value in values.items()
        if origins[name] in told and value not in (None, "", ())
    }


def _of_code() -> dict[str, Any]:
    """Return where Redis is by the code of this project, as by `broker` of kiqcluster.contrib.celery."""
    found = current_setup().settings
    return {name: found[name] for name in ADDRESSES if name in found}


def queues_of_tasks() -> tuple[str, ...]:
    """Return the queues to which the backends of TASKS push."""
    found: set[str] = set()
    for params in (getattr(django_settings, TASK_SETTINGS, None) or {}).values():
        if params.get("BACKEND") == BACKEND:
            found |= set(params.get("QUEUES", ["default"]))
            mapped = params.get("OPTIONS", {}).get("priority_queues", {})
            found |= {name for name in mapped.values() if isinstance(name, str) and "{" not in name}
    return tuple(sorted(found))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)
