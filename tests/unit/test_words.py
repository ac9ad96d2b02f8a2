"""Words of other job systems: each is answered by a name of ours that exists, wherever somebody writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import kiqcluster
from kiqcluster import Job, JobContext, cli
from kiqcluster.application.options import OPTIONS, near_option
from kiqcluster.ctl.command import command
from kiqcluster.errors import UsageError
from kiqcluster.iterable import IterableJob
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.process.config import key_of, settings
from kiqcluster.process.config_sources import load
from kiqcluster.sidekiq.cron_entries import KEYS
from kiqcluster.sidekiq.selectors import ATTRIBUTES
from kiqcluster.words import PLACES, ROWS, WORDS, Place, hint_of
from tests.kit import ROOT


@kiqcluster.job(name="words")
def sample() -> None: ...


def flags() -> set[str]:
    return {flag for each in cli.command.params for flag in each.opts}


VERBS = {name for name in dir(type(sample)) if not name.startswith("_")}
PACKAGE = {*kiqcluster.__all__, *(path.stem for path in (ROOT / "kiqcluster").iterdir())}
TARGETS: dict[Place, Callable[[], Collection[str]]] = {  # place → what its forms may name
    "option": lambda: {*OPTIONS, *VERBS, *PACKAGE, "name", ""},
    "setting": lambda: {*(key_of(each) for each in settings()), *KEYS},
    "flag": lambda: {*flags(), ""},
    "command": lambda: command.commands,
    "selector": lambda: ATTRIBUTES,
    "job": lambda: {*VERBS, *PACKAGE},
    "context": lambda: {*dir(JobContext), *JobContext.__dataclass_fields__},
    "name": lambda: PACKAGE,
}
OURS: dict[Place, Callable[[], Collection[str]]] = {
    "option": lambda: {*OPTIONS, "name"},
    "setting": lambda: {key_of(each) for each in settings()},
    "flag": flags,
    "command": lambda: command.commands,
    "selector": lambda: ATTRIBUTES,
    "job": lambda: {
        name
        for each in (Job, IterableJob, LimitedCapacityJob, type(sample))
        for name in dir(each)
        if hasattr(each, name)
    },
    "context": lambda: {
        *(name for name in dir(JobContext) if hasattr(JobContext, name)),
        *JobContext.__dataclass_fields__,
    },
    "name": lambda: PACKAGE,
}


@pytest.mark.parametrize("place", PLACES)
def test_each_counterpart_exists(place: Place) -> None:
    known = TARGETS[place]()

    assert [word for (where, word), found in WORDS.items() if where == place and found.target not in known] == []
    assert any(where == place for where, _ in WORDS)


@pytest.mark.parametrize("place", PLACES)
def test_no_word_is_a_name_of_ours(place: Place) -> None:
    assert {word for where, word in WORDS if where == place} & set(OURS[place]()) == set()


def test_each_page_exists_and_each_word_stands_once() -> None:
    assert [page for page in {each.page for each in WORDS.values()} if not (ROOT / f"docs/{page}.md").exists()] == []
    counts = Counter((place, name) for place, _, _, _, _, names in ROWS for name in names.split())
    assert [each for each, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [("time_limit", "timeout_hard"), ("job_version", "version"), ("use_task_event", "kiqcluster.batches.Batch"),
     ("defer_on_database_health_signal", "policies.health_signal"), ("wait_until", "perform_at")],
)  # fmt: skip
def test_an_option_is_not_answered_by_the_one_that_is_spelt_most_like_it(word: str, meant: str) -> None:
    assert meant in near_option(word)
    assert "did you mean" not in near_option(word)


@pytest.mark.parametrize("word", ["delay", "apply_async", "send", "perform_later", "wait_until", "jid", "s"])
def test_a_job_answers_words_of_others_and_lacks_them(word: str) -> None:
    class Thumbnail(Job):
        def perform(self) -> None: ...

    for each in (sample, sample.set(queue="x"), Thumbnail, Thumbnail()):
        with pytest.raises(AttributeError, match=r"is here: .*docs/"):
            getattr(each, word)
        assert not hasattr(each, word)


def test_a_job_class_may_have_such_an_attribute_of_its_own() -> None:
    class Fetch(Job):
        logger = "own"

        def perform(self) -> None:
            self.request = 5

    fetch = Fetch()
    fetch.perform()

    assert (fetch.logger, fetch.request) == ("own", 5)


def test_the_package_answers_names_of_others() -> None:
    with pytest.raises(ImportError, match=r"ApplicationWorker of GitLab is here: class MyJob\(kiqcluster\.Job\)"):
        exec("from kiqcluster import ApplicationWorker")
    assert not hasattr(kiqcluster, "nothing_of_this_name")


def test_settings_and_variables_of_others_are_refused_with_ours(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text('broker_url = "redis://h"')
    with pytest.raises(UsageError, match="broker_url of Celery is here: redis"):
        load({}, file=str(tmp_path / "kiqcluster.toml"), environ={})
    with pytest.raises(UsageError, match="KIQ_THREADS; threads of Celery is here: KIQ_CONCURRENCY"):
        load({}, environ={"KIQ_THREADS": "5"})


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("kiqcluster", ["-A", "app"], "there is no flag -A; -A of Celery is here: -r APP"),
        ("kiqcluster", ["--burst"], "--burst of RQ is here: --drain"),
        ("kiqctl", ["worker"], "there is no command 'worker'; worker of Celery is here: ps"),
        ("kiqctl", ["morgue"], "morgue of Sidekiq is here: dead"),
    ],
)
def test_commands_and_flags_of_others_are_refused_with_ours(program: str, words: list[str], said: str) -> None:
    runs: click.Command = command if program == "kiqctl" else cli.command

    result = CliRunner().invoke(runs, words)

    assert result.exit_code == 2
    assert said in result.output


def test_a_word_that_nobody_uses_has_no_hint() -> None:
    assert hint_of("option", "urgncy") is None
