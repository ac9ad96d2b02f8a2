"""The guide about Django: its blocks are a project, which is checked, tested and listed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests import forkserver
from tests.docs.test_docs import blocks
from tests.kit import ROOT, TIMEOUT_SECONDS, require_module

PAGE = ROOT / "docs/guides/django.md"
REST = """
import django
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
SECRET_KEY, USE_TZ, ROOT_URLCONF, DEFAULT_AUTO_FIELD = "x", True, "urls", "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
"""
FILES = ("settings.py", "shop/tasks.py", "shop/jobs.py", "shop/views.py", "urls.py", "shop/tests.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    require_module("django_tasks" if sys.version_info < (3, 12) else "django")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    for name, text in zip(FILES, blocks(PAGE, "python"), strict=True):
        (tmp_path / name).write_text(text)
    with (tmp_path / "settings.py").open("a") as settings:
        settings.write(REST)
    (tmp_path / "manage.py").write_text((ROOT / "examples/django_shop/manage.py").read_text())
    return tmp_path


def run(project: Path, *words: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS"))}
    environ |= {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(ROOT)}
    done = forkserver.run([sys.executable, *words], cwd=project, env=environ, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_its_blocks_are_a_project(project: Path) -> None:
    assert "no issues" in run(project, "manage.py", "check")
    assert re.search(r"Ran [1-9]\d* tests?", run(project, "manage.py", "test"))


def test_its_command_prints_what_the_page_says(project: Path) -> None:
    (block,) = blocks(PAGE, "console")
    ((command, expected),) = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)

    printed = run(project, *shlex.split(command)[1:])

    assert printed.splitlines()[-1:] == expected.splitlines()


def test_every_option_of_the_backend_is_named() -> None:
    from tests.django_stage import set_up_django

    set_up_django()
    from kiqcluster.contrib.django.task_backend.options import OWN_OPTIONS

    assert {*OWN_OPTIONS, "enqueue_on_commit", "retry"} <= set(re.findall(r"`(\w+)`", PAGE.read_text()))
