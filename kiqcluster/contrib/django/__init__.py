"""Django: jobs and Django's own tasks on kiqcluster.

1. settings     KIQCLUSTER → configuration
2. install      what is added to the process: middleware, transactions, the end of tasks
3. loading      what workers import (-r kiqcluster.contrib.django:load)
4. task_backend/ TaskBackend: the backend of Django's tasks framework
5. commits      pushes wait for the commit of a transaction
6. connections  database connections around each job
7. models, outbox_tables, outboxes, inbox   the two tables (migrations/ makes them); their rows; `outbox(job)`; `once()`
8. checks       what manage.py check says
9. views, urls  the web pages, with Django's users
10. commands, management     manage.py kiqcluster, manage.py kiqctl
11. apps        the application, its permissions

Names are imported at first use: INSTALLED_APPS imports this package before Django is ready.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiqcluster.contrib.django.commits import enqueue_on_commit
    from kiqcluster.contrib.django.inbox import once
    from kiqcluster.contrib.django.loading import load
    from kiqcluster.contrib.django.outboxes import outbox
    from kiqcluster.contrib.django.task_backend.backend import TaskBackend

__all__ = ["TaskBackend", "enqueue_on_commit", "load", "once", "outbox"]

# name → module
HOMES = {
    "TaskBackend": "task_backend.backend",
    "enqueue_on_commit": "commits",
    "load": "loading",
    "once": "inbox",
    "outbox": "outboxes",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
