"""Django in the process of a test: the project of tests/apps/django_project, set up once, installed in each set-up.

`pytestmark = pytest.mark.usefixtures("django_project")`.  Skipped where there is no Django, or no tasks framework.
"""

from __future__ import annotations

import importlib
import os
import time

import pytest

from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from tests.kit import require_module

SETTINGS = "tests.apps.django_project.settings"


def set_up_django() -> None:
    """Set Django up.  What the application adds to the process goes to a set-up that nobody uses.

    Django makes its zone that of the process; tests that follow want the one of the machine.
    """
    require_module("django")
    import django
    from django.apps import apps

    if django.VERSION < (6, 0):
        require_module("django_tasks")
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    if not apps.ready:
        zone = os.environ.pop("TZ", None)
        with using_setup(Setup()), using_registry(Registry()):
            django.setup()
            importlib.import_module("tests.apps.django_project.shop.tasks")
            importlib.import_module("tests.apps.django_project.shop.jobs")
        os.environ.pop("TZ")
        os.environ |= {"TZ": zone} if zone else {}
        time.tzset()
    os.environ.pop("DJANGO_SETTINGS_MODULE")


@pytest.fixture
def django_project(setup: Setup, registry: Registry, store: Store) -> Setup:
    """The project, installed in the set-up of the test, on its Redis, with the jobs that it declares."""
    set_up_django()
    setup.store = store
    from kiqcluster.contrib.django.install import install
    from tests.apps.django_project.shop import jobs

    install()
    for job in (jobs.Invoice, jobs.Committed, jobs.OfOrders, jobs.Count):
        registry.add(job.definition)
    return setup
