"""Locks as operators see them: LockSet, kiqctl locks, and the counter of the exporter."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import LockSet
from kiqcluster.application.registry import Registry
from kiqcluster.ctl.exporter.gauges import Gauges
from kiqcluster.store import Store
from tests.redis.kiqctl import Kiqctl
from tests.redis.test_client import payloads

pytestmark = pytest.mark.usefixtures("setup")


@pytest.fixture
def report(registry: Registry) -> Any:
    return job(name="Acme::Report", deduplicate="until_executed", deduplicate_ttl=100)(lambda number: None)


class TestLockSet:
    def test_says_who_holds_which_lock_and_for_how_long(self, store: Store, report: Any) -> None:
        jid = report.perform_async(1)

        (lock,) = LockSet()

        assert (lock.job_class, lock.jid) == ("Acme::Report", jid)
        assert lock.name == payloads(store)[0]["idempotency_key"]
        assert lock.ttl is not None
        assert 99 < lock.ttl <= 100
        assert repr(lock) == f"<JobLock {lock.name} of {jid}>"

    def test_finds_them_all_among_other_keys(self, store: Store, report: Any) -> None:
        jids = report.perform_bulk([[number] for number in range(1_500)])
        store.pipeline([("SET", f"other:{number}", "x") for number in range(3_000)])

        assert sorted(each.jid for each in LockSet()) == sorted(jids)
        (lock,) = LockSet().of_job(jids[7])
        assert LockSet().find(lock.name) is not None
        assert LockSet().find("no such") is None

    def test_are_found_page_by_page(self, store: Store, report: Any) -> None:
        jids = report.perform_bulk([[number] for number in range(300)])
        store.call("SET", store.keys.lock("Other*:1"), "other")
        store.pipeline([("SET", f"other:{number}", "x") for number in range(30_000)])

        pages, cursor = [LockSet().page()], 1
        while cursor := pages[-1].cursor:
            pages.append(LockSet().page(cursor))

        assert {lock.jid for page in pages for lock in page.locks} == {*jids, "other"}
        assert len(pages) > 1
        assert pages[0].keys == store.call("DBSIZE")

    def test_are_found_by_how_their_names_begin(self, store: Store, report: Any) -> None:
        report.perform_async(1)
        store.call("SET", store.keys.lock("Other*:1"), "other")

        page = LockSet().page(0, 100, "Other*")

        assert ([lock.jid for lock in page.locks], page.cursor) == (["other"], 0)
        assert LockSet().page(0, 100, "*").locks == []

    def test_a_key_of_another_type_is_no_lock(self, store: Store) -> None:
        store.call("RPUSH", store.keys.lock("X:1"), "no string")
        store.call("SET", store.keys.lock("X:2"), "for ever")
        store.call("SET", store.keys.lock("X:\udcff").encode(errors="surrogateescape"), "no text")

        assert [(each.name, each.ttl) for each in LockSet()] == [("X:2", None)]

    def test_a_released_one_lets_the_next_push_through(self, store: Store, report: Any) -> None:
        first = report.perform_async(1)
        (lock,) = LockSet()

        assert lock.release()
        assert not lock.release()
        assert report.perform_async(1) != first

    def test_one_that_another_job_holds_by_now_is_left_to_it(self, store: Store, report: Any) -> None:
        report.perform_async(1)
        (lock,) = LockSet()
        store.call("SET", store.keys.lock(lock.name), "another")

        assert not lock.release()
        assert [each.jid for each in LockSet()] == ["another"]


class TestKiqctl:
    def test_lists_them(self, kiqctl: Kiqctl, report: Any, registry: Registry) -> None:
        jid = report.perform_async(1)
        other = job(name="Other", deduplicate="until_executed")(lambda: None)
        other.perform_async()

        lines = kiqctl("locks").stdout.splitlines()
        (row,) = kiqctl.ask("locks", "--class", "Acme::Report")["locks"]

        assert lines[0].split() == ["CLASS", "HELD", "BY", "TTL", "LOCK"]
        assert {line.split()[0] for line in lines[1:]} == {"Acme::Report", "Other"}
        assert row.keys() == {"name", "class", "jid", "ttl"}
        assert (row["class"], row["jid"]) == ("Acme::Report", jid)

    def test_without_any_it_says_so(self, kiqctl: Kiqctl, store: Store) -> None:
        assert kiqctl("locks").stdout == "no job holds a lock\n"
        assert kiqctl("locks", "--class", "X").stdout == "no job of X holds a lock\n"

    def test_releases_the_locks_of_jobs_and_of_classes(self, kiqctl: Kiqctl, report: Any) -> None:
        first, *_ = report.perform_bulk([[1], [2], [3]])

        assert kiqctl.ask("locks", "release", first, "--yes")["done"] == 1
        assert kiqctl.ask("locks", "release", "--class", "Acme::Report", "--yes")["done"] == 2
        assert list(LockSet()) == []

    def test_asks_and_refuses_what_it_cannot_find(self, kiqctl: Kiqctl, report: Any) -> None:
        jid = report.perform_async(1)

        assert kiqctl("locks", "release").exit_code == 2
        assert "this would release 1 lock; nothing was done" in kiqctl("locks", "release", jid).stderr
        missing = kiqctl("locks", "release", jid, "nope", "--yes")
        assert (missing.exit_code, "no lock is held by nope" in missing.stderr) == (1, True)
        assert len(list(LockSet())) == 1


def test_the_exporter_counts_the_pushes_that_were_dropped_by_class(store: Store, report: Any) -> None:
    report.perform_bulk([[1], [1], [1]])

    found = {
        (sample.name, sample.labels.get("worker")): sample.value
        for metric in Gauges(store).read(0.0)
        for sample in metric.samples
    }

    assert found["kiqcluster_jobs_deduplicated_total", "Acme::Report"] == 2


def test_a_count_of_another_type_costs_only_its_own_series(store: Store) -> None:
    store.call("SET", store.keys.deduplicated, "no hash")

    names = {metric.name for metric in Gauges(store).read(0.0)}

    assert "sidekiq_jobs_dead_size" in names
