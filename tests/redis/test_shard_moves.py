"""Moves of jobs to another shard: each is in one place at any moment, whenever the one who moves it is killed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.api import JobRecord, ParkedJobs, Queue, RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.ctl.jobs import routed_migration
from kiqcluster.ctl.jobs.migrate import ROUTED_PLACES
from kiqcluster.ctl.jobs.routed_migration import RoutedJobs, RoutedMigration, Target
from kiqcluster.errors import RedisRefused, RedisUnavailable
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from kiqcluster.store.connection import Connection
from kiqcluster.store.scripts import MOVE_ENTRIES, MOVE_JOBS, RECEIVE_JOBS
from kiqcluster.store.shard_moves import ShardMove, staged_counts
from kiqcluster.store.shards import parse_shards
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, entries, job, push_payloads, queued_numbers

APPLICATION = """
from kiqcluster import Job

class Far(Job, queue="old", tags=["far"]):
    def perform(self, number): ...

class Near(Job, queue="old"):
    def perform(self, number): ...
"""
RULES = [["tags=far", "far", "eu"], ["*", "near"]]
MANY = 7


@pytest.fixture
def eu(own_server: RedisServer) -> Iterator[Store]:
    store = Store(own_server.url, name="eu")
    yield store
    store.close()


@pytest.fixture
def migrate(
    kiqctl: Kiqctl, registry: Registry, own_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    (tmp_path / "kiqcluster.toml").write_text(f'routing = {json.dumps(RULES)}\n[shards.eu]\nredis = "{own_server.url}"')
    (tmp_path / "moved_jobs.py").write_text(APPLICATION)
    flags = ("-C", str(tmp_path / "kiqcluster.toml"), "-r", str(tmp_path / "moved_jobs.py"))
    yield lambda *words, code=0: kiqctl.ask("migrate", "--routing", *flags, *words, code=code)
    sys.modules.pop("moved_jobs", None)


def lay_out(store: Store) -> None:
    """Put seven jobs of the moved class into each place, with one of the other class after each."""
    far, near = ([job(n, **{"class": name, "queue": "old"}) for n in range(MANY)] for name in ("Far", "Near"))
    push_payloads(store, [each for pair in zip(far, near, strict=True) for each in pair], "old")
    add_entries(store, "schedule", *((NOW + at % MANY, raw) for at, raw in enumerate([*far, *near])))
    add_entries(store, "retry", *((NOW + at, raw) for at, raw in enumerate(far)))
    slots = store.keys.slots("Far")
    store.call("SADD", store.keys.parked_sets, slots)
    line = [b"queue:old\0" + job(100 + number, **{"class": "Far", "queue": "old"}) for number in range(MANY)]
    scores = range(1_795_168_740_000_001, 1_795_168_740_000_001 + MANY)
    store.call("ZADD", store.keys.parked(slots), *(word for pair in zip(scores, line, strict=True) for word in pair))


def everything(*stores: Store) -> Counter[tuple[str, str, int]]:
    """Return how often each job is there: kind of place, class and number; staged ones as if they had arrived."""
    found: Counter[tuple[str, str, int]] = Counter()
    for store in stores:
        places: list[tuple[str, Any]] = [("queue", each) for each in Queue.all(store=store)]
        places += [("queue", ParkedJobs("Far", store=store))]
        places += [("schedule", ScheduledSet(store=store)), ("retry", RetrySet(store=store))]
        for place, records in places:
            found.update((place, each.name, each.args[0]) for each in records)
        for raw in store.call("LRANGE", store.keys.moving_to("eu"), 0, -1):
            _, _, place, _, _, payload = raw.split(b"\0", 5)
            record = JobRecord(payload)
            found[place.decode(), record.name, record.args[0]] += 1
    return found


def test_jobs_follow_their_class_to_another_shard(migrate: Callable[..., Any], store: Store, eu: Store) -> None:
    lay_out(store)
    whole = everything(store)

    dry = migrate("--dry-run")
    assert everything(store) == whole
    done = migrate("--yes")

    def counts(document: Any) -> dict[tuple[str, str, str], int]:
        return {(each["place"], each["to"], each.get("shard", "")): each["jobs"] for each in document["moves"]}

    assert counts(dry) == counts(done) == {
        ("schedule", "far", "eu"): MANY, ("schedule", "near", ""): MANY, ("retry", "far", "eu"): MANY,
        ("parked Far", "far", "eu"): MANY, ("queue old", "far", "eu"): MANY, ("queue old", "near", ""): MANY,
    }  # fmt: skip
    assert dry["found"] == done["done"] == 6 * MANY
    assert everything(store, eu) == whole
    assert queued_numbers(eu, "far") == [*range(100, 100 + MANY), *range(MANY)], "each place in its order"
    assert queued_numbers(store, "near") == list(range(MANY))
    assert sorted(entries(eu, "schedule").values()) == [NOW + number for number in range(MANY)]
    assert {json.loads(raw)["queue"] for raw in entries(eu, "retry")} == {"far"}
    assert (staged_counts(store), eu.call("SMEMBERS", "queues")) == ({}, [b"far"])
    assert migrate("--yes")["done"] == 0


def test_jobs_of_a_batch_stay_with_it_and_are_named(
    kiqctl: Kiqctl, migrate: Callable[..., Any], store: Store, eu: Store
) -> None:
    of_batch = {"task_id": "t", "use_task_event": True, "queue": "old"}
    push_payloads(store, [job(1, **{"class": "Far", **of_batch}), job(2, **{"class": "Far", "queue": "old"})], "old")
    push_payloads(store, [job(3, **{"class": "Near", **of_batch})], "old")

    dry = migrate("--dry-run")
    done = migrate("--yes", code=1)

    assert (dry["found"], done["done"]) == (2, 2)
    assert "1 job of a batch was left" in done["error"]
    assert (queued_numbers(store, "old"), queued_numbers(store, "near"), queued_numbers(eu, "far")) == ([1], [3], [2])


class Killed(BaseException):
    """What kill -9 is to the code that it hits: nothing of it runs any more."""


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_step_loses_and_doubles_nothing(
    store: Store, eu: Store, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """It is killed before, or after, its 1st, 2nd, … exchange with a Redis that writes; then it is run again."""
    begin, finish = Connection.begin, Connection.finish
    writing = {each.digest for each in (MOVE_ENTRIES, MOVE_JOBS, RECEIVE_JOBS)}
    left, is_write = 0, False

    def kill_before(connection: Connection, commands: Any) -> None:
        nonlocal left, is_write
        is_write = any(words[0] == "LREM" or words[1] in writing for words in commands if len(words) > 1)
        left -= is_write
        if is_write and left == 0 and not is_after:
            raise Killed
        begin(connection, commands)

    def kill_after(connection: Connection, timeout: float | None = None) -> Any:
        replies = finish(connection, timeout)
        if is_write and left == 0:
            raise Killed
        return replies

    def migrate() -> None:
        routes = {"Far": Target("far", "eu"), "Near": Target("near", "")}
        migration = RoutedMigration(store, RoutedJobs(None, None, "", routes), ROUTED_PLACES)
        with using_setup(Setup(config=Config(shards=parse_shards({"eu": own_server.url})), store=store)):
            migration.finish_earlier()
            for _, task in migration.tasks():
                task.act(filter(task.is_selected, task.records()))

    lay_out(store)
    whole = everything(store)
    step = killed = 0
    while killed == step:
        step += 1
        for each in (store, eu):
            each.call("FLUSHALL")
        lay_out(store)
        left = step
        monkeypatch.setattr(Connection, "begin", kill_before)
        monkeypatch.setattr(Connection, "finish", kill_after)
        try:
            migrate()
        except Killed:
            killed += 1
        monkeypatch.undo()
        between = everything(store, eu)
        assert not whole - between, f"lost at step {step}"
        doubled = between - whole
        assert not doubled or staged_counts(store), f"doubled for good at step {step}"

        migrate()

        assert everything(store, eu) == whole, f"after step {step}"
        assert staged_counts(store) == {}
    assert step > 12


def test_while_the_other_shard_is_away_its_jobs_stay(
    migrate: Callable[..., Any], store: Store, own_server: RedisServer
) -> None:
    lay_out(store)
    whole = everything(store)
    own_server.kill()

    failed = migrate("--yes", code=1)

    assert "cannot reach Redis" in failed["error"]
    assert everything(store) == whole
    assert staged_counts(store) == {}


def test_a_queue_that_was_empty_at_the_count_is_not_skipped(
    migrate: Callable[..., Any], store: Store, eu: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(store)

    def fall_due(*_: object, **__: object) -> None:
        push_payloads(store, [job(50, **{"class": "Far", "queue": "late"})], "late")

    monkeypatch.setattr(routed_migration, "confirm", fall_due)
    done = migrate()

    assert done["done"] == 6 * MANY + 1
    assert 50 in queued_numbers(eu, "far")


def test_each_place_is_looked_through_once(
    migrate: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(store)
    walks = []
    walk = ScheduledSet.__iter__
    monkeypatch.setattr(ScheduledSet, "__iter__", lambda self: walks.append(self) or walk(self))  # type: ignore[func-returns-value]

    migrate("--dry-run")

    assert len(walks) == 1


def test_a_job_that_the_other_shard_refuses_waits_and_is_named(kiqctl: Kiqctl, store: Store, eu: Store) -> None:
    push_payloads(store, [job(number, queue="old") for number in range(3)], "old")
    eu.call("SET", "queue:far", "no list")
    move = ShardMove(store, eu)
    queue = Queue("old", store=store)
    assert queue.stage(reversed(queue), "far", move) == 3

    with pytest.raises(RedisRefused, match=r"key queue:far.*in the shard eu; the job stays in kiq:moving:eu"):
        move.deliver()
    assert staged_counts(store) == {"eu": 3}
    assert kiqctl.ask("queues")["moving"] == {"default": {"eu": 3}}
    assert "3 jobs of default on the way to the shard eu" in kiqctl("queues").stderr
    eu.call("DEL", "queue:far")

    assert ShardMove(store, eu).deliver() == 3
    assert queued_numbers(eu, "far") == [0, 1, 2]


def test_what_two_deliver_at_once_arrives_once(store: Store, eu: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    push_payloads(store, [job(number, queue="old") for number in range(3)], "old")
    first, second = ShardMove(store, eu), ShardMove(store, eu)
    queue = Queue("old", store=store)
    queue.stage(reversed(queue), "far", first)
    receive = ShardMove._receive

    def overtaken(move: ShardMove, jobs: Any) -> Any:
        monkeypatch.undo()
        second.deliver()
        return receive(move, jobs)

    monkeypatch.setattr(ShardMove, "_receive", overtaken)
    first.deliver()

    assert queued_numbers(eu, "far") == [0, 1, 2]
    assert eu.call("TTL", eu.keys.moved(first._run)) > 0


def test_nothing_leaves_for_a_shard_that_does_not_answer(store: Store) -> None:
    with pytest.raises(RedisUnavailable):
        ShardMove(store, Store("redis://127.0.0.1:1/0", name="eu")).check()
