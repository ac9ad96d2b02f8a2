"""How kiqctl shows jobs that expire, and what becomes of those that somebody moves by hand."""

from __future__ import annotations

from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, job


def test_a_job_is_shown_with_the_time_at_which_it_expires(kiqctl: Kiqctl, store: Store) -> None:
    add_entries(store, "schedule", (NOW, job(1, jid="a" * 24, expiry=NOW + 60)), (NOW, job(2, jid="b" * 24)))

    assert "expires  2026-11-20 10:00:00Z" in kiqctl("scheduled", "show", "a" * 24).stdout.splitlines()
    assert "expires" not in kiqctl("scheduled", "show", "b" * 24).stdout


def test_an_expired_job_that_was_dropped_can_be_run_after_all(kiqctl: Kiqctl, store: Store) -> None:
    add_entries(store, store.keys.dropped, (NOW, job(1, jid="a" * 24, expiry=1.5, dropped=True, dropped_by="expiry")))

    assert kiqctl("dropped", "add-to-queue", "a" * 24, "--yes").exit_code == 0

    (moved,) = map(decode, store.call("LRANGE", "queue:default", 0, -1))
    assert "expiry" not in moved
    assert store.call("ZCARD", store.keys.dropped) == 0


def test_an_expired_job_that_is_retried_by_hand_has_no_time_any_more(kiqctl: Kiqctl, store: Store) -> None:
    add_entries(store, "dead", (NOW, job(1, jid="a" * 24, expiry=1.5, expires_in=1, retry_count=0)))

    assert kiqctl("dead", "retry", "a" * 24, "--yes").exit_code == 0

    (moved,) = map(decode, store.call("LRANGE", "queue:default", 0, -1))
    assert ("expiry" in moved, moved["expires_in"]) == (False, 1)
