"""Celery's names on kiqcluster, so that a code base moves file by file.

`from celery import shared_task` becomes `from kiqcluster.contrib.celery import shared_task`.  Payloads, queues and
workers are kiqcluster's; nothing of Celery is imported.  A part of Celery that has no effect here raises Unsupported,
which names its counterpart (ADR 0047).  In reading order:

catalogue   the parts of Celery, and what each becomes
settings    its settings, in the same form
rules       which values options and settings can have
attributes  what an object answers to a name that it does not have
errors      Unsupported, and the errors of tasks
requests    self.request; the retry that a run has asked for
declare     options of a declaration → options of a job, and its retries
arguments   keyword arguments → positions of a payload
calls       options of apply_async → those of a push
task        Task: delay, apply_async, self.retry
results     AsyncResult
routes      task_routes → the queue of a task
conf        app.conf, and the options that its settings give to tasks
app         Celery, shared_task
checker     what a code base uses of Celery; beat_schedule → cron entries: `python -m kiqcluster.contrib.celery`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiqcluster.contrib.celery.app import Celery, shared_task
from kiqcluster.contrib.celery.catalogue import NAMES, refusal
from kiqcluster.contrib.celery.errors import (
    MaxRetriesExceededError,
    PushStopped,
    Retry,
    SoftTimeLimitExceeded,
    Unsupported,
)
from kiqcluster.contrib.celery.results import AsyncResult
from kiqcluster.contrib.celery.task import Task

__all__ = [
    "AsyncResult",
    "Celery",
    "MaxRetriesExceededError",
    "PushStopped",
    "Retry",
    "SoftTimeLimitExceeded",
    "Task",
    "Unsupported",
    "shared_task",
]

if not TYPE_CHECKING:  # mypy reports an unknown name by itself

    def __getattr__(name: str) -> Any:
        """Raise Unsupported for a name of Celery, which names the counterpart."""
        if name in NAMES:
            raise refusal(NAMES, name, "kiqcluster.contrib.celery")
        raise AttributeError(name)
