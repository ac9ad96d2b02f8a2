"""kiqctl at a terminal and in a shell: colours, and what Tab completes."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

import pytest

from kiqcluster.process.clock import SystemClock
from tests import forkserver
from tests.process.kiqctl import Kiqctl
from tests.process.terminal import Terminal
from tests.stage import Stage


@pytest.mark.parametrize(
    ("environ", "is_coloured"), [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_that_have_them(stage: Stage, environ: dict[str, str], is_coloured: bool) -> None:
    stage.store.pipeline([("SADD", "queues", "mailers"), ("SADD", "paused", "mailers")])
    command = [sys.executable, "-m", "kiqcluster.ctl", "queues", "--redis", stage.redis.url]

    terminal = Terminal(command, **environ)
    try:
        assert terminal.wait() == 0
        lines = terminal.wait_shown("mailers").splitlines()
        assert lines[0].split() == ["QUEUE", "SIZE", "LATENCY", "STATE", "LISTENED", "TO", "BY"]
        assert (terminal.colour_of("paused") != "default") == is_coloured
    finally:
        terminal.close()
    piped = forkserver.run(command, env={**os.environ, **environ})
    assert piped.returncode == 0
    assert "\x1b" not in piped.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_completes(kiqctl: Kiqctl, shell: str) -> None:
    done = kiqctl("completion", shell)

    assert done.returncode == 0
    assert "_KIQCTL_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("queues pause ma", ["mailers"]),
        ("queues pause --redis {url} ma", ["mailers"]),
        ("jobs rep", ["reports"]),
        ("dead --queue ", ["mailers", "reports"]),
        ("dead delete --class Send", ["SendInvoice"]),
        ("migrate --class Y", ["Yearly"]),
        ("que", ["queues"]),
        ("queues pause --redis redis://127.0.0.1:1/0 ma", []),
    ],
)
def test_names_are_completed(stage: Stage, words: str, offered: list[str]) -> None:
    now = datetime.fromtimestamp(SystemClock.now(), UTC)
    stage.store.pipeline(
        [
            ("SADD", "queues", "mailers", "reports"),
            ("ZADD", "dead", "1", '{"class":"SendInvoice","args":[],"jid":"a"}'),
            ("HSET", stage.store.keys.executions_rollup(now), "Yearly|p", "1"),
        ]
    )
    line = f"kiqctl {words.format(url=stage.redis.url)}"
    asked = {"_KIQCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = forkserver.run(
        [sys.executable, "-m", "kiqcluster.ctl"], env={**os.environ, "REDIS_URL": stage.redis.url, **asked}
    )

    assert done.stdout.split() == [f"plain,{name}" for name in offered]
    assert done.stderr == ""
