"""Compressed jobs in Redis: how they are shown and found, and what a push and a move write."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.api import Queue, RetrySet
from kiqcluster.errors import ExceedLimitError
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq.compression import decompressed
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.testing.jobs import EnqueuedJob, Wanted
from kiqcluster.worker.maintenance.poller import Poller
from tests.redis.kiqctl import Kiqctl
from tests.redis.test_client import payloads
from tests.redis.test_poller import LIMITS
from tests.stored_jobs import NOW, add_entries, push_payloads
from tests.stored_jobs import job as stored_job

TEXT = "needle " + "x" * 3_000
COMPRESS = {
    "size_limiter_mode": "compress",
    "size_limiter_compression_threshold": 1_000,
    "size_limiter_limit": 2_000,
}


@pytest.fixture
def compressing(setup: Setup) -> Setup:
    setup.config = Config(**COMPRESS)  # type: ignore[arg-type]
    return setup


@pytest.fixture
def keep(compressing: Setup) -> Any:
    @job
    def keep(text: str) -> None: ...

    return keep


def test_a_push_and_a_bulk_push_write_gitlabs_form(keep: Any, store: Store) -> None:
    jids = [keep.perform_async(TEXT), *keep.perform_bulk([[TEXT], ["small"]])]

    found = {each["jid"]: each for each in payloads(store)}
    assert [("compressed" in found[jid]) for jid in jids] == [True, True, False]
    assert [decompressed(found[jid])["args"] for jid in jids[:2]] == [[TEXT]] * 2


def test_a_refused_job_writes_nothing(keep: Any, store: Store) -> None:
    with pytest.raises(ExceedLimitError):
        keep.perform_bulk([["small"], ["".join(map(str, range(3_000)))]])

    assert store.call("DBSIZE") == 0


def test_a_scheduled_job_is_compressed_once_and_middleware_can_read_it_twice(keep: Any, store: Store) -> None:
    seen: list[Any] = []

    def look(push: Push, proceed: Any) -> Any:
        seen.append(push.payload["args"])
        return proceed()

    setup = Setup(config=Config(**COMPRESS), store=store)  # type: ignore[arg-type]
    setup.client_middleware.add(look)
    Client(store, setup).push({"class": "keep", "args": [TEXT], "at": time.time() + 100})
    (stored,) = store.call("ZRANGE", "schedule", 0, -1)
    store.call("ZADD", "schedule", 1, stored)

    Poller(Runtime(Config(), store, setup, Events()), Engine(store, LIMITS), lambda name, error: None).poll()

    (pushed,) = payloads(store)
    assert seen == [[TEXT], [TEXT]]
    assert pushed.pop("enqueued_at") > 0
    assert pushed == decode(stored)


class TestShown:
    def test_a_record_has_what_is_stored_and_what_it_means(self, keep: Any, store: Store) -> None:
        keep.perform_async(TEXT)

        (record,) = Queue("default", store=store)

        assert record.is_compressed
        assert record.display_args == record.readable["args"] == [TEXT]
        assert record.args == record.payload["args"] != [TEXT]

    def test_an_envelope_too(self, compressing: Setup, store: Store) -> None:
        @job(name="RemindJob", active_job=True)
        def remind(text: str) -> None: ...

        remind.perform_async(TEXT)

        (record,) = Queue("default", store=store)
        assert (record.is_compressed, record.display_class, record.display_args) == (True, "RemindJob", [TEXT])

    @pytest.mark.parametrize("arguments", [["no zlib"], ["a", "b"], []])
    def test_one_that_cannot_be_read_says_so(self, kiqctl: Kiqctl, store: Store, arguments: list[Any]) -> None:
        push_payloads(store, [stored_job(1, compressed=True, args=arguments)])

        assert "[compressed: " in kiqctl("jobs", "default").stdout
        (said,) = kiqctl.ask("jobs", "default")["jobs"][0]["args"]
        assert said.startswith("[compressed: ")

    def test_one_that_is_too_large_for_a_page_says_so(
        self, keep: Any, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kiqcluster.api.records.MAX_SHOWN_BYTES", 100)
        keep.perform_async(TEXT)

        (record,) = Queue("default", store=store)
        assert record.display_args == [
            "[compressed: the arguments of the job have more than 100 bytes when decompressed]"
        ]

    def test_kiqctl_shows_the_arguments_with_a_mark(self, keep: Any, kiqctl: Kiqctl, store: Store) -> None:
        jid = keep.perform_async(TEXT)
        keep.perform_async("small")

        lines = kiqctl("jobs", "default").stdout
        shown = kiqctl("jobs", "default", "--jid", jid).stdout
        documents = {each["jid"]: each for each in kiqctl.ask("jobs", "default")["jobs"]}

        assert lines.count("[COMPRESSED]") == 1
        assert '[COMPRESSED] "needle' in lines
        assert '[COMPRESSED] ["needle' in shown
        assert (documents[jid]["args"], documents[jid]["compressed"]) == ([TEXT], True)
        assert sum("compressed" in each for each in documents.values()) == 1

    def test_a_filter_by_arguments_finds_it_and_a_search_of_redis_does_not(
        self, keep: Any, kiqctl: Kiqctl, store: Store
    ) -> None:
        keep.perform_async(TEXT)
        (raw,) = store.call("LRANGE", "queue:default", 0, -1)
        add_entries(store, "retry", (NOW, raw))

        assert len(kiqctl.ask("jobs", "default", "--args-contain", "needle")["jobs"]) == 1
        assert kiqctl.ask("retries", "--text", "needle")["entries"] == []
        assert kiqctl.ask("retries", "--text", '"compressed":true')["entries"][0]["args"] == [TEXT]
        assert len(RetrySet(store=store)) == 1

    def test_assertions_of_the_test_kit_compare_the_arguments(self, keep: Any, store: Store) -> None:
        keep.perform_async(TEXT)
        (raw,) = store.call("LRANGE", "queue:default", 0, -1)
        enqueued = EnqueuedJob(raw, "default", None, "default")

        assert Wanted(keep, (TEXT,)).fits(enqueued)
        assert not Wanted(keep, ("other",)).fits(enqueued)
        assert "keep('needle" in str(enqueued)
