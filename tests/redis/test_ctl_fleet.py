"""kiqctl on a fleet of 10 000 processes: processor time."""

from __future__ import annotations

import json
import resource

import pytest

from kiqcluster.store import Store
from tests.fake_supervisor import process_fields
from tests.redis.kiqctl import Kiqctl

CLUSTERS, SLOTS = 500, 20
MAX_CPU_SECONDS = 2.0  # of one core, for a command


def lay_fleet(store: Store) -> None:
    for number in range(CLUSTERS):
        supervisor = f"app-{number}:100:aaaaaaaaaaaa"
        rows = [
            {"slot": slot, "pid": 101 + slot, "state": "ready", "release": "/srv/app/releases/1", "generation": 0}
            | {"restarts": 0, "died_at": None, "backoff": 0.0, "waits_for": "", "redis": True}
            for slot in range(SLOTS)
        ]
        state = json.dumps({"supervisor": supervisor, "slots": SLOTS, "children": rows, "at": 1_795_168_740.5})
        commands: list[tuple[object, ...]] = []
        for row in rows:
            identity = f"app-{number}:{row['pid']}:bbbbbbbbbbbb"
            words = [word for pair in process_fields(identity, kiq_cluster=state).items() for word in pair]
            commands += [("HSET", identity, *words), ("EXPIRE", identity, 600), ("SADD", "processes", identity)]
        store.pipeline(commands)  # type: ignore[arg-type]  # words of a command, as they come


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("words", [("ps",), ("ps", "--json"), ("top", "--once", "--interval", "0.1s")], ids=" ".join)
def test_a_fleet_of_ten_thousand_is_shown_within_two_seconds_of_a_core(
    kiqctl: Kiqctl, store: Store, words: tuple[str, ...]
) -> None:
    lay_fleet(store)
    before = resource.getrusage(resource.RUSAGE_SELF)

    result = kiqctl(*words)

    after = resource.getrusage(resource.RUSAGE_SELF)
    assert result.exit_code == 0
    assert result.stdout.count("app-") >= CLUSTERS
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MAX_CPU_SECONDS
