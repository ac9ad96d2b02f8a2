"""How kiqctl shows jobs that wait for a newer release."""

from __future__ import annotations

from kiqcluster.store import Store
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, job


def test_the_schedule_names_the_version_that_a_job_waits_for(kiqctl: Kiqctl, store: Store) -> None:
    waits = {"version": 3, "deferred": True, "deferred_by": "version", "deferred_count": 2}
    add_entries(store, "schedule", (NOW, job(1, **waits)), (NOW, job(2, **waits, error_class="E", error_message="no")))

    lines = kiqctl("scheduled", "list").stdout
    entries = kiqctl.ask("scheduled", "list")["entries"]

    assert lines.count("version 3 is newer than the workers of default") == 1
    assert "E: no" in lines
    assert [(each["deferred_by"], each["deferred_count"]) for each in entries] == [("version", 2)] * 2
