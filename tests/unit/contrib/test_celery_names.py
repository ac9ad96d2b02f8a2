"""The checker finds apps, tasks, settings and schedules by whole names, or says that the files do not tell them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kiqcluster.contrib.celery.__main__ import main
from kiqcluster.contrib.celery.checker.scan import scan
from kiqcluster.contrib.celery.checker.source import read_sources
from tests.redis.kiqctl import RUNNER

TASK = "from celery import shared_task\n@shared_task{}\ndef cleanup(): ...\n"
PLAN = """
from celery import Celery
from celery.schedules import crontab
{imports}
app = Celery("proj")
@app.on_after_finalize.connect
def periodic(sender, **kw):
    sender.add_periodic_task(60.0, {blog}.s(), name="blog")
    sender.add_periodic_task(crontab(hour=4, minute=0), {shop}.s(), name="shop")
"""


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def two_apps(folder: Path, plan: str, **files: str) -> Path:
    for name in ("blog", "shop", "web"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    return project(
        folder, **{"blog__tasks": TASK.format(""), "shop__tasks": TASK.format(""), "web__plan": plan, **files}
    )


def schedule(folder: Path) -> tuple[dict[str, str], str]:
    """Return entry → job, and what is said of the others."""
    done = RUNNER.invoke(main, ["schedule", str(folder)])
    assert (done.exit_code != 0) == bool(done.stderr)
    return {name: each["job"] for name, each in tomllib.loads(done.stdout).get("cron", {}).items()}, done.stderr


@pytest.mark.parametrize(
    ("imports", "blog", "shop"),
    [
        ("from blog.tasks import cleanup as b\nfrom shop.tasks import cleanup as s", "b", "s"),
        ("from blog import tasks as b\nfrom shop import tasks as s", "b.cleanup", "s.cleanup"),
        ("import blog.tasks\nimport shop.tasks", "blog.tasks.cleanup", "shop.tasks.cleanup"),
        ("import blog.tasks as b, shop.tasks as s", "b.cleanup", "s.cleanup"),
        ("import blog.tasks\nfrom shop.tasks import *", "blog.tasks.cleanup", "cleanup"),
        ("from blog.tasks import cleanup\nfrom .again import cleanup as s", "cleanup", "s"),
        ("from blog.tasks import cleanup\nfrom . import again", "cleanup", "again.cleanup"),
    ],
)
def test_tasks_of_one_name_in_two_packages_stay_two(tmp_path: Path, imports: str, blog: str, shop: str) -> None:
    plan = PLAN.format(imports=imports, blog=blog, shop=shop)
    two_apps(tmp_path, plan, web__again="from shop.tasks import cleanup")

    assert schedule(tmp_path) == ({"blog": "blog.tasks.cleanup", "shop": "shop.tasks.cleanup"}, "")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("(name=NAME)", ""),
        ("(name=ENVIRON['NAME'])", "is known at run time only"),
        ("(**OPTIONS)", "is known at run time only"),
    ],
)
def test_a_task_has_the_name_that_it_is_given(tmp_path: Path, declared: str, said: str) -> None:
    plan = PLAN.format(
        imports="from blog.tasks import cleanup as b\nfrom shop.tasks import cleanup", blog="b", shop="cleanup"
    )
    two_apps(tmp_path, plan, shop__tasks="NAME = 'Acme::Clean'\n" + TASK.format(declared))

    jobs, stderr = schedule(tmp_path)

    assert jobs == {"blog": "blog.tasks.cleanup", **({} if said else {"shop": "Acme::Clean"})}
    assert said in stderr


def test_a_name_that_is_set_twice_is_undecided(tmp_path: Path) -> None:
    imports = "if web:\n  from blog.tasks import cleanup\nelse:\n  @shared_task\n  def cleanup(): ..."
    two_apps(tmp_path, PLAN.format(imports=f"from celery import shared_task\n{imports}", blog="cleanup", shop="x"))

    jobs, stderr = schedule(tmp_path)

    assert jobs == {}
    assert "cleanup may be blog.tasks.cleanup or web.plan.cleanup; write the [cron] entry by hand" in stderr


def test_a_folder_without_init_counts_by_the_imports_of_it(tmp_path: Path) -> None:
    plan = PLAN.format(
        imports="import shop.tasks\nfrom .tasks import cleanup", blog="cleanup", shop="shop.tasks.cleanup"
    )
    project(tmp_path, blog__plan=plan, blog__tasks=TASK.format(""), shop__tasks=TASK.format(""))

    jobs, stderr = schedule(tmp_path)

    assert jobs == {"shop": "shop.tasks.cleanup"}
    assert f"the files do not tell the module name of {tmp_path}/blog/tasks.py" in stderr


def test_two_projects_in_one_folder_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plan = "from celery import Celery\napp = Celery()\napp.config_from_object('shop.config')\napp.Own\n"
        project(tmp_path / name, shop____init__="", shop__app=plan, shop__config=f"task_queues = {name!r}")

    findings = scan(read_sources([tmp_path]))

    assert [each.path for each in findings if each.name == "task_queues"] == [
        f"{tmp_path}/{name}/shop/config.py" for name in ("one", "two")
    ]
    assert [each for each in findings if each.name == "config_from_object"] == []


def test_a_module_that_may_be_one_of_two_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        project(tmp_path / name, shop__config="timezone = 'UTC'\n")
    project(tmp_path, plan="from celery import Celery\nCelery().config_from_object('shop.config')")

    (said,) = [each for each in scan(read_sources([tmp_path])) if each.name == "config_from_object"]

    assert said.advice == f"this may be {tmp_path}/one/shop/config.py or {tmp_path}/two/shop/config.py; both were read"
    assert "plan.py:2: config_from_object" in schedule(tmp_path)[1]


def test_a_module_called_as_another_is_not_that_one(tmp_path: Path) -> None:
    two_apps(
        tmp_path,
        "from shop.app import app\nfrom shop.tasks import cleanup\napp.control\ncleanup.si()\n",
        blog__app="from celery import Celery\napp = Celery('blog')",
        shop__app="app = object()",
        shop__tasks="def cleanup(): ...",
        shop__celeryconfig="what = 1",
    )

    assert [each.name for each in scan(read_sources([tmp_path])) if each.path.endswith(("plan.py", "config.py"))] == []


@pytest.mark.parametrize(
    "imports",
    [
        "from shop.times import crontab, timedelta, schedule",
        "from .times import crontab, timedelta, schedule",
        "def crontab(*fields): ...\ntimedelta = schedule = crontab",
    ],
)
@pytest.mark.parametrize("when", ["crontab(1, 2)", "timedelta(hours=1)", "schedule(3600)"])
def test_a_function_called_as_one_of_celery_is_not_read_as_that(tmp_path: Path, imports: str, when: str) -> None:
    entry = f"CELERY_BEAT_SCHEDULE = {{'night': {{'task': 'a.b', 'schedule': {when}}}}}"
    project(tmp_path, shop____init__="", shop__settings=f"{imports}\n{entry}", shop__times="def crontab(*fields): ...")

    jobs, stderr = schedule(tmp_path)

    assert (jobs, "night: " in stderr and "known at run time only" in stderr) == ({}, True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from celery.utils.functional import chunks", "celery.utils.functional.chunks"),
        ("from celery.events.state import Task", "celery.events.state.Task"),
    ],
)
def test_a_name_inside_of_celery_gets_no_advice_for_another_thing(tmp_path: Path, text: str, name: str) -> None:
    project(tmp_path, module=text)

    assert [(each.name, "does not know it" in each.advice) for each in scan(read_sources([tmp_path]))] == [(name, True)]


def test_a_module_beside_a_file_is_no_package_of_that_name(tmp_path: Path) -> None:
    project(tmp_path, shop____init__="", shop__views="from .flower import Flower\nfrom . import kombu")

    assert scan(read_sources([tmp_path])) == []


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("app.conf.timezone = os.getenv('TZ')", "timezone = os.getenv('TZ') is known at run time only"),
        ("app.conf.timezone = 'Europe/Berlin'\nother.conf.timezone = 'UTC'", "several time zones: Europe/Berlin, UTC"),
        ("Celery(timezone=ZONE)", "timezone = ZONE is known at run time only"),
        ("CONF = {'timezone': 'Europe/Berlin'}\napp.conf.update(CONF)\napp.conf.update(**CONF)", ""),
        ("app.conf.update(made())", "no file tells these settings"),
    ],
)
def test_a_time_zone_that_no_file_tells_is_asked_for(tmp_path: Path, zone: str, said: str) -> None:
    project(
        tmp_path,
        plan="import os\nfrom celery import Celery\napp = Celery()\nother = Celery()\n"
        f"app.conf.beat_schedule = {{'night': {{'task': 'a.b', 'schedule': 60.0}}}}\n{zone}",
    )

    done = RUNNER.invoke(main, ["schedule", str(tmp_path)])

    assert said in done.stderr
    assert (done.exit_code == 0) == (said == "")
    assert RUNNER.invoke(main, ["schedule", "--tz", "Asia/Tokyo", str(tmp_path)]).stdout.count('tz = "Asia/Tokyo"') == 1
    assert said or 'tz = "Europe/Berlin"' in done.stdout
