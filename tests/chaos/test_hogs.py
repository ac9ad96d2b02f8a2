"""Jobs that take all the memory there is: they fail, or die with their process, and all others complete.

The limit is the process' own (RLIMIT_AS, `ulimit -v`), and who kills the fattest is the test, as earlyoom does: the
kernel's own killer would take a control group, or the whole machine.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.chaos.ledger import Ledger, remains
from tests.chaos.scale import sized
from tests.kit import Cluster, wait_until
from tests.process.stage import dead, push, push_many

Run = Callable[..., Cluster]
Report = Callable[[dict[str, Any]], None]

APPLICATION = "tests.apps.chaos_hogs"
THREADS = 6
HOGS = sized(2, 20)
BESIDE = 500  # jobs before each hog, and after the last
LONGEST = 10  # milliseconds that one of them takes
DEATHS = 3  # max_retries_after_interruption
A_BIT = 4 << 20  # bytes: a hog leaves less than this
HARDLY_ANYTHING = 64  # bytes: not even what it takes to log a line
FAT = 300_000_000  # bytes in memory for which a process is killed; an ordinary one has a tenth
PATIENCE = sized(60, 900)  # seconds


def push_among_others(store: Store, rng: Random, name: str, *arguments: Any) -> tuple[list[str], list[str]]:
    """Enqueue HOGS jobs with others before and after each; return the jids of the former and of the latter."""
    hogs, others = [], []
    for _ in range(HOGS):
        others += push_many(store, "Work", [[rng.uniform(0, LONGEST)] for _ in range(BESIDE)])
        hogs.append(push(store, name, *arguments))
    others += push_many(store, "Work", [[rng.uniform(0, LONGEST)] for _ in range(BESIDE)])
    return hogs, others


def test_a_job_that_gets_no_memory_fails_and_its_worker_goes_on(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report
) -> None:
    hogs, others = push_among_others(store, rng, "hog", A_BIT, 0.2)

    cluster = run("default", "-c", str(THREADS), app=APPLICATION)

    pids = cluster.wait_ready()
    wait_until(lambda: ledger.has_ended(others), "all others to complete", PATIENCE)
    wait_until(lambda: remains(store) == {"retry": HOGS}, "the hogs to wait for another try", PATIENCE)
    retries = [ruby_json.decode(raw) for raw in store.call("ZRANGE", "retry", 0, -1)]
    audit = ledger.audit([*hogs, *others], buried=hogs)
    report(audit.counts())
    assert {each["jid"]: (each["error_class"], each["retry_count"]) for each in retries} == dict.fromkeys(
        hogs, ("MemoryError", 0)
    )
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert cluster.pids() == pids
    assert cluster.stop() == 0


def test_a_job_that_starves_all_threads_of_its_process_costs_no_other_job(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report
) -> None:
    """Whether the process bears it is chance.  If it does the job has failed, if it does not it has killed it."""
    hogs, others = push_among_others(store, rng, "hog", HARDLY_ANYTHING, 1.0)

    cluster = run("default", "-c", str(THREADS), app=APPLICATION)

    wait_until(lambda: ledger.has_ended(others), "all others to complete", PATIENCE)
    wait_until(lambda: remains(store).keys() <= {"retry", "dead"}, "all to be settled", PATIENCE)
    buried = {entry["jid"] for entry in dead(store)}
    failed = {ruby_json.decode(raw)["jid"] for raw in store.call("ZRANGE", "retry", 0, -1)}
    died = {each["child"] for each in cluster.seen("child_died")}
    audit = ledger.audit([*hogs, *others], buried=hogs)
    report({"deaths": len(died), "hogs that failed": len(failed), **audit.counts()})
    assert audit.lost == audit.strangers == set()
    assert buried | failed >= set(hogs)
    assert all(entry.pid in died for ends in audit.repeated.values() for entry in ends[:-1])


def memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 of one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def test_a_job_for_whose_memory_its_process_is_killed_is_buried_and_all_others_complete(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report
) -> None:
    hogs, others = push_among_others(store, rng, "gorge")
    cluster = run("default", "-c", str(THREADS), app=APPLICATION)

    def killed_all() -> bool:
        for pid in cluster.pids().values():
            if pid not in ledger.deaths and memory_of(pid) > FAT:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                ledger.died(pid)
        return len(dead(store)) >= HOGS

    wait_until(killed_all, "the hogs to be buried", PATIENCE)
    wait_until(lambda: ledger.has_ended(others), "all others to complete", PATIENCE)
    wait_until(lambda: remains(store).keys() <= {"dead"}, "all to be settled", PATIENCE)
    buried = dead(store)
    audit = ledger.audit([*hogs, *others], buried=hogs)
    report({"kills": len(ledger.deaths), **audit.counts()})
    assert {each["jid"]: each["interrupted_count"] for each in buried} == dict.fromkeys(hogs, DEATHS)
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert len(ledger.deaths) == len(cluster.seen("child_died"))
    assert HOGS + DEATHS - 1 <= len(ledger.deaths) <= HOGS * DEATHS
