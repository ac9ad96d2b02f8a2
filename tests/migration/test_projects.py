"""The guides of migration: a small project of each library does its work on kiqcluster, as its guide says."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forkserver
from tests.docs.test_docs import blocks
from tests.kit import ROOT, TIMEOUT_SECONDS, Cluster, RedisServer, unavailable, wait_until
from tests.stage import Stage

PROJECTS = Path(__file__).parent / "projects"
PAGES = {
    "celery": "docs/guides/migrate_from_celery.md",
    "rq": "docs/guides/migrate_from_rq.md",
    "dramatiq": "docs/guides/migrate_from_dramatiq.md",
    "huey": "docs/guides/migrate_from_huey.md",
    "sidekiq": "docs/guides/migrate_from_sidekiq.md",
}
LIBRARIES = list(PAGES)
WORK = {"welcome ada", "refused 7", "charged 7", "report"}
MINUTE_SECONDS = 90  # Huey looks once a minute at what is periodic
WORKERS = ("celery", "rq", "dramatiq", "huey_consumer", "sidekiq")  # the programs of the libraries


def page(library: str) -> Path:
    return ROOT / PAGES[library]


def commands(library: str, *programs: str) -> list[list[str]]:
    """Return the commands of a guide that begin with one of some programs."""
    lines = [line for block in blocks(page(library), "console") for line in block.splitlines()]
    words = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]
    return [each for each in words if each[0] in programs]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    return path


def environment(server: RedisServer, ledger: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "REDIS_URL": server.url, "LEDGER": str(ledger), "PYTHONPATH": f"{ROOT}:.", "PATH": path}


def run(words: list[str], folder: Path, environ: Mapping[str, str]) -> str:
    done = forkserver.run(words, cwd=folder, env=environ, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def wait_work(ledger: Path, seconds: float = TIMEOUT_SECONDS) -> None:
    wait_until(lambda: set(ledger.read_text().splitlines()) >= WORK, "all work to be noted", seconds)


def hasten_retries(stage: Stage, *, is_needed: bool = True) -> None:
    """Have what waits for a retry be due."""
    if is_needed:
        wait_until(lambda: stage.store.call("ZCARD", "retry"), "a retry to wait")
    for raw in stage.store.call("ZRANGE", "retry", 0, -1):
        stage.store.call("ZADD", "retry", "XX", 1, raw)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_project_does_its_work_on_kiqcluster(library: str, stage: Stage, ledger: Path) -> None:
    folder, environ = PROJECTS / library / "after", environment(stage.redis, ledger)
    words = commands(library, "kiqcluster")[0]
    arguments = [*words[1:], "--redis", stage.redis.url]

    with started(arguments, folder, environ):
        printed = run([sys.executable, "enqueue.py"], folder, environ)
        hasten_retries(stage)
        wait_work(ledger)
        for command in commands(library, "kiqctl"):
            run([sys.executable, "-m", "kiqcluster.ctl", *command[1:]], folder, environ)

    assert printed == ("" if library == "sidekiq" else "Ada\n")
    assert ledger.read_text().splitlines().count("charged 7") == 1
    assert stage.dead() == []


def test_chains_and_callbacks_of_tasks_of_celery(stage: Stage, ledger: Path) -> None:
    folder, environ = PROJECTS / "celery/after", environment(stage.redis, ledger)

    with started(["-r", "canvas", "default", "--redis", stage.redis.url], folder, environ):
        run([sys.executable, "-c", "import canvas; canvas.push()"], folder, environ)
        expected = {"welcome bob", "receipt Bob", "receipt one", "receipt two", "rows succeeded"}
        wait_until(
            lambda: set(ledger.read_text().splitlines()) >= expected, "the chain and the callback", TIMEOUT_SECONDS
        )

    assert stage.dead() == []


def test_jobs_without_the_layer_run_what_the_layer_has_enqueued(stage: Stage, ledger: Path) -> None:
    folder, environ = PROJECTS / "celery/after", environment(stage.redis, ledger)

    with started(["-r", "native", "default,cronjob", "--redis", stage.redis.url], folder, environ):
        assert run([sys.executable, "enqueue.py"], folder, environ) == "Ada\n"
        hasten_retries(stage)
        wait_work(ledger)

    assert stage.dead() == []


@pytest.mark.full
@pytest.mark.usefixtures("sidekiq_is_there")
def test_ruby_keeps_a_job_whose_class_has_no_perform(stage: Stage, ledger: Path, tmp_path: Path) -> None:
    ruby = tmp_path / "shop.rb"
    ruby.write_text('require "sidekiq"\nclass Charge\n  include Sidekiq::Worker\n  sidekiq_options retry: 3\nend\n')
    environ = environment(stage.redis, ledger)
    run(["ruby", "-r", str(ruby), "-e", "Charge.perform_async(7)"], tmp_path, environ)

    with old_workers("sidekiq", tmp_path, environ, tmp_path / "log"):
        wait_until(lambda: stage.store.call("ZCARD", "retry"), "Ruby to put the job off", MINUTE_SECONDS)

    assert stage.store.call("LLEN", "queue:default") == 0


@contextmanager
def started(arguments: list[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Cluster]:
    cluster = Cluster(arguments, environ=dict(environ), cwd=folder)
    try:
        cluster.wait_ready()
        yield cluster
        assert cluster.stop() == 0
    finally:
        cluster.close()


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_project_did_that_work_before(
    library: str, request: pytest.FixtureRequest, kiq_redis: RedisServer, ledger: Path, tmp_path: Path
) -> None:
    if library == "sidekiq":
        request.getfixturevalue("sidekiq_is_there")
    else:
        need(library)
    folder, environ = PROJECTS / library / "before", environment(kiq_redis, ledger)
    with old_workers(library, folder, environ, tmp_path / "log"):
        run(["ruby", "enqueue.rb"] if library == "sidekiq" else ["python", "enqueue.py"], folder, environ)
        if library == "dramatiq":
            run(["python", "tick.py"], folder, environ)
        wait_work(ledger, MINUTE_SECONDS)


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        unavailable(f"{library} is not installed (pip install --group bench)")


@contextmanager
def old_workers(library: str, folder: Path, environ: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run the programs of the library, by the commands of the guide, until the block ends."""
    workers = []
    for words in commands(library, *WORKERS):
        known = [environ[word[1:]] if word.startswith("$") else word for word in words]
        with log.open("a") as file:
            workers.append(subprocess.Popen(known, cwd=folder, env=environ, stdout=file, stderr=subprocess.STDOUT))
    try:
        yield
    except BaseException:
        print(log.read_text()[-4_000:])
        raise
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(TIMEOUT_SECONDS)


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("library", ["celery", "rq", "dramatiq", "huey"])
def test_the_old_worker_drains_beside_kiqcluster_on_one_redis(
    library: str, stage: Stage, ledger: Path, tmp_path: Path
) -> None:
    need(library)
    before, after, environ = (
        PROJECTS / library / "before",
        PROJECTS / library / "after",
        environment(stage.redis, ledger),
    )
    words = commands(library, "kiqcluster")[0]
    old_push = subprocess.Popen([sys.executable, "enqueue.py"], cwd=before, env=environ)
    wait_until(lambda: left_behind(library, stage) != 0, "jobs to wait in the old queues")

    with (
        started([*words[1:], "--redis", stage.redis.url], after, environ),
        old_workers(library, before, environ, tmp_path / "log"),
    ):
        run([sys.executable, "enqueue.py"], after, environ)
        assert old_push.wait(MINUTE_SECONDS) == 0
        wait_until(lambda: has_charged_twice(stage, ledger), "the old worker and ours to charge", MINUTE_SECONDS)
        wait_until(lambda: left_behind(library, stage) in (0, None), "the old queues to be empty")

    assert ledger.read_text().count("welcome ada") == 2
    assert stage.dead() == []


def has_charged_twice(stage: Stage, ledger: Path) -> bool:
    """Return whether both have charged; the one that is refused tries again, ours at once."""
    hasten_retries(stage, is_needed=False)
    return ledger.read_text().count("charged 7") == 2


def left_behind(library: str, stage: Stage) -> int | None:
    """Return what the guide's redis-cli commands count in the old queues; None where the guide has none."""
    text = " ".join(page(library).read_text().split())
    queries = [query.split() for query in re.findall(r"`redis-cli ([^`]+)`", text)]
    return sum(stage.store.call(*query) for query in queries) if queries else None


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_code_of_the_guide_is_that_of_the_project(library: str) -> None:
    shown = re.findall(r"^```(?:python|ruby|toml|ini)\n(.*?)^```", page(library).read_text(), re.MULTILINE | re.DOTALL)

    assert shown
    for block in shown:
        first, _, code = block.partition("\n")
        file = first.removeprefix("# ")
        assert file.startswith(("before/", "after/")), first
        assert code in (PROJECTS / library / file).read_text(), block


def test_the_guide_shows_what_the_checker_and_the_converter_print() -> None:
    text = page("celery").read_text()
    folder = PROJECTS / "celery/before"
    for words in (["check", "."], ["schedule", "."]):
        done = subprocess.run(
            [sys.executable, "-m", "kiqcluster.contrib.celery", *words], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        command = f"$ python -m kiqcluster.contrib.celery {' '.join(words)}\n"
        assert done.returncode == 0, done.stderr
        assert command + done.stdout in text
