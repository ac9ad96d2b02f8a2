"""Executions: the keys and figures that Sidekiq's metrics pages read, in the spelling of 7 and of 8."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from kiqcluster.process.tallies import EXECUTION_BUCKETS, Executions
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.scripts import Word
from kiqcluster.worker.metrics.execution_metrics import NOTHING, increments

NOON = datetime(2026, 11, 20, 11, 39, 42, tzinfo=UTC)
FIRST = (5, *(0,) * len(EXECUTION_BUCKETS))

# What Ruby's Sidekiq has left after five runs of Ok that took no millisecond, five of Fails and one of Dies.
RAN = {"Ok": Executions(5, 0, 0, FIRST), "Fails": Executions(5, 5), "Dies": Executions(1, 1)}
COUNTS = {"Dies|f": 1, "Dies|p": 1, "Fails|f": 5, "Fails|p": 5, "Ok|ms": 0, "Ok|p": 5}
IN_7_3_10 = {"j|20261120|11:39": COUNTS, "Ok-20-11:39": {"#0": 5}}
OURS = {"kiq:executed:261120:11:39": {**COUNTS, "Ok|0": 5}}
IN_8_1_7 = {"j|261120|11:39": COUNTS, "j|261120|11:3": COUNTS, "h|Ok-20-11:39": {"#0": 5}}


def written(commands: Iterable[tuple[Word, ...]]) -> dict[Word, dict[Word, Word]]:
    """Return key → field, or place in the bitfield, → increment."""
    keys: dict[Word, dict[Word, Word]] = {}
    for verb, key, *words in commands:
        if verb == "HINCRBY":
            field, count = words
            keys.setdefault(key, {})[field] = count
        elif verb == "BITFIELD":
            assert words[:2] == ["OVERFLOW", "SAT"]
            assert words[2::4] == ["INCRBY"] * (len(words) // 4)
            assert words[3::4] == ["u16"] * (len(words) // 4)
            keys.setdefault(key, {}).update(zip(words[4::4], words[5::4], strict=True))
    return keys


def test_keys_and_fields_are_those_of_ruby_7_and_8() -> None:
    commands = [command for name, now in RAN.items() for command in increments(Keys(), name, NOTHING, now, NOON)]

    assert written(commands) == {**IN_7_3_10, **IN_8_1_7, **OURS}


def test_each_version_pads_in_its_own_way() -> None:
    early = datetime(2026, 1, 5, 7, 4, tzinfo=UTC)

    keys = written(increments(Keys(), "Ok", NOTHING, RAN["Ok"], early))

    assert list(keys) == [
        *("j|260105|7:04", "j|20260105|7:4", "kiq:executed:260105:7:04", "j|260105|7:0"),
        *("h|Ok-5-7:4", "Ok-05-07:4"),
    ]


def test_a_second_time_only_what_is_new_is_added() -> None:
    before = Executions(7, 2, 900, (2, 3, *(0,) * 24))
    now = Executions(9, 2, 950, (2, 4, *(0,) * 23, 1))

    keys = written(increments(Keys(), "Ok", before, now, NOON))

    assert keys["j|261120|11:39"] == {"Ok|ms": 50, "Ok|p": 2}
    assert keys["h|Ok-20-11:39"] == {"#1": 1, "#25": 1}


def test_runs_that_only_failed_leave_neither_milliseconds_nor_a_histogram() -> None:
    keys = written(increments(Keys(), "Fails", NOTHING, RAN["Fails"], NOON))

    assert set(keys) == {"j|261120|11:39", "j|20261120|11:39", "j|261120|11:3", "kiq:executed:261120:11:39"}
    assert keys["j|261120|11:39"] == {"Fails|p": 5, "Fails|f": 5}


@pytest.mark.parametrize("prefix", ["", "{shard}:"])
def test_a_shards_prefix_is_before_every_key(prefix: str) -> None:
    assert all(str(key).startswith(prefix) for key in written(increments(Keys(prefix), "Ok", NOTHING, RAN["Ok"], NOON)))
