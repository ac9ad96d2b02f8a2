"""Install: what Django's side adds to the set-up of a process.  May be called again; tests and reloads do.

1. configure     the settings of KIQCLUSTER that code may set
2. middleware    database connections around each job
3. deferral      pushes that wait for a commit
4. tasks         names of tasks that are not imported yet; task_finished for those that have failed
"""

from __future__ import annotations

import importlib
import importlib.util

import django

from kiqcluster.application.registry import current_registry
from kiqcluster.contrib.django.commits import install_deferral
from kiqcluster.contrib.django.connections import Connections
from kiqcluster.contrib.django.settings import read_settings
from kiqcluster.process.runtime import current_setup

__all__ = ["has_tasks", "install"]

RUNNER = "kiqcluster.contrib.django.task_backend.runner"


def has_tasks() -> bool:
    """Return whether there is a tasks framework."""
    return django.VERSION >= (6, 0) or importlib.util.find_spec("django_tasks") is not None


def install() -> None:
    """Add it.  Raises ImproperlyConfigured."""
    found, setup = read_settings(), current_setup()
    deferral = install_deferral(setup, found.enqueue_on_commit)
    for name in deferral.configured - found.in_code.keys():
        setup.settings.pop(name, None)
    setup.settings.update(found.in_code)  # checked by read_settings
    setup.configure()  # so that they are read again
    deferral.configured = frozenset(found.in_code)
    if not any(type(each) is Connections for each in setup.server_middleware):
        setup.server_middleware.prepend(Connections())
    if has_tasks():
        runner = importlib.import_module(RUNNER)  # only where there is the framework
        current_registry().resolve = runner.find
        if runner.tell_death not in setup.death_handlers:
            setup.death_handlers.append(runner.tell_death)
