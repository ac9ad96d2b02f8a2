"""Loading: what a worker imports: Django, and the modules `tasks` and `jobs` of each installed application.

`manage.py kiqcluster` names `load` as the application (-r); it finds the settings by DJANGO_SETTINGS_MODULE.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import django
from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from kiqcluster.contrib.django.settings import read_settings
from kiqcluster.errors import ApplicationError

__all__ = ["autodiscover", "load", "modules_of"]


def load() -> None:
    """Set Django up, and import the modules that declare jobs and tasks.  Raises ApplicationError."""
    try:
        if not apps.ready:
            django.setup()
    except ImproperlyConfigured as error:
        raise ApplicationError(
            f"Django cannot be set up: {error}\nName its settings: DJANGO_SETTINGS_MODULE=project.settings, or start "
            "this by manage.py kiqcluster"
        ) from error
    autodiscover()
    connections.close_all()  # that were opened meanwhile, by the thread that runs no jobs


def autodiscover() -> list[str]:
    """Import the modules of all installed applications that declare jobs and tasks; return their names."""
    found = [name for config in apps.get_app_configs() for name in modules_of(config)]
    for name in found:
        import_module(name)
    return found


def modules_of(config: AppConfig) -> list[str]:
    """Return the names of the modules of an application that are imported for their jobs."""
    names = [f"{config.name}.{module}" for module in read_settings().autodiscover]
    return [name for name in names if find_spec(name) is not None]
