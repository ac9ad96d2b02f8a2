"""The decorator of tasks: Django 6 has it, and Django 5.2 by django-tasks."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

__all__ = ["task"]
