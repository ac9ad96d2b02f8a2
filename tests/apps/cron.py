"""Jobs of cron entries: each notes its entry, its tick and its jid."""

from __future__ import annotations

from kiqcluster import current_job, job
from tests.apps.basic import note


def note_tick() -> None:
    running = current_job()
    assert running is not None
    note("ticked", running.payload["cron"], running.payload["cron_at"], running.jid)


@job(cron="* * * * * *")
def each_second() -> None:
    note_tick()


@job
def count(number: int = 0) -> None:
    """For entries of the configuration."""
    note_tick()
