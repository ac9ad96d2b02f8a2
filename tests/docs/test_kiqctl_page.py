"""The commands on the pages about kiqctl run, and print what the pages say, but for ids, times and sizes.

The fleet is the one of the page: app-1 with two workers, and a process of Ruby's; its jobs are those of all examples.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.docs.test_docs import blocks
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import ROOT
from tests.process.examples import EXAMPLE_JID, lay_out, run_example
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

PAGES = [
    "reference/kiqctl/processes",
    "reference/kiqctl/top",
    "reference/kiqctl/queues",
    "reference/kiqctl/sets",
    "reference/kiqctl/cron_and_batches",
    "reference/kiqctl/migrate",
    "reference/exporter",
]
RUBY = "rails-1:7:cccccccccccc"
UNSTEADY = [
    (r"\b[0-9a-f]{24}\b", "JID"),
    (r"\b\d+(\.\d+)?[dhms]( \d+[hms])?\b", "DURATION"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"\S+://\S+", "URL"),
    (r"kiqctl@\S+", "NAME"),
    (r" +", " "),
]


@pytest.fixture
def kiqctl(stage: Stage) -> Iterator[Kiqctl]:
    running = Kiqctl(stage.redis.url)
    yield running
    running.close()


@pytest.fixture
def fleet(store: Store) -> Iterator[FakeSupervisor]:
    """The fleet of the page, which runs three jobs."""
    here = FakeSupervisor(store, workers=2)
    here.obeys_alone = True
    here.run_jobs(2, 1)
    publish(store, RUBY, labels=[], version=None, queues=["mailers"])
    job = ruby_json.encode({"class": "SendInvoice", "args": [7, "EUR"], "jid": EXAMPLE_JID}).decode()
    running_job = {"queue": "mailers", "payload": job, "run_at": int(SystemClock.now()) - 3_600}
    store.call("HSET", f"{here.workers[0]}:work", "k9x2", ruby_json.encode(running_job))
    yield here
    here.close()


def steady(text: str) -> list[str]:
    for pattern, word in UNSTEADY:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines()]


def test_the_commands_of_the_pages_do_what_they_say(kiqctl: Kiqctl, stage: Stage, fleet: FakeSupervisor) -> None:
    compared = 0
    for block in (block for page in PAGES for block in blocks(ROOT / f"docs/{page}.md", "console")):
        lay_out(stage)
        fleet.quiet_alone = set()
        for line, expected in re.findall(r"^\$ (kiqctl .*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            fleet.publish()  # what is published expires after a minute
            done = run_example(kiqctl, shlex.split(line, comments=True)[1:], stage.redis.url)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            if expected:
                assert steady(done.stdout) == steady(expected), line
                compared += 1
    assert compared >= 9
