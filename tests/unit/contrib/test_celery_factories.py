"""The checker follows apps that functions return, in any file, and names those that it cannot follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiqcluster.contrib.celery.checker.scan import scan
from kiqcluster.contrib.celery.checker.source import read_sources

TASKS = """
@app.task(throws=(KeyError,), priority=3)
def charge(order): ...
@app.task
async def fetch(): ...
def use():
    app.send_task("x.y", priority=3)
    app.control.revoke("id")
    charge.apply_async((1,), link=charge.s(1))
"""
USES = [  # of TASKS, in the order of lines
    ("option", "priority", "none"), ("option", "throws", "change"), ("task", "charge", "works"),
    ("task", "fetch", "change"), ("call", "app.send_task", "works"), ("call", "priority", "none"),
    ("app", "app.control", "change"), ("call", "charge.apply_async", "works"), ("call", "link", "none"),
    ("canvas", "charge.s", "change"),
]  # fmt: skip
MAKE = "from celery import Celery\n"
FACTORY = MAKE + "def make(name):\n  made = Celery(name)\n  made.conf.timezone = 'UTC'\n  return made\n"
FLASK = """
from celery import Celery, Task
from flask import Flask

def celery_init_app(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app

def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(CELERY=dict(broker_url="amqp://one//", task_ignore_result=True))
    celery_init_app(app)
    return app
"""


def project(folder: Path, **files: str) -> Path:
    package = folder / "shop"
    package.mkdir()
    for name, text in {"__init__": "", **files}.items():
        (package / f"{name}.py").write_text(text)
    return folder


def found(folder: Path, name: str) -> list[tuple[str, str, str]]:
    """Return (kind, name, verdict) of what is found in a file, in the order of lines, without imports."""
    findings = [each for each in scan(read_sources([folder])) if Path(each.path).stem == name]
    return [(each.kind, each.name, each.verdict) for each in findings if each.kind != "import"]


@pytest.mark.parametrize(
    "files",
    [
        {"tasks": FACTORY + "app = make('shop')" + TASKS},
        {"base": FACTORY, "tasks": "from shop.base import make\napp = make('shop')" + TASKS},
        {"base": FACTORY, "tasks": "from shop import base\napp = base.make('shop')" + TASKS},
        {"base": FACTORY, "tasks": "import shop.base as b\napp = b.make('shop')" + TASKS},
        {"base": FACTORY, "more": "from .base import make as m\napp = m(1)", "tasks": "from .more import app" + TASKS},
        {
            "base": FACTORY,
            "more": "from .base import make\ndef again():\n  if x:\n    return None\n  return make('x')\n",
            "tasks": "from . import more\napp = more.again()" + TASKS,
        },
        {"base": MAKE + "def make() -> 'Celery': ...", "tasks": "from .base import make\napp = make()" + TASKS},
        {"base": MAKE + "class Own(Celery): ...", "tasks": "from .base import Own\napp = Own('x')" + TASKS},
        {"tasks": MAKE + "from elsewhere import make\napp: Celery | None = make()" + TASKS},
        {"tasks": MAKE + "from elsewhere import given\napp = given or Celery('shop')" + TASKS},
        {"__init__": FACTORY + "app = make('shop')", "tasks": "from . import app" + TASKS},
        {"__init__": FLASK, "tasks": "from shop import flask\napp = flask.extensions['celery']" + TASKS},
        {"__init__": FLASK, "tasks": "from shop import celery_init_app\napp = celery_init_app(flask)" + TASKS},
    ],
)  # fmt: skip
def test_an_app_is_followed_to_where_it_is_made(tmp_path: Path, files: dict[str, str]) -> None:
    there = found(project(tmp_path, **files), "tasks")

    assert sorted(each for each in there if each in USES) == sorted(USES)
    assert [each for each in there if each not in USES and each[:2] != ("setting", "timezone")] == []


def test_the_settings_that_flask_keeps_are_read(tmp_path: Path) -> None:
    folder = project(tmp_path, __init__=FLASK)

    assert ("setting", "broker_url", "none") in found(folder, "__init__")
    assert ("setting", "task_ignore_result", "works") in found(folder, "__init__")


@pytest.mark.parametrize(
    "flask",
    [
        "flask.config['CELERY'] = {'broker_url': 'amqp://one//'}",
        "flask.config.update(CELERY={'broker_url': 'amqp://one//'})",
        "class Config:\n  CELERY = dict(broker_url='amqp://one//')",
        "ALL = {'broker_url': 'amqp://one//'}\nflask.config['CELERY'] = ALL",
    ],
)
@pytest.mark.parametrize("verb", ["config_from_object", "conf.update"])
def test_they_are_read_wherever_they_are_set(tmp_path: Path, flask: str, verb: str) -> None:
    folder = project(tmp_path, base=flask, tasks=f"{MAKE}app = Celery('shop')\napp.{verb}(flask.config['CELERY'])")

    assert found(folder, "base") == [("setting", "broker_url", "none")]


def test_settings_of_which_no_file_tells_are_named(tmp_path: Path) -> None:
    text = MAKE + "app = Celery('shop')\napp.config_from_object({})\n"
    folder = project(
        tmp_path,
        one=text.format("flask.config['CELERY']"),
        two=text.format("made()"),
        three=text.format("'django.conf:settings', namespace='CELERY'"),
    )

    assert ("setting", "config_from_object", "change") in found(folder, "one")
    assert ("setting", "config_from_object", "change") in found(folder, "two")
    assert [each for each in found(folder, "three") if each[0] == "setting"] == []


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"base": "from elsewhere import make\napp = make()", "tasks": "from .base import app" + TASKS}, "app"),
        ({"tasks": "from elsewhere import celery as a_celery\n@a_celery.task\ndef one(): ..."}, "a_celery"),
        ({"tasks": "def make(): return registry['app']\nmade = make()\n@made.task()\ndef one(): ..."}, "made"),
        ({"tasks": "from elsewhere import queue\nqueue.send_task('x.y')"}, "queue"),
    ],
)  # fmt: skip
def test_an_app_that_cannot_be_followed_is_named(tmp_path: Path, files: dict[str, str], name: str) -> None:
    folder = project(tmp_path, other="from celery import shared_task", **files)

    assert [each for each in found(folder, "tasks") if each[0] == "app"] == [("app", name, "change")]


@pytest.mark.parametrize(
    "text",
    [
        "from huey import RedisHuey\nhuey = RedisHuey()\n@huey.task()\ndef one(): ...",
        "from locust import task\n@task\ndef one(): ...",
        "import invoke\n@invoke.task\ndef one(): ...",
        "from celery import Celery\napp = Celery('x')\n@app.task\ndef one(): ...\napp.send_task('x.y')",
    ],
)
def test_nothing_else_is_taken_for_one(tmp_path: Path, text: str) -> None:
    folder = project(tmp_path, other="from celery import shared_task", tasks=text)

    assert [each for each in found(folder, "tasks") if each[0] == "app"] == []
