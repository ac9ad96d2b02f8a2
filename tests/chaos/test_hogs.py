"""Jobs that take all the memory there is: they fail, or die with their process, and all others complete.

The limit is the process' own (RLIMIT_AS, `ulimit -v`), and who kills the fattest is the test, as earlyoom does: the
kernel's own killer would take a control group, or the whole machine.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until

# In the short form: process/test_exhaustion.py, process/test_poison.py.
pytestmark = pytest.mark.full

APPLICATION = "tests.apps.chaos_hogs"
THREADS = 6
HOGS = sized(2, 20)
JOBS_BETWEEN_HOGS = 500  # jobs before each hog, and after the last
MAX_JOB_MS = 10  # that one of them takes
MAX_DEATHS = 3  # max_retries_after_interruption
FEW_BYTES = 4 << 20  # bytes: a hog leaves less than this
HARDLY_ANY_BYTES = 64  # bytes: not even what it takes to log a line
KILL_BYTES = 300_000_000  # in memory for which a process is killed; an ordinary one has a tenth
TIMEOUT_SECONDS = sized(60, 900)


def push_among_others(stage: ChaosStage, name: str, *arguments: Any) -> tuple[list[str], list[str]]:
    """Enqueue HOGS jobs with others before and after each; return the jids of the former and of the latter."""
    hogs, others = [], []
    for _ in range(HOGS):
        others += stage.push_many("Work", [[stage.rng.uniform(0, MAX_JOB_MS)] for _ in range(JOBS_BETWEEN_HOGS)])
        hogs.append(stage.push(name, *arguments))
    others += stage.push_many("Work", [[stage.rng.uniform(0, MAX_JOB_MS)] for _ in range(JOBS_BETWEEN_HOGS)])
    return hogs, others


def test_a_job_that_gets_no_memory_fails_and_its_worker_goes_on(stage: ChaosStage) -> None:
    hogs, others = push_among_others(stage, "hog", FEW_BYTES, 0.2)

    cluster = stage.run_cluster("default", "-c", str(THREADS), app=APPLICATION)

    pids = cluster.wait_ready()
    wait_until(lambda: stage.ledger.has_ended(others), "all others to complete", TIMEOUT_SECONDS)
    wait_until(lambda: stage.remaining() == {"retry": HOGS}, "the hogs to wait for another try", TIMEOUT_SECONDS)
    retries = [ruby_json.decode(raw) for raw in stage.store.call("ZRANGE", "retry", 0, -1)]
    audit = stage.ledger.audit([*hogs, *others], buried=hogs)
    stage.report(audit.counts())
    assert {each["jid"]: (each["error_class"], each["retry_count"]) for each in retries} == dict.fromkeys(
        hogs, ("MemoryError", 0)
    )
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert cluster.pids() == pids
    assert cluster.stop() == 0


def test_a_job_that_starves_all_threads_of_its_process_costs_no_other_job(stage: ChaosStage) -> None:
    """Whether the process bears it is chance.  If it does the job has failed, if it does not it has killed it."""
    hogs, others = push_among_others(stage, "hog", HARDLY_ANY_BYTES, 1.0)

    cluster = stage.run_cluster("default", "-c", str(THREADS), app=APPLICATION)

    wait_until(lambda: stage.ledger.has_ended(others), "all others to complete", TIMEOUT_SECONDS)
    wait_until(lambda: stage.remaining().keys() <= {"retry", "dead"}, "all to be settled", TIMEOUT_SECONDS)
    buried = {entry["jid"] for entry in stage.dead()}
    failed = {ruby_json.decode(raw)["jid"] for raw in stage.store.call("ZRANGE", "retry", 0, -1)}
    died = {each["child"] for each in cluster.seen("child_died")}
    audit = stage.ledger.audit([*hogs, *others], buried=hogs)
    stage.report({"deaths": len(died), "hogs that failed": len(failed), **audit.counts()})
    assert audit.lost == audit.strangers == set()
    assert buried | failed >= set(hogs)
    assert all(entry.pid in died for ends in audit.repeated.values() for entry in ends[:-1])


def memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 of one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def test_a_job_for_whose_memory_its_process_is_killed_is_buried_and_all_others_complete(stage: ChaosStage) -> None:
    hogs, others = push_among_others(stage, "gorge")
    cluster = stage.run_cluster("default", "-c", str(THREADS), app=APPLICATION)

    def killed_all() -> bool:
        for pid in cluster.pids().values():
            if pid not in stage.ledger.deaths and memory_of(pid) > KILL_BYTES:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                stage.ledger.died(pid)
        return len(stage.dead()) >= HOGS

    wait_until(killed_all, "the hogs to be buried", TIMEOUT_SECONDS)
    wait_until(lambda: stage.ledger.has_ended(others), "all others to complete", TIMEOUT_SECONDS)
    wait_until(lambda: stage.remaining().keys() <= {"dead"}, "all to be settled", TIMEOUT_SECONDS)
    buried = stage.dead()
    audit = stage.ledger.audit([*hogs, *others], buried=hogs)
    stage.report({"kills": len(stage.ledger.deaths), **audit.counts()})
    assert {each["jid"]: each["interrupted_count"] for each in buried} == dict.fromkeys(hogs, MAX_DEATHS)
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert len(stage.ledger.deaths) == len(cluster.seen("child_died"))
    assert HOGS + MAX_DEATHS - 1 <= len(stage.ledger.deaths) <= HOGS * MAX_DEATHS
