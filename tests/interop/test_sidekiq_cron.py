"""sidekiq-cron's entries, made by Debian's Ruby: shown, taken over in one step, and enqueued by one of both."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiqcluster.api import CronSet
from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime
from kiqcluster.store import Store
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from tests.interop.programs import RubyProgram
from tests.kit import ManualClock, RedisServer, unavailable
from tests.redis.kiqctl import Kiqctl

pytestmark = [pytest.mark.ruby]
ENTRY = {"name": "cleanup", "cron": "* * * * * Europe/Berlin", "class": "Cleanup", "args": ["all", 7]}


@pytest.fixture(scope="session")
def sidekiq_cron_is_there(sidekiq_is_there: None) -> None:
    """Skip loudly, or fail where everything is required, unless Ruby has sidekiq-cron."""
    code = 'require "sidekiq"; require "sidekiq-cron"; print Sidekiq::Cron::Job'
    answer = subprocess.run(["ruby", "-e", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        unavailable("Ruby has no sidekiq-cron (Debian: apt-get install ruby-sidekiq-cron)")


@pytest.fixture(scope="module")
def program(sidekiq_cron_is_there: None, redis_server: RedisServer) -> Iterator[RubyProgram]:
    program = RubyProgram("cron.rb", redis_server.url)
    yield program
    program.close()


@pytest.fixture
def ruby(program: RubyProgram, store: Store) -> Callable[..., Any]:
    """Ask sidekiq-cron, on an empty Redis: `ruby(status="cleanup")`."""
    return lambda **order: program.ask(order)


def kiqctl(redis_server: RedisServer, *words: str) -> Any:
    done = Kiqctl(redis_server.url)(*words, "--json")
    return json.loads(done.stdout)


def test_its_entries_are_shown(ruby, redis_server):
    ruby(create=ENTRY)
    ruby(create={**ENTRY, "name": "in words", "cron": "every 5 minutes"})
    ruby(disable="in words")

    shown = {each["name"]: each for each in kiqctl(redis_server, "cron", "list")["entries"]}

    assert {name: (each["source"], each["enabled"]) for name, each in shown.items()} == {
        "cleanup": ("sidekiq-cron", True),
        "in words": ("sidekiq-cron", False),
    }
    assert "not a schedule" in shown["in words"]["error"]


def test_they_are_taken_over_and_ruby_enqueues_them_no_more(ruby, redis_server, store, setup, registry):
    ruby(create=ENTRY)
    ruby(create={**ENTRY, "name": "in words", "cron": "every 5 minutes"})

    answer = kiqctl(redis_server, "cron", "import")

    assert answer["taken"] == ["cleanup"]
    assert "not a schedule" in answer["left"]["in words"]
    assert (ruby(status="cleanup"), ruby(status="in words")) == ("disabled", "enabled")

    minute = time.time() // 60 * 60
    store.call("ZADD", store.keys.cron_ticks, minute, "cleanup")
    CronTicks(Runtime(Config(), store, setup, Events(), ManualClock()), registry, JobMetrics(1, list)).move(minute + 10)
    ours = [json.loads(raw) for raw in store.call("LRANGE", "queue:low", 0, -1)]
    assert [(each["class"], each["args"], each["retry"], each["cron_at"]) for each in ours] == [
        ("Cleanup", ["all", 7], 3, minute)
    ]
    assert [each["jid"] for each in ours] == [jid for jid in ruby(enqueue=minute + 70) if jid == ours[0]["jid"]]


def test_ruby_enqueues_what_is_not_taken_over(ruby, store):
    ruby(create=ENTRY)

    assert len(ruby(enqueue=time.time() // 60 * 60 + 65)) == 1
    assert CronSet(store=store).list() == []


def test_an_entry_that_ruby_has_disabled_stays_so(ruby, store):
    ruby(create=ENTRY)
    ruby(disable="cleanup")
    entries = CronSet(store=store)

    (job,) = entries.ruby_jobs()
    entries.take_over(job)

    (status,) = entries.list()
    assert (status.is_enabled, status.next_at) == (False, None)


def test_the_records_of_release_2_have_a_namespace(ruby, store):
    ruby(create=ENTRY)
    store.call("RENAME", "cron_job:cleanup", "cron_job:default:cleanup")
    store.call("SADD", "cron_jobs:default", "cron_job:default:cleanup")
    store.call("DEL", "cron_jobs")
    entries = CronSet(store=store)

    (job,) = entries.ruby_jobs()
    entries.take_over(job)

    assert store.call("HGET", "cron_job:default:cleanup", "status") == b"disabled"
    assert [each.name for each in entries.list()] == ["cleanup"]


def test_a_declared_entry_is_not_taken_over(ruby, store):
    ruby(create=ENTRY)
    raw = b'{"schedule":"@daily","tz":"UTC","job":"X","queue":"q","application":"shop"}'
    store.call("HSET", store.keys.cron, "cleanup", raw)
    entries = CronSet(store=store)

    (job,) = entries.ruby_jobs()
    with pytest.raises(UsageError, match="declared by an application"):
        entries.take_over(job)

    assert ruby(status="cleanup") == "enabled"


def test_an_entry_that_ruby_enables_again_is_warned_of(ruby, redis_server, store):
    ruby(create=ENTRY)
    kiqctl(redis_server, "cron", "import")
    before = Kiqctl(redis_server.url)("cron", "list")

    ruby(enable="cleanup")

    after = Kiqctl(redis_server.url)("cron", "list")
    shown = {each["source"]: each.get("enqueued_twice") for each in kiqctl(redis_server, "cron", "list")["entries"]}
    assert "two jobs" not in before.stderr
    assert "cleanup is enabled here and in sidekiq-cron" in after.stderr
    assert shown == {"by hand": None, "sidekiq-cron": True}
    CronSet(store=store).disable("cleanup")
    assert "two jobs" not in Kiqctl(redis_server.url)("cron", "list").stderr
