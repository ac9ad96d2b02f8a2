"""Settings of the project."""

from __future__ import annotations

import importlib.util
import os

import django

BACKPORT = ["django_tasks"] if django.VERSION < (6, 0) and importlib.util.find_spec("django_tasks") else []
SECRET_KEY = "of a test"
USE_TZ = True
DEBUG = False
ALLOWED_HOSTS = ["*"]
DATABASES = {
    name: {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get(variable, ":memory:")}
    for name, variable in (("default", "TEST_DATABASE"), ("orders", "TEST_ORDERS_DATABASE"))
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *BACKPORT,
    "kiqcluster.contrib.django",
    "tests.apps.django_project.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.apps.django_project.urls"
KIQCLUSTER: dict[str, object] = {"stop": {"timeout": 20}, "average_scheduled_poll_interval": 0.5}
TASKS = {
    "default": {
        "BACKEND": "kiqcluster.contrib.django.TaskBackend",
        "QUEUES": [],
        "OPTIONS": {"priority_queues": {(50, 100): "critical", (-100, -1): "{queue}_low"}},
    },
    "patient": {
        "BACKEND": "kiqcluster.contrib.django.TaskBackend",
        "QUEUES": [],
        "OPTIONS": {"retry": 2, "enqueue_on_commit": True},
    },
    "forgetful": {"BACKEND": "kiqcluster.contrib.django.TaskBackend", "OPTIONS": {"result_ttl": 0}},
}
