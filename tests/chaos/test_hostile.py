"""One payload in fifty is broken, hostile or huge: each ends where it belongs, and every job beside them completes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.interop.bad_input import CASES, Case, marked
from tests.kit import wait_until

# In the short form: interop/test_bad_input.py, process/test_typed_arguments.py.
pytestmark = pytest.mark.full

JOBS = sized(1_000, 20_000)
ONE_IN = 50
MAX_JOB_MS = 10  # that a job takes
HUGE = sized((1_000_000, 5_000_000), (1_000_000, 5_000_000, 20_000_000, 20_000_000))  # characters in an argument
THREADS = 10
KINDS = {
    **CASES,
    "much of nothing": Case(b"\x00" * 2_000_000, "dead", "not JSON"),
    "a deep hole": Case(b'{"class":"Work","args":[' + b"[" * 200_000 + b"]" * 200_000 + b"]}", "dead", "not JSON"),
    "an unfinished one": Case(b'{"class":"Work","args":[' + b'{"a":' * 50_000, "dead", "not JSON"),
    "a name to import": Case(b'{"class":"os.system","args":["exit 1"],"retry":true}', "schedule", "unknown_class"),
    "a name to evaluate": Case(b'{"class":"__import__(\'os\')","args":[],"retry":true}', "schedule", "unknown_class"),
    "a pickle": Case(b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.", "dead", "not JSON"),
}


def test_broken_and_hostile_payloads_hold_no_job_up(stage: ChaosStage) -> None:
    # Prepared and shuffled by hand, for no client would push them.
    jids = stage.push_many("Work", [[stage.rng.uniform(0, MAX_JOB_MS)] for _ in range(JOBS)])
    jids += stage.push_many("Work", [[0, "x" * size] for size in HUGE])
    kinds = [stage.rng.choice(sorted(KINDS)) for _ in range(JOBS // ONE_IN)]
    bad = [marked(f"{kind} {number}", KINDS[kind].raw) for number, kind in enumerate(kinds)]
    mixed = [*stage.store.call("LRANGE", "queue:default", 0, -1), *bad]
    stage.rng.shuffle(mixed)
    stage.store.call("DEL", "queue:default")
    for raw in mixed:
        stage.store.call("LPUSH", "queue:default", raw)
    expected = Counter(KINDS[kind].ends_in for kind in kinds)

    cluster = stage.run_cluster("default", "default", "-c", str(THREADS))

    wait_until(lambda: stage.ledger.has_ended(jids), "every job to complete", seconds=300)
    wait_until(lambda: stage.remaining() == expected, f"all else to end in {dict(expected)}")
    audit = stage.ledger.audit(jids)
    stage.report({**audit.counts(), "hostile": len(bad), **expected})
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert not cluster.seen("service_crashed")
    assert not cluster.seen("child_died")
