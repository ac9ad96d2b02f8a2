"""Jobs with the strategies of deduplication."""

from __future__ import annotations

import time

from kiqcluster import current_job, job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note
from tests.apps.counting import counted


def jid() -> str:
    running = current_job()
    assert running is not None
    return running.jid


def wait_at(gate: str) -> None:
    while not current_setup().current_store().call("EXISTS", f"open:{gate}"):
        time.sleep(0.005)


@job(deduplicate="until_executed", deduplicate_key=lambda word, _gate: word, reschedule_once=True)
def refresh(word: str, gate: str) -> None:
    """Runs until the gate is open.  Jobs of the same word are equal."""
    note("began", word, jid())
    wait_at(gate)
    note("ended", word, jid())


@job(deduplicate="until_executing")
def notify(word: str) -> None:
    note("ran", word, jid())


@job(deduplicate="until_executing", deduplicate_key=lambda word, _gate: word)
def announce(word: str, gate: str) -> None:
    """Runs until the gate is open.  Jobs of the same word are equal."""
    note("began", word, jid())
    wait_at(gate)
    note("ended", word, jid())


@job(deduplicate="while_executing", deduplicate_key=lambda word, _gate: word)
def alone(word: str, gate: str) -> None:
    """Notes how many jobs of this word run, until the gate is open."""
    with counted(word) as running:
        note("began", word, running, jid())
        wait_at(gate)
    note("ended", word, jid())


@job(deduplicate="while_executing")
def single(word: str, number: int = 0) -> None:
    """Notes how many jobs of these arguments run."""
    with counted(f"{word}:{number}") as running:
        note("began", f"{word}:{number}", running)
        time.sleep(0.005)
    note("ended", f"{word}:{number}", jid())


@job(deduplicate="until_executed", reschedule_once=True)
def recount(key: str, milliseconds: float) -> None:
    """Notes when it began, by the clock in Redis, and how many jobs of these arguments run."""
    with counted(key) as running:
        note("began", key, current_setup().current_store().call("INCR", "clock"), running)
        time.sleep(milliseconds / 1_000)
