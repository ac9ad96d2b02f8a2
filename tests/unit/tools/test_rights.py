"""The lists of Redis commands are those of the code and of the scripts."""

from __future__ import annotations

import re

import pytest

from kiqcluster.store import scripts
from kiqcluster.store.rights.lists import FEATURES, WORKER
from kiqcluster.store.rights.trials import OPTIONAL, TRIALS, UNTRIED
from kiqcluster.store.scripts import Script
from kiqcluster.store.wire import TRY_AGAIN_CODES
from kiqcluster.worker import redis_wait
from tests.kit import ROOT
from tools.rights.__main__ import GUIDE, LISTS, guide, lists, users
from tools.rights.reach import commands_of

AGAIN = "run `python -m tools.rights`"
SCRIPTS = [each for each in vars(scripts).values() if isinstance(each, Script)]
CALL = re.compile(r"(?:call\(|call, |read_or\([^,']*, )'([A-Z]+)'")


def test_the_lists_are_those_of_the_code() -> None:
    assert LISTS.read_text(encoding="utf-8") == lists(), AGAIN


def test_the_users_of_the_guide_are_those_of_the_code() -> None:
    text = GUIDE.read_text(encoding="utf-8")

    assert text == guide(text), AGAIN


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_command_that_a_script_calls_is_known(script: Script) -> None:
    assert set(CALL.findall(script.text)) <= script.commands


def test_a_list_has_the_commands_of_scripts_of_calls_and_of_constants() -> None:
    assert commands_of(["kiqcluster.iterable.state"]) >= scripts.SAVE_ITERATION.commands | {"HMGET", "EVALSHA"}
    assert "BLPOP" in commands_of(["kiqcluster.worker.heartbeat"])
    assert "CLIENT|KILL" in commands_of(["kiqcluster.worker.fetch.wakeups"])
    assert "SSCAN" in commands_of(["kiqcluster.control.process_registry"])


def test_a_list_has_nothing_of_a_function_that_nobody_calls() -> None:
    assert "LREM" in commands_of(["kiqcluster.store.entry_moves"])
    assert "LREM" not in WORKER
    assert "CLIENT|LIST" not in WORKER, "a pause is an order, not a worker's own doing"


def test_each_feature_of_the_lists_can_be_in_use() -> None:
    named = {*redis_wait.FEATURE_BY_OPTION.values(), "iterable jobs"}

    assert named == FEATURES.keys()


def test_no_list_has_what_no_trial_knows() -> None:
    known = TRIALS.keys() | set(UNTRIED) | {"SELECT"}

    assert {name for _, names in users().values() for name in names} <= known


def test_no_user_may_do_what_an_operator_does() -> None:
    dangerous = {"ACL", "CONFIG", "DEBUG", "FLUSHALL", "FLUSHDB", "KEYS", "MONITOR", "SCRIPT", "SHUTDOWN"}

    assert not {name for _, names in users().values() for name in names} & dangerous


def test_the_guide_names_what_a_worker_can_do_without() -> None:
    (sentence,) = re.findall(r"Optional are(.*?)\. The", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    named = {word.replace("|", " ").upper().split()[0] for word in re.findall(r"`\+?([a-z|]+)`", sentence)}

    optional = {name.partition("|")[0] for name in OPTIONAL if name in users()["worker"][1]}
    assert optional <= named


def test_the_guide_names_each_answer_with_which_a_worker_waits() -> None:
    (row,) = re.findall(r"^\| none, (.*?) \| waits", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(re.findall(r"`([A-Z]+)`", row)) == TRY_AGAIN_CODES


def test_the_guide_names_no_user_but_these() -> None:
    assert set(re.findall(r"ACL SETUSER (\w+)", (ROOT / "docs/guides/secure_redis.md").read_text())) == users().keys()
