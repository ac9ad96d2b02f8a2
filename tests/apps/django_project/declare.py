"""The decorator, of Django or of the backport."""

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

__all__ = ["task"]
