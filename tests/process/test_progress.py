"""Progress in a real cluster: of jobs in threads and on the event loop, while they run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kiqcluster import Client
from kiqcluster.api import WorkSet
from kiqcluster.client.results import Progress
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

JOBS = """
import asyncio
from kiqcluster import current_job, current_setup, job


def is_told_to_end() -> bool:
    return bool(current_setup().current_store().call("EXISTS", "end"))


@job(name="threaded")
def threaded() -> None:
    done = 0
    while not is_told_to_end():
        done += 1
        current_job().progress(min(done, 7), 10)


@job(name="looped")
async def looped() -> None:
    current_job().progress(3)
    while not await asyncio.to_thread(is_told_to_end):
        await asyncio.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _setup_of_stage(stage: Stage) -> Iterator[None]:
    with using_setup(Setup(store=stage.store, config=Config())):
        yield


def test_it_is_seen_while_jobs_run_and_goes_with_them(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=stage.write_application(JOBS)).wait_ready(1)
    for name in ("threaded", "looped"):
        Client().push({"class": name, "queue": "default"})
    kiqctl, store = Kiqctl(stage.redis.url), stage.store
    wait_until(lambda: len(store.call("KEYS", "kiq:progress:*")) == 2, "both jobs to have told")
    wait_until(lambda: len(list(WorkSet(store=store))) == 2, "both jobs to show", 20)

    def told() -> dict[str, Progress | None]:
        return {each.job.name: each.progress for each in WorkSet(store=store)}

    expected = {"threaded": Progress(7, 10), "looped": Progress(3)}
    wait_until(lambda: told() == expected, "the last that both have told", 20)
    document = json.loads(kiqctl("busy", "--json").stdout)

    assert {each["class"]: each["progress"]["done"] for each in document["jobs"]} == {"threaded": 7, "looped": 3}
    store.call("SET", "end", 1)
    stage.wait_settled()
    assert store.call("KEYS", "kiq:progress:*") == []
