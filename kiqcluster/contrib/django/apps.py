"""Apps: the application of Django.  Its label is `kiqcluster`, which begins the names of its permissions."""

from __future__ import annotations

import importlib
from typing import Any

from django.apps import AppConfig
from django.apps import apps as every
from django.core import checks
from django.core.signals import setting_changed
from django.db import router
from django.db.models.signals import post_migrate

from kiqcluster.contrib.django.checks import TAG, check_application, check_tables
from kiqcluster.contrib.django.install import install

__all__ = ["KiqclusterConfig"]

LABEL = "kiqcluster"
PERMISSIONS = {"operate": "Can operate jobs and clusters", "admin": "Can administer jobs and clusters"}
AUTH, CONTENT_TYPES = "django.contrib.auth", "django.contrib.contenttypes"


class KiqclusterConfig(AppConfig):
    """The application."""

    name = "kiqcluster.contrib.django"
    label = LABEL
    verbose_name = "kiqcluster"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Add what this process needs."""
        from kiqcluster.contrib.django.outbox_tables import use_outboxes  # needs models

        install()
        use_outboxes()
        checks.register(check_application, TAG)
        checks.register(check_tables, checks.Tags.database)
        if every.is_installed(AUTH) and every.is_installed(CONTENT_TYPES):
            auth = every.get_app_config("auth")  # ours may have no models, and then no signal is sent for it
            post_migrate.connect(make_permissions, sender=auth, dispatch_uid="kiqcluster permissions")
        setting_changed.connect(on_setting_changed, dispatch_uid="kiqcluster settings")


def on_setting_changed(*, setting: str, **_: Any) -> None:
    """Take the changed setting of a test."""
    if setting == "KIQCLUSTER":
        install()


def make_permissions(*, using: str, apps: Any = every, **_: Any) -> None:
    """Make the permissions of the web pages; they belong to the first model of this application, if it has one.

    Called after `migrate`, for the application of Django that has permissions.  A permission that there is stays.
    """
    try:
        permission = apps.get_model("auth", "Permission")
    except LookupError:  # migrated to a state without them
        return
    if not router.allow_migrate_model(using, permission):
        return
    permissions = importlib.import_module(f"{AUTH}.models").Permission.objects.using(using)
    kinds = importlib.import_module(f"{CONTENT_TYPES}.models").ContentType.objects.db_manager(using)
    models = list(every.get_app_config(LABEL).get_models())
    for codename, name in PERMISSIONS.items():
        if permissions.filter(codename=codename, content_type__app_label=LABEL).exists():
            continue
        kind = kinds.get_for_model(models[0]) if models else kinds.get_or_create(app_label=LABEL, model="pages")[0]
        permissions.create(codename=codename, name=name, content_type=kind)
