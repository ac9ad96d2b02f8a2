"""Framework: Django's tasks framework.  Django 6 has it as django.tasks, Django 5.2 by the backport django-tasks.

No other module imports either of them.
"""

from __future__ import annotations

from typing import Any

try:
    import django
except ImportError as error:
    raise ImportError("kiqcluster.contrib.django needs Django: pip install 'kiqcluster[django]'") from error

if django.VERSION >= (6, 0):
    from django import tasks
    from django.tasks import base, exceptions, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.utils.json import normalize_json
else:
    try:
        import django_tasks as tasks
        from django_tasks import base, exceptions, signals
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.utils import normalize_json
    except ImportError as error:
        raise ImportError(
            "Django before 6.0 has no tasks framework; its backport brings it: pip install 'django-tasks'"
        ) from error

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

Task = base.Task
TaskContext = base.TaskContext
TaskError = base.TaskError
TaskResult = base.TaskResult
TaskResultStatus = base.TaskResultStatus
TaskResultDoesNotExist = exceptions.TaskResultDoesNotExist
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError  # the backport's name
task_backends = tasks.task_backends
task_enqueued = signals.task_enqueued
task_finished = signals.task_finished
task_started = signals.task_started
