"""The examples of docs/guides/beside_rails.md, with a real Ruby Sidekiq on the other side."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiqcluster.api import ProcessSet
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests import forkserver
from tests.interop.programs import RubyProgram, RubyServer
from tests.interop.test_scenarios import SCENARIOS
from tests.kit import ROOT, RedisServer, wait_until
from tests.stage import Stage

PAGE = (ROOT / "docs/reference/sidekiq_compatibility.md").read_text()
GUIDE = (ROOT / "docs/guides/beside_rails.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def ruby(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[RubyProgram]:
    """What evaluates the page's Ruby."""
    program = RubyProgram("api.rb", redis_server.url)
    yield program
    program.close()


@pytest.fixture
def run_python(tmp_path: Path, redis_server: RedisServer) -> Callable[[str], str]:
    """Run a script; return what it prints."""

    def run(source: str) -> str:
        (tmp_path / "example.py").write_text(source)
        environ = {"REDIS_URL": redis_server.url, "PYTHONPATH": str(ROOT)}
        done = forkserver.run([sys.executable, "example.py"], cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.ruby
def test_what_ruby_enqueues_runs_in_python(ruby: RubyProgram, stage: Stage, tmp_path: Path) -> None:
    (declaration, *_), (rails,) = blocks("python"), blocks("ruby")
    (tmp_path / "shop.py").write_text(declaration)
    (command,) = re.findall(r"^\$ kiqcluster (.*) -r shop$", "\n".join(blocks("console")), re.MULTILINE)

    ruby.ask({"ruby": "TOPLEVEL_BINDING.eval(code)", "locals": {"code": rails}})
    cluster = stage.run_cluster(*command.split(), app=str(tmp_path / "shop.py"))

    wait_until(lambda: any("invoice 7 in CHF" in line for line in cluster.lines), "the job to run")
    wait_until(lambda: stage.store.call("GET", "stat:processed") == b"1", "it to be counted")
    assert stage.store.call("ZCARD", "retry") == 0


@pytest.mark.ruby
def test_what_python_enqueues_is_rubys(ruby: RubyProgram, store: Store, run_python: Callable[[str], str]) -> None:
    run_python(blocks("python")[1])

    found = ruby.ask(
        {"ruby": "Sidekiq::Queue.new('mailers').map { |job| [job.klass, job.args, job['retry']] }", "locals": {}}
    )
    assert found == [["WelcomeMail", [7], 3]]


@pytest.mark.ruby
def test_rubys_processes_are_steered(sidekiq_is_there: None, stage: Stage, run_python: Callable[[str], str]) -> None:
    server = RubyServer(stage.redis.url, queue="mailers", threads=4)
    try:
        wait_until(lambda: len(ProcessSet(store=stage.store)), "Ruby to register", 30)

        assert run_python(blocks("python")[2]) == "Ruby's mailers 4\n"

        wait_until(lambda: next(iter(ProcessSet(store=stage.store))).is_quiet, "Ruby to be quiet")
    finally:
        server.close()


def test_there_is_a_scenario_for_each_promise() -> None:
    assert [int(name.split(".")[0]) for name in SCENARIOS] == list(range(1, len(SCENARIOS) + 1))
    assert "tests/interop/test_scenarios.py" in PAGE


def test_an_unknown_class_is_put_off_as_often_as_the_page_says(stage: Stage) -> None:
    stage.store.call("LPUSH", "queue:default", '{"class":"Never::Heard","args":[],"retry":false,"deferred_count":9}')
    stage.run_cluster("default")
    wait_until(lambda: stage.store.call("ZCARD", "schedule"), "the job to be put off for the tenth time")
    (raw,) = stage.store.call("ZRANGE", "schedule", 0, -1)
    stage.store.call("DEL", "schedule")

    stage.store.call("LPUSH", "queue:default", raw)

    wait_until(lambda: stage.store.call("ZCARD", "dead"), "it to be buried")
    assert decode(raw)["deferred_count"] == 10
    assert "ten times" in GUIDE
