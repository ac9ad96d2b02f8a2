"""Ruby finds entries by their bytes: what Python writes must be what Ruby would print."""

from __future__ import annotations

import math
import random
import struct

import pytest

from kiqcluster.sidekiq import ruby_json
from tests.apps.interop import Echo, fragile
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

PRINTED_BY_RUBY = "texts.map { |text| JSON.generate(JSON.parse(text)) }"
SETS = {"schedule": "ScheduledSet", "retry": "RetrySet", "dead": "DeadSet"}


def failed(stage):
    """Have the cluster write an entry to the retry set and one to the dead set; return when they are there."""
    fragile.set(tags=["vip", "é"]).perform_async(*ALL_KINDS)
    fragile.set(retry=0).perform_async(*ALL_KINDS)
    stage.run_cluster("default", "-c", "1")
    wait_until(
        lambda: stage.store.call("ZCARD", "retry") and stage.store.call("ZCARD", "dead"), "one retry and one dead job"
    )


def test_ruby_would_print_every_payload_that_python_wrote(stage, ruby):
    failed(stage)
    Echo.perform_async(*ALL_KINDS)
    Echo.set(queue="bulk").perform_bulk([ALL_KINDS])
    Echo.perform_in(3_600, *ALL_KINDS)
    Echo.set(queue="kept", tags=["vip", "é"], retry=3, backtrace=True).perform_async(*ALL_KINDS)

    written = [stage.store.call("ZRANGE", name, 0, -1)[0].decode() for name in SETS]
    written += [stage.store.call("LRANGE", f"queue:{name}", 0, -1)[0].decode() for name in ("bulk", "kept")]

    assert ruby(PRINTED_BY_RUBY, texts=written) == written


def test_floats_of_every_magnitude_are_printed_as_ruby_prints_them(ruby):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    floats = [struct.unpack("d", chance.randbytes(8))[0] for _ in range(3_000)]
    floats += [chance.randrange(10**17) / 10 ** chance.randrange(25) for _ in range(3_000)]
    floats += [sign * 10.0**power for power in range(-320, 309) for sign in (1, -1)]
    floats += [math.nextafter(10.0**power, towards) for power in range(-30, 30) for towards in (0, math.inf)]

    written = [ruby_json.encode(each).decode() for each in floats if math.isfinite(each)]

    assert ruby(PRINTED_BY_RUBY, texts=written) == written


def test_characters_of_every_kind_are_printed_as_ruby_prints_them(ruby):
    codes = [*range(0x3100), *range(0xD700, 0xD800), *range(0xE000, 0xE100), *range(0xFE00, 0x10100), 0x1F680, 0x10FFFF]

    written = [ruby_json.encode(chr(code)).decode() for code in codes] + [
        ruby_json.encode("".join(map(chr, codes))).decode()
    ]

    assert ruby(PRINTED_BY_RUBY, texts=written) == written


@pytest.mark.parametrize("name", SETS)
def test_an_entry_that_ruby_reschedules_stays_one_entry(name, stage, ruby):
    Echo.perform_in(3_600, *ALL_KINDS)
    failed(stage)
    (before,) = stage.store.call("ZRANGE", name, 0, -1)

    ruby(f"Sidekiq::{SETS[name]}.new.first.reschedule(at)", at=4_000_000_000.25)

    assert stage.store.call("ZRANGE", name, 0, -1, "WITHSCORES") == [before, b"4000000000.25"]


def test_ruby_deletes_our_entries_by_their_bytes(stage, ruby):
    Echo.perform_in(3_600, *ALL_KINDS)
    failed(stage)
    Echo.set(queue="kept").perform_async("other")
    jid = Echo.set(queue="kept").perform_async(*ALL_KINDS)

    deleted = {name: ruby(f"Sidekiq::{kind}.new.first.delete") for name, kind in SETS.items()}
    deleted["kept"] = ruby("Sidekiq::Queue.new('kept').find_job(jid).delete", jid=jid)

    assert deleted == {"schedule": True, "retry": True, "dead": True, "kept": True}
    assert [stage.store.call("ZCARD", name) for name in SETS] == [0, 0, 0]
    assert stage.store.call("LLEN", "queue:kept") == 1
