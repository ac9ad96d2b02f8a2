"""Laws of what decides: configuration, groups, order, arguments, respawns, totals, frames, retries."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kiqcluster.errors import InvalidArguments, UsageError
from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import TOKEN_BYTES, RunningJobs
from kiqcluster.process.config import Config
from kiqcluster.process.config_sources import load
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import TRANSIENT_KEYS, bare, check_arguments, wrap
from kiqcluster.sidekiq.queue_groups import concurrency_for, parse_group
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby, misfits
from kiqcluster.supervisor.cluster.respawn import BURST_WINDOW_SECONDS, History, after_death
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.run.retry import delay, plan, wanted_delay
from tests.metrics_stage import Stage, Worker

NOW = 1_795_168_740.5
names = st.sampled_from(["a", "a:b", "a:b:c", "ab", "b", "b:c", "c"])
patterns = st.sampled_from(["a", "a:b", "a:*", "a:b:*", "b", "c", "c:*", "*", "z"])
groups = st.lists(
    patterns | st.tuples(patterns, st.integers(1, 9)).map(lambda pair: f"{pair[0]}={pair[1]}"), min_size=1, max_size=5
)
finite = st.floats(allow_nan=False, allow_infinity=False)


def values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5) | st.just("\ud800"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )


json_values = values(finite)
TIMES = ("created_at", "enqueued_at", "failed_at", "retried_at")
RETRIES = ("retry", "retry_count", "retry_for", "retry_queue", "dead", "backtrace")
ERRORS = ("error_class", "error_message", "error_backtrace")
payload_keys = st.sampled_from(
    ("class", "args", "jid", "queue", "tags", "wrapped", "encrypt", *TIMES, *RETRIES, *ERRORS, "cattr", "other")
)
payloads = st.dictionaries(payload_keys, json_values, max_size=8)


def is_storable(value: Any) -> bool:
    try:
        ruby_json.encode([value, 1e16])  # the slow path refuses NaN and infinity
    except ValueError:
        return False
    return True


# configuration

SOURCES = ("flag", "environment", "file", "configure()")


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 99), max_size=4))
def test_a_setting_has_the_value_of_the_first_source_that_gives_it(given_by: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "file" in given_by:
            (Path(folder) / "kiqcluster.toml").write_text(f"max_retries = {given_by['file']}")
        config, origins = load(
            {"max_retries": given_by["flag"]} if "flag" in given_by else {},
            environ={"KIQ_MAX_RETRIES": str(given_by["environment"])} if "environment" in given_by else {},
            directory=Path(folder),
            configured={"max_retries": given_by["configure()"]} if "configure()" in given_by else {},
        )

    first = next((source for source in SOURCES if source in given_by), "default")
    assert config.max_retries == given_by.get(first, Config.max_retries)
    assert origins["max_retries"].startswith(first)


# groups


def means(pattern: str, queue: str) -> bool:
    """Return whether a pattern means a queue, as the documents say it."""
    if pattern.endswith("*"):
        return queue.startswith(pattern[:-1])
    return queue == pattern or queue.startswith(f"{pattern}:")


@given(groups, st.sets(names))
def test_a_group_stands_for_the_known_queues_that_it_matches_and_its_own_names(
    words: list[str], known: set[str]
) -> None:
    group = parse_group(",".join(words))

    expanded = group.expand(known)

    matched = {queue for queue in known if any(means(pattern.name, queue) for pattern in group.patterns)}
    assert set(expanded) == matched | {pattern.name for pattern in group.patterns if pattern.is_literal}
    assert all(weight >= 1 for weight in expanded.values())


@given(groups, st.sets(names), st.randoms(use_true_random=False))
def test_the_weights_of_a_group_do_not_depend_on_the_order_of_its_words(
    words: list[str], known: set[str], rng: Random
) -> None:
    shuffled = rng.sample(words, len(words))

    assert parse_group(",".join(words)).expand(known) == parse_group(",".join(shuffled)).expand(known)


@given(st.lists(patterns, min_size=1, max_size=4), st.sets(names))
def test_a_negated_group_is_the_rest(words: list[str], known: set[str]) -> None:
    text = ",".join(words)

    rest = set(parse_group(text, negated=True).expand(known))

    assert rest == known - set(parse_group(text).expand(known))


@given(groups, st.sets(names), st.sets(names))
def test_more_known_queues_never_take_one_away_or_change_its_weight(
    words: list[str], known: set[str], more: set[str]
) -> None:
    group = parse_group(",".join(words))

    assert group.expand(known).items() <= group.expand(known | more).items()


@given(st.text(max_size=12))
def test_any_text_is_a_group_or_a_usage_error(text: str) -> None:
    try:
        group = parse_group(text)
    except UsageError:
        return
    assert all(name.isprintable() and name for name in group.expand([]))


@given(st.integers(0, 1_000), st.integers(0, 1_000), st.integers(0, 1_000))
def test_threads_are_within_their_bounds_and_never_none(queues: int, smallest: int, largest: int) -> None:
    threads = concurrency_for(queues, smallest, largest)

    assert threads >= 1
    assert threads <= max(queues + 1, smallest)
    assert largest == 0 or threads <= largest


# order


@given(st.dictionaries(names, st.integers(1, 9), min_size=1), st.integers(0, 9), st.booleans())
def test_a_draw_is_a_permutation_of_the_queues(weights: dict[str, int], seed: int, strict: bool) -> None:
    words = list(weights) if strict else [f"{name}={weight}" for name, weight in weights.items()]
    order = QueueOrder(parse_group(",".join(words), strict=strict), [], Random(seed))

    drawn = tuple(order.draw())

    assert sorted(drawn) == sorted(weights)
    assert not strict or drawn == tuple(weights)


# arguments and payloads


@given(st.lists(values(st.floats()), max_size=4))
def test_arguments_that_pass_the_check_come_back_unchanged(arguments: list[Any]) -> None:
    def refuse(error: InvalidArguments) -> None:
        raise error

    try:
        check_arguments(arguments, refuse)
    except InvalidArguments as error:
        path = str(error.path)
    else:
        path = ""
    if path:
        assert path.startswith("args[")
        return
    assert repr(ruby_json.decode(ruby_json.encode(arguments))) == repr(arguments)


@given(payloads)
def test_whatever_is_in_a_payload_ruby_can_show_and_enqueue_its_entry(payload: dict[str, Any]) -> None:
    entry = ruby_json.decode(entry_for_ruby(ruby_json.encode(payload), {}, "default"))

    assert misfits(entry) == []
    assert ruby_json.ruby_writes(entry)


@given(payloads)
def test_an_entry_has_every_value_of_its_job(payload: dict[str, Any]) -> None:
    raw = ruby_json.encode(payload)

    carried = ruby_json.members(bare(entry_for_ruby(raw, {"error_class": "E"}, "default")))

    unset = {key for key in ("queue", "jid", "args") if payload.get(key) is None}
    unset |= set(TRANSIENT_KEYS).intersection(misfits(payload))  # the next push sets them
    for key, value in ruby_json.members(raw).items():
        assert key in {"error_class", "queue", *unset} or bytes(carried[key]) == bytes(value) or payload[key] == ""


@given(st.binary(max_size=50))
def test_bytes_that_are_wrapped_come_back(raw: bytes) -> None:
    assert bare(wrap(raw, "default", ValueError("x"), NOW)) == raw


@given(payloads, json_values, st.integers(0, 30))
def test_a_failure_of_any_payload_has_a_plan_that_can_be_stored(
    payload: dict[str, Any], option: Any, limit: int
) -> None:
    planned = plan(payload, "default", ValueError("x"), option, limit, NOW)

    assert planned.count >= 0
    assert is_storable(dict(planned.changes))
    assert not planned.changes.keys() & misfits({**payload, **planned.changes})


@given(json_values | st.integers() | st.floats(), st.integers(min_value=0))
def test_any_answer_of_a_hook_gives_a_time_that_ruby_can_show(answer: Any, count: int) -> None:
    assert 0 <= delay(wanted_delay(answer), count, Random(1)) < 10**13


# respawns


@given(st.lists(st.floats(0, 40), max_size=40), st.integers(1, 4), st.integers(0, 99))
def test_no_minute_has_more_respawns_than_the_burst(lives: list[float], burst: int, seed: int) -> None:
    history, now, starts = History(), NOW, list[float]()
    for life in lives:
        history = after_death(history, ready_for=life, code=1, now=now, burst=burst, rng=Random(seed))
        starts.append(history.not_before)
        assert history.not_before >= now
        now = history.not_before + life

    for start in starts:
        assert sum(start <= other < start + BURST_WINDOW_SECONDS - 0.001 for other in starts) <= burst


# totals

steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["count", "count", "count", "die"]), st.integers(0, 9)), max_size=30
)


@settings(max_examples=50)
@given(steps)
def test_a_total_never_goes_back_and_counts_everything(history: list[tuple[int, str, int]]) -> None:
    stage = Stage()
    workers: dict[int, Worker] = {}
    own: dict[int, int] = {}  # what the living child of a slot has counted
    true_total, before = 0, 0.0
    for slot, step, number in history:
        if step == "die":
            if slot in workers:
                workers.pop(slot).die()
            own[slot] = 0
        else:
            own[slot] = own.get(slot, 0) + number
            true_total += number
            workers.setdefault(slot, stage.worker(slot)).count(own[slot])
        shown = stage.shown().get('sidekiq_jobs_failed_total{worker="Mail"}', 0.0)
        assert shown >= before
        assert shown == true_total
        before = shown


# between supervisor and child


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers() | st.text(max_size=9))), st.data()
)
def test_frames_cut_anywhere_arrive_whole_and_in_order(frames: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = _stream(lambda channel: [channel.send("x", **frame) for frame in frames])
    near, far = socket.socketpair()
    channel = Channel(far)
    received: list[dict[str, Any]] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        near.sendall(stream[:cut])
        stream = stream[cut:]
        received += channel.receive()
    near.close()
    received += channel.receive()
    channel.close()

    assert received == [{"type": "x", **frame} for frame in frames]


def _stream(send: Callable[[Channel], object]) -> bytes:
    """Return the bytes that a channel writes."""
    near, far = socket.socketpair()
    send(Channel(near))  # a channel never blocks; what it sends here fits into the socket
    near.close()
    data = b""
    while chunk := far.recv(65_536):
        data += chunk
    far.close()
    return data


tokens = st.text("0123456789.", min_size=1, max_size=TOKEN_BYTES - 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | tokens), max_size=20))
def test_the_shared_memory_shows_what_each_processor_did_last(changes: list[tuple[int, str | None]]) -> None:
    running_jobs, expected = RunningJobs(4), dict[int, str | None]()
    for processor, token in changes:
        expected[processor] = token
        if token is None:
            running_jobs.finish(processor)
        else:
            running_jobs.start(processor, token)

    assert running_jobs.tokens() == [token for _, token in sorted(expected.items()) if token is not None]
    running_jobs.close()
