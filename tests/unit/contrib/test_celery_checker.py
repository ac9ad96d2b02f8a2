"""The checker: what it finds in a code base that uses Celery, its exit codes, and the schedules that it converts."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kiqcluster.contrib.celery.__main__ import main
from kiqcluster.contrib.celery.checker.finding import Finding
from kiqcluster.contrib.celery.checker.scan import scan
from kiqcluster.contrib.celery.checker.schedules import Unreadable, convert, read
from kiqcluster.contrib.celery.checker.source import Source, read_sources
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.sidekiq.cron_entries import parse_entries
from tests.redis.kiqctl import RUNNER

APP = """
from celery import Celery
from celery.schedules import crontab
app = Celery("shop", broker="redis://redis/0", include=["shop.tasks"])
app.conf.update(task_serializer="pickle", task_default_queue="q")
app.conf.beat_schedule = {
    "night": {"task": "shop.tasks.clean", "schedule": crontab(minute=0, hour="*/3"), "args": (90,)},
    "sun": {"task": "shop.tasks.clean", "schedule": solar("sunset", -37, 144)},
}
app.conf.timezone = "Europe/Berlin"
"""
TASKS = """
from celery import chord, shared_task
from celery.signals import task_failure, beat_init
from .celery import app

@shared_task(bind=True, max_retries=3, priority=5, soft_time_limit=10)
def clean(self, days):
    print(self.request.hostname, self.request.id)
    self.update_state(state="X")
    self.retry(countdown=5, throw=False)

@app.task(acks_late=False)
def add(x, y): ...

@app.task
async def fetch(): ...

def use():
    result = add.apply_async((1, 2), countdown=5, link=clean.s(1))
    add.delay(1, 2).get(timeout=3)
    result.get()
    result.children
    app.control.purge()
"""
OTHER = """
app = object()
app.anything
def clean(): ...
clean.anything()
"""


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def found(folder: Path) -> dict[tuple[str, int, str, str], str]:
    """Return (file, line, kind, name) → verdict."""
    findings = scan(read_sources([folder]))
    return {(Path(each.path).name, each.line, each.kind, each.name): each.verdict for each in findings}


def test_each_use_has_its_place_and_its_verdict(tmp_path: Path) -> None:
    there = found(project(tmp_path, shop__celery=APP, shop__tasks=TASKS, shop__other=OTHER))

    expected = {
        ("celery.py", 2, "import", "celery.Celery"): "works",
        ("celery.py", 3, "import", "celery.schedules.crontab"): "change",
        ("celery.py", 4, "app", "include"): "change",
        ("celery.py", 5, "setting", "task_serializer"): "none",
        ("celery.py", 5, "setting", "task_default_queue"): "works",
        ("celery.py", 7, "schedule", "night"): "change",
        ("celery.py", 8, "schedule", "sun"): "none",
        ("celery.py", 10, "setting", "timezone"): "works",
        ("tasks.py", 2, "import", "celery.chord"): "change",
        ("tasks.py", 3, "signal", "celery.signals.task_failure"): "change",
        ("tasks.py", 3, "signal", "celery.signals.beat_init"): "none",
        ("tasks.py", 6, "option", "priority"): "none",
        ("tasks.py", 6, "option", "max_retries"): "works",
        ("tasks.py", 6, "option", "soft_time_limit"): "change",
        ("tasks.py", 8, "request", "hostname"): "none",
        ("tasks.py", 8, "request", "id"): "works",
        ("tasks.py", 9, "task", "self.update_state"): "none",
        ("tasks.py", 10, "retry", "countdown"): "works",
        ("tasks.py", 10, "retry", "throw"): "works",
        ("tasks.py", 12, "option", "acks_late"): "none",
        ("tasks.py", 16, "task", "fetch"): "change",
        ("tasks.py", 19, "call", "link"): "none",
        ("tasks.py", 19, "canvas", "clean.s"): "change",
        ("tasks.py", 20, "result", "get"): "works",
        ("tasks.py", 22, "result", "children"): "none",
        ("tasks.py", 23, "app", "app.control"): "change",
    }
    assert {key: there.get(key) for key in expected} == expected
    assert [key for key in there if key[0] == "other.py"] == []


def test_names_are_followed_through_files_and_aliases(tmp_path: Path) -> None:
    there = found(
        project(
            tmp_path,
            shop____init__="from .celery import app as celery_app",
            shop__celery="import celery as c\napp = c.Celery('shop')",
            shop__tasks="from shop import celery_app\n@celery_app.task(base=object)\ndef one(): ...",
            shop__views="from shop import tasks\nfrom shop.tasks import one as uno\ntasks.one.si()\nuno.chunks([], 1)",
            shop__settings="CELERY_TASK_ALWAYS_EAGER = True\nINSTALLED_APPS = ['django_celery_beat']",
        )
    )

    assert there["tasks.py", 2, "option", "base"] == "none"
    assert there["views.py", 3, "canvas", "tasks.one.si"] == "change"
    assert there["views.py", 4, "canvas", "uno.chunks"] == "none"
    assert there["settings.py", 1, "setting", "task_always_eager"] == "change"
    assert there["settings.py", 2, "package", "django_celery_beat"] == "change"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(1)", 0),
        ("from celery import shared_task\n@shared_task\ndef f(): ...", 0),
        ("from celery import chord", 0),
        ("from celery import chain, shared_task\n@shared_task\ndef f(): ...\nchain(f.s(1), f.s()).delay()", 0),
        ("from celery.result import AsyncResult\nAsyncResult('x').get()", 0),
        ("from celery import Task", 1),
        ("def broken(:", 1),
    ],
)
def test_exit_codes(tmp_path: Path, code: str, expected: int) -> None:
    project(tmp_path, module=code)

    assert RUNNER.invoke(main, ["check", str(tmp_path)]).exit_code == expected
    assert RUNNER.invoke(main, ["check", str(tmp_path / "missing")]).exit_code == 2


def test_json_has_all_findings(tmp_path: Path) -> None:
    project(tmp_path, module="from celery import Task")

    document = json.loads(RUNNER.invoke(main, ["check", "--json", str(tmp_path)]).stdout)

    assert document["counts"] == {"works": 0, "change": 0, "none": 1}
    assert set(document["findings"][0]) == set(Finding.__dataclass_fields__)


def test_nothing_of_the_code_base_is_imported(tmp_path: Path) -> None:
    project(tmp_path, module=f"import celery\nopen({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)")

    done = subprocess.run(
        [sys.executable, "-m", "kiqcluster.contrib.celery", "check", "--all", str(tmp_path)],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "import celery" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_a_schedule_becomes_entries_that_the_configuration_takes(tmp_path: Path) -> None:
    project(tmp_path, shop__celery=APP)

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    (entry,) = parse_entries(tomllib.loads(done.stdout)["cron"])
    assert (entry.name, entry.schedule.text, entry.schedule.tz) == ("night", "0 */3 * * *", "Europe/Berlin")
    assert (entry.job, entry.args) == ("shop.tasks.clean", [90])
    assert done.exit_code == 1
    assert "celery.py:8: sun:" in done.stderr


def test_a_signature_that_is_sent_is_no_ordinary_call(tmp_path: Path) -> None:
    there = found(
        project(
            tmp_path,
            tasks="""
            from celery import chain, group, shared_task
            @shared_task(bind=True)
            def one(self): self.session
            chain(one.s(), one.s()).delay()
            (one.s() | one.s()).apply_async()
            one.signature((1,)).set(queue="x").apply_async()
            group(one.s() for _ in range(3)).apply_async()
            find_task("one").delay()
            """,
        )
    )

    assert [there["tasks.py", line, "canvas", "….delay"] for line in (5,)] == ["change"]
    assert [there["tasks.py", line, "canvas", "….apply_async"] for line in (6, 7, 8)] == ["change"] * 3
    assert [key for key in there if key[2] == "call" and key[3].startswith("…")] == [("tasks.py", 9, "call", "….delay")]
    assert there["tasks.py", 4, "task", "self.session"] == "none"


NIGHT = '{"night": {"task": "shop.tasks.clean", "schedule": 60.0}}'
CONFIGURED = "from celery import Celery\napp = Celery('shop')\napp.config_from_object("


@pytest.mark.parametrize(
    "files",
    [
        {
            "shop__config": f"timezone = 'Europe/Berlin'\nbeat_schedule = {NIGHT}",
            "shop__app": CONFIGURED + "'shop.config')",
        },
        {"celeryconfig": f"timezone = 'Europe/Berlin'\nbeat_schedule: dict = {NIGHT}", "shop__app": "import celery"},
        {
            "shop__config": f"class Own:\n  timezone = 'Europe/Berlin'\n  beat_schedule = {NIGHT}",
            "shop__app": "from .config import Own\n" + CONFIGURED + "Own)",
        },
        {
            "shop__config": f"ZONE = 'Europe/Berlin'\ntimezone = ZONE\nENTRIES = {NIGHT}\nbeat_schedule = ENTRIES",
            "shop__app": "from shop import config\n" + CONFIGURED + "config)",
        },
        {"shop__app": CONFIGURED + f"{{'timezone': 'Europe/Berlin', 'beat_schedule': {NIGHT}}})"},
        {"shop__app": CONFIGURED + f"'x')\napp.conf.timezone = 'Europe/Berlin'\napp.conf['beat_schedule'] = {NIGHT}"},
        {
            "shop__config": f"ACME_TIMEZONE = 'Europe/Berlin'\nACME_BEAT_SCHEDULE = {NIGHT}",
            "shop__app": CONFIGURED + "'shop.config', namespace='ACME')",
        },
        {
            "shop__app": f"from x import make\na = make()\na.conf.update({{'timezone': 'Europe/Berlin'}})\n"
            f"a.conf.update(beat_schedule={NIGHT})"
        },
        {"shop__app": f"from x import a\na.conf.timezone = 'Europe/Berlin'\na.conf.beat_schedule.update({NIGHT})"},
        {
            "shop__app": "from celery import Celery\na: Celery = Celery()\na.conf.timezone = 'Europe/Berlin'\n"
            "a.conf.beat_schedule['night'] = {'task': 'shop.tasks.clean', 'schedule': 60.0}"
        },
        {
            "shop__app": "from celery import Celery\nfrom shop.tasks import clean\napp = Celery()\n"
            "app.conf.timezone = 'Europe/Berlin'\n@app.on_after_configure.connect\n"
            "def plan(sender, **kwargs):\n  sender.add_periodic_task(60.0, clean.s(), name='night')",
            "shop____init__": "",
            "shop__tasks": "from celery import shared_task\n@shared_task\ndef clean(): ...",
        },
    ],
)  # fmt: skip
def test_settings_are_found_wherever_celery_takes_them(tmp_path: Path, files: dict[str, str]) -> None:
    project(tmp_path, **files)

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    assert (done.exit_code, done.stderr) == (0, "")
    (entry,) = parse_entries(tomllib.loads(done.stdout)["cron"])
    assert (entry.name, entry.job, entry.schedule.tz) == ("night", "shop.tasks.clean", "Europe/Berlin")
    assert [key[2:] for key in found(tmp_path) if key[2:] == ("schedule", "night")] != []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("sender.add_periodic_task(crontab(minute=5), clean.s(90), queue='slow')", "clean: 5 * * * *: [90]: slow"),
        ("sender.add_periodic_task(60.0, named.si())", "named: * * * * *: []: "),
        ("sender.add_periodic_task(60.0, clean.s(days=9))", None),
        ("sender.add_periodic_task(60.0, made())", None),
        ("sender.add_periodic_task(when(), clean.s())", None),
        ("sender.add_periodic_task(60.0, clean.s(), expires=5)", None),
    ],
)
def test_periodic_tasks_that_are_added_by_a_call(tmp_path: Path, call: str, expected: str | None) -> None:
    declared = "@shared_task\ndef clean(days): ...\n@shared_task(name='Acme::Named')\ndef named(): ..."
    imports = "from celery import shared_task; from celery.schedules import crontab"
    project(tmp_path, tasks=f"{imports}\n{declared}\ndef plan(sender, **kwargs):\n  {call}")

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    if expected is None:
        assert (done.exit_code, done.stdout) == (1, "")
        assert "tasks.py:7: " in done.stderr
        return
    assert (done.exit_code, done.stderr) == (0, "")
    (entry,) = parse_entries(tomllib.loads(done.stdout)["cron"])
    assert f"{entry.name}: {entry.schedule.text}: {entry.args}: {entry.queue or ''}" == expected
    assert entry.job == {"clean": "tasks.clean", "named": "Acme::Named"}[entry.name]


def test_a_project_without_a_schedule_is_told_so(tmp_path: Path) -> None:
    project(tmp_path, module="import celery")

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no schedule was found in 1 files" in done.stderr


def test_two_entries_of_one_name_are_not_two_tables(tmp_path: Path) -> None:
    project(tmp_path, one=f"CELERY_BEAT_SCHEDULE = {NIGHT}", two=f"CELERY_BEAT_SCHEDULE = {NIGHT}")

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    assert len(tomllib.loads(done.stdout)["cron"]) == 1
    assert (done.exit_code, "two.py:1: night: another entry" in done.stderr) == (1, True)


def test_the_settings_of_a_module_are_reported(tmp_path: Path) -> None:
    module = "import os\nbroker_url = 'amqp://x'\ntask_queues = ()\nwhat = 1\n_own = 2\nNAME = 3\ndef task_cls(): ..."
    project(tmp_path, shop__config=module, shop__app=CONFIGURED + "'shop.config')")

    there = {key[1:]: verdict for key, verdict in found(tmp_path).items() if key[0] == "config.py"}

    assert there == {
        (2, "setting", "broker_url"): "none",
        (3, "setting", "task_queues"): "change",
        (4, "setting", "what"): "none",
    }


SCHEDULES = "import datetime\nfrom datetime import timedelta\nfrom celery.schedules import crontab, solar\n"


def read_text(schedule: str) -> Any:
    """Return the value of an expression in a file that imports what schedules are written with."""
    return read(ast.parse(schedule, mode="eval").body, Source("shop.py", ast.parse(SCHEDULES)))


def convert_text(schedule: str, **more: Any) -> str:
    value = read_text(schedule)
    return convert("x", {"task": "t", "schedule": value, **more}).schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("30.0", "*/30 * * * * *"),
        ("60", "* * * * *"),
        ("60 * 5", "*/5 * * * *"),
        ("timedelta(hours=6)", "0 */6 * * *"),
        ("datetime.timedelta(days=1)", "0 0 * * *"),
        ("crontab()", "* * * * *"),
        ("crontab(0, 4, 'mon-fri')", "0 4 * * mon-fri"),
        ("crontab(minute=[0, 30], hour='8-17')", "0,30 8-17 * * *"),
        ("crontab(0, 0, day_of_month='1', month_of_year='*/3')", "0 0 1 */3 *"),
    ],
)
def test_schedules_that_cron_can_express(schedule: str, expected: str) -> None:
    assert convert_text(schedule) == expected


@pytest.mark.parametrize(
    "schedule",
    [
        "7",
        "0.5",
        "90 * 60",
        "timedelta(days=2)",
        "crontab(day_of_week=1, day_of_month=1)",
        "crontab(minute='99')",
        "'text'",
    ],
)
def test_schedules_that_cron_cannot_express(schedule: str) -> None:
    with pytest.raises(Unsupported):
        convert_text(schedule)


@pytest.mark.parametrize("schedule", ["get()", "solar('dawn', 1, 2)", "NAME", "crontab(**x)", "crontab(nowfun=1)"])
def test_schedules_that_only_a_run_would_tell(schedule: str) -> None:
    with pytest.raises(Unreadable):
        convert_text(schedule)


@pytest.mark.parametrize("more", [{"kwargs": {"x": 1}}, {"options": {"priority": 1}}, {"relative": True}, {"what": 1}])
def test_keys_of_an_entry_that_have_no_counterpart(more: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        convert_text("60", **more)
