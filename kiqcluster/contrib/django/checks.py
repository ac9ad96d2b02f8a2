"""Checks: what `manage.py check` says about jobs.

| id   | says                                                                   |
|------|------------------------------------------------------------------------|
| E001 | KIQCLUSTER, or another source of settings, cannot be used               |
| W002 | nothing says where Redis is                                             |
| E003 | a module of jobs or tasks cannot be imported                            |
| E004 | enqueue_on_commit names a database that there is not                    |
| W005 | USE_TZ is False: times of tasks are ambiguous                           |
| E006 | a backend has a queue whose name no worker could listen to              |
| W007 | the backend is used, and this application is not installed              |
| W008 | a task is declared in the program that runs                             |
| E009 | KIQCLUSTER_OUTBOX_DATABASES names a database that there is not          |
| W010 | a database of that setting lacks the tables (`check --database default`) |
| E011 | the outbox of a backend is in a database that has none                  |
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db.utils import ConnectionDoesNotExist

from kiqcluster.application.registry import current_registry
from kiqcluster.contrib.django.loading import autodiscover
from kiqcluster.contrib.django.settings import OUTBOX_SETTING, current_config, outbox_databases, read_settings
from kiqcluster.errors import InvalidPush, KiqError, UsageError
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.words import page

__all__ = ["TAG", "check_application", "check_backend", "check_tables"]

TAG = "kiqcluster"
APPLICATION = "kiqcluster.contrib.django"
MAIN = "__main__."


def check_application(**_: Any) -> list[checks.CheckMessage]:
    """Return what is wrong with the settings and the modules of this project."""
    try:
        found = read_settings()
        origins, outboxes = current_config()[1], outbox_databases()
    except (ImproperlyConfigured, KiqError) as error:
        return [_error("E001", str(error), f"{page('reference/settings')} of kiqcluster lists the settings.")]
    messages = [*_check_modules(), *_check_alias("KIQCLUSTER", found.enqueue_on_commit), *_check_main()]
    messages += _check_outboxes(outboxes)
    if origins["redis"] == "default" and origins["embedded"] == "default":
        hint = 'Set KIQCLUSTER = {"redis": "redis://HOST:6379/0"}, or the variable REDIS_URL.'
        messages.append(_warning("W002", "Nothing says where Redis is; jobs go to 127.0.0.1:6379.", hint))
    return messages


def check_backend(backend: Any) -> Iterator[checks.CheckMessage]:
    """Yield what is wrong with a backend of TASKS."""
    for name in sorted(backend.queues, key=str):
        try:
            check_queue_name(name)
        except InvalidPush as error:
            hint = f"Change it in TASKS[{backend.alias!r}]['QUEUES']."
            yield _error("E006", f"No worker can listen to a queue of the backend {backend.alias!r}: {error}", hint)
    yield from _check_alias(f"TASKS[{backend.alias!r}]", backend.options.get("enqueue_on_commit", False))
    yield from _check_outbox_of(backend)
    if not settings.USE_TZ:
        hint = "Set USE_TZ = True."
        yield _warning("W005", "USE_TZ is False; run_after is ambiguous where clocks are set back.", hint)
    if not apps.is_installed(APPLICATION):
        hint = f'Add "{APPLICATION}" to INSTALLED_APPS.'
        yield _warning("W007", "manage.py has no command kiqcluster, which runs the tasks.", hint)


def check_tables(*, databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Return a warning for each of these databases that workers relay, and that has not been migrated.

    None for `manage.py migrate`, which runs the checks before it makes the tables.
    """
    if sys.argv[1:2] == ["migrate"]:
        return []
    from kiqcluster.contrib.django.outbox_tables import lacks_tables, relayed_databases, remedy  # needs models

    asked = set(databases or ())
    lacking = [alias for alias in relayed_databases() if alias in asked and lacks_tables(alias)]
    return [
        _warning("W010", f"The database {alias!r} lacks the tables of an outbox.", remedy(alias)) for alias in lacking
    ]


def _check_modules() -> Iterator[checks.CheckMessage]:
    try:
        autodiscover()
    except Exception as error:  # noqa: BLE001  # of the application's modules
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"A module of jobs or tasks cannot be imported: {type(error).__name__}: {error}"
        yield _error("E003", f"{said} ({place.filename}, line {place.lineno})", "Workers cannot start until it can.")


def _check_alias(place: str, option: bool | str) -> Iterator[checks.CheckMessage]:
    if isinstance(option, str) and option not in settings.DATABASES:
        hint = f"There are {', '.join(settings.DATABASES)}."
        yield _error("E004", f"{place}: enqueue_on_commit names the database {option!r}, which there is not.", hint)


def _check_outbox_of(backend: Any) -> Iterator[checks.CheckMessage]:
    from kiqcluster.contrib.django.outbox_tables import writer  # needs models

    if (target := backend.job_options.outbox) is None:
        return
    hint = f"Change it in TASKS[{backend.alias!r}]['OPTIONS'], or name the database in {OUTBOX_SETTING}."
    try:
        writer(target.alias, target.push_after_commit)
    except (UsageError, ConnectionDoesNotExist) as error:
        yield _error("E011", f"The tasks of the backend {backend.alias!r} have no outbox: {error}", hint)


def _check_outboxes(aliases: Sequence[str]) -> Iterator[checks.CheckMessage]:
    for alias in aliases:
        if alias not in settings.DATABASES:
            hint = f"There are {', '.join(settings.DATABASES)}."
            yield _error("E009", f"{OUTBOX_SETTING} names the database {alias!r}, which there is not.", hint)


def _check_main() -> Iterator[checks.CheckMessage]:
    for definition in current_registry():
        if definition.name.startswith(MAIN):
            hint = "Move it into a module of an installed application."
            yield _warning("W008", f"No worker finds the task {definition.name}.", hint)


def _error(number: str, message: str, hint: str) -> checks.CheckMessage:
    return checks.Error(message, hint=hint, id=f"{TAG}.{number}")


def _warning(number: str, message: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(message, hint=hint, id=f"{TAG}.{number}")
