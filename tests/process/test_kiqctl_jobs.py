"""kiqctl and the jobs of a real cluster: what it does to them shows in what runs; killed or stopped, it loses none."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.process.terminal import Terminal
from tests.proxy import Proxy
from tests.stage import Stage

MANY_JOBS = 8_000
NOW = 1_795_168_740.5


@pytest.fixture
def slow_kiqctl(stage: Stage) -> Iterator[Kiqctl]:
    """Run kiqctl far away from its Redis, so that it can be met in the middle of its work."""
    with Proxy(("127.0.0.1", stage.redis.port), latency=0.02) as proxy:
        running = Kiqctl(proxy.url)
        yield running
        running.close()


def job(number: int, queue: str = "old") -> bytes:
    payload = {"class": "record", "args": [number], "jid": f"j{number}", "queue": queue, "retry_count": 0}
    return json.dumps(payload, separators=(",", ":")).encode()


def lay_out(store: Store, *places: str) -> None:
    """Have MANY_JOBS jobs lie in these sets and queues, numbered on through all of them."""
    for place_number, place in enumerate(places):
        first = place_number * MANY_JOBS
        for at in range(first, first + MANY_JOBS, 1_000):
            jobs = [job(number) for number in range(at, at + 1_000)]
            if place.startswith("queue:"):
                store.call("LPUSH", place, *jobs)
                store.call("SADD", "queues", place.removeprefix("queue:"))
            else:
                scored = [word for at, raw in enumerate(jobs, at) for word in (NOW + at, raw)]
                store.call("ZADD", place, *scored)


def audit(store: Store, *places: str) -> Counter[int]:
    """Return number → how often that job lies anywhere."""
    found: Counter[int] = Counter()
    for place in places:
        is_list = store.call("TYPE", place) == b"list"
        raws = store.call("LRANGE" if is_list else "ZRANGE", place, 0, -1)
        found.update(json.loads(raw)["args"][0] for raw in raws)
    return found


def count_moved(store: Store, place: str) -> int:
    """Return how many jobs of a place are to go to the queue `new`."""
    raws = store.call("LRANGE" if place.startswith("queue:") else "ZRANGE", place, 0, -1)
    return sum(b'"queue":"new"' in raw for raw in raws)


def moved(store: Store, place: str) -> list[int]:
    """Return the jobs of a place that are to go to the queue `new`, the oldest first."""
    is_list = place.startswith("queue:")  # its type is not known before the first job is there
    raws = reversed(store.call("LRANGE", place, 0, -1)) if is_list else store.call("ZRANGE", place, 0, -1)
    found = [json.loads(raw) for raw in raws]
    return [payload["args"][0] for payload in found if payload["queue"] == "new"]


class TestCluster:
    def test_a_job_that_is_retried_runs_at_once(self, stage: Stage, kiqctl: Kiqctl) -> None:
        stage.run_cluster("default", "-c", "1").wait_ready(1)
        jid = stage.push("broken", "a")
        wait_until(lambda: stage.store.call("ZCARD", "retry"), "the job to fail")

        assert kiqctl("retries", "retry", jid).returncode == 0

        wait_until(lambda: stage.notes().count("failed a") == 2, "it to run again")
        wait_until(lambda: stage.store.call("ZCARD", "retry"), "it to fail again")
        assert json.loads(kiqctl("retries", "show", jid, "--json").stdout)["retry_count"] == 0, "that was no retry"

    def test_a_job_that_is_killed_and_revived_runs(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        cluster.wait_ready(1)
        jid = stage.push("record", "later", at=NOW + 1e8)

        assert kiqctl("scheduled", "kill", jid).returncode == 0
        assert stage.dead_args() == ["later"]
        assert kiqctl("dead", "retry", "--all", "--yes").returncode == 0

        stage.wait_noted("ran later")

    def test_a_scheduled_job_runs_when_it_is_given_another_time(self, stage: Stage, kiqctl: Kiqctl) -> None:
        stage.run_cluster("default", "-c", "1", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.2").wait_ready(1)
        stage.push("record", "later", at=NOW + 1e8)

        assert kiqctl("scheduled", "reschedule", "--all", "--in", "0", "--yes").returncode == 0

        stage.wait_noted("ran later")

    def test_nothing_is_fetched_from_a_paused_queue_until_it_is_resumed(self, stage: Stage, kiqctl: Kiqctl) -> None:
        stage.run_cluster("default,other", "-c", "1").wait_ready(1)

        assert kiqctl("queues", "pause", "other").returncode == 0
        stage.push("record", "paused", queue="other")
        stage.push("record", "served")
        stage.wait_noted("ran served")
        wait_until(lambda: stage.queued_args("other") == ["paused"], "the quiet process to put it back")
        stage.push("record", "served too")
        stage.wait_noted("ran served too")
        assert "ran paused" not in stage.notes()
        (shown,) = [each for each in json.loads(kiqctl("queues", "--json").stdout)["queues"] if each["name"] == "other"]
        assert (shown["is_paused"], shown["size"], len(shown["listeners"])) == (True, 1, 1)

        assert kiqctl("queues", "resume", "other").returncode == 0
        stage.wait_noted("ran paused")

    def test_what_is_migrated_runs_where_somebody_listens(self, stage: Stage, kiqctl: Kiqctl) -> None:
        stage.run_cluster("default", "-c", "1").wait_ready(1)
        for number in range(50):
            stage.push("record", str(number), queue="forgotten")

        done = kiqctl("migrate", "--from", "forgotten", "--to", "default", "--yes")

        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: len(stage.notes()) == 50, "all to run")
        assert sorted(stage.notes()) == sorted(f"ran {number}" for number in range(50))


class TestKilled:
    @pytest.mark.parametrize("place", ["queue:old", "retry", pytest.param("schedule", marks=pytest.mark.full)])
    def test_a_migration_that_is_killed_has_each_job_in_one_place_and_can_be_done_again(
        self, slow_kiqctl: Kiqctl, kiqctl: Kiqctl, store: Store, place: str
    ) -> None:
        lay_out(store, "schedule", "retry", "queue:old")
        target = "queue:new" if place == "queue:old" else place
        order = ("migrate", "--from", "old", "--to", "new", "--yes")

        running = slow_kiqctl.start(*order)
        wait_until(lambda: count_moved(store, target) > 1_000, "it to be in the middle of its work")
        running.process.kill()
        running.process.wait()

        everywhere = ("schedule", "retry", "queue:old", "queue:new")
        each_once = Counter(dict.fromkeys(range(3 * MANY_JOBS), 1))
        assert audit(store, *everywhere) == each_once
        assert not store.call("EXISTS", "queue:old") or store.call("LLEN", "queue:old") > 0
        left = 3 * MANY_JOBS - sum(len(moved(store, each)) for each in ("schedule", "retry", "queue:new"))
        assert 0 < left < 3 * MANY_JOBS - 1_000

        document = json.loads(kiqctl(*order, "--json").stdout)

        assert document["done"] == left
        assert audit(store, *everywhere) == each_once
        assert moved(store, "queue:new") == list(range(2 * MANY_JOBS, 3 * MANY_JOBS)), "in their order"
        scores = store.call("ZRANGE", "retry", 0, -1, "WITHSCORES")[1::2]
        assert [float(score) for score in scores] == [NOW + number for number in range(MANY_JOBS, 2 * MANY_JOBS)]


class TestInterrupted:
    @pytest.mark.parametrize(
        ("order", "place"),
        [
            (["retries", "retry", "--class", "record", "--yes"], "retry"),
            (["retries", "delete", "--text", "record", "--yes"], "retry"),
            (["jobs", "old", "--class", "record", "--delete", "--yes"], "queue:old"),
            (["migrate", "--class", "record", "--to", "new", "--yes"], "queue:old"),
        ],
        ids=lambda each: each[1] if isinstance(each, list) else each,
    )
    def test_ctrl_c_ends_it_between_two_batches_and_it_says_how_many_were_done(
        self, slow_kiqctl: Kiqctl, store: Store, order: list[str], place: str
    ) -> None:
        lay_out(store, place)
        size = {"retry": "ZCARD", "queue:old": "LLEN"}[place]

        running = slow_kiqctl.start(*order, "--json")
        wait_until(lambda: store.call(size, place) < MANY_JOBS - 500, "it to be in the middle of its work")
        running.process.send_signal(signal.SIGINT)
        done = slow_kiqctl.end(running)

        document: Any = json.loads(done.stdout)
        assert done.returncode == 1, done.stderr
        assert document["interrupted"]
        assert 500 < document["done"] == MANY_JOBS - store.call(size, place) < MANY_JOBS
        assert document["unknown"] == 0

    def test_ctrl_c_while_it_counts_ends_it_at_once(self, slow_kiqctl: Kiqctl, store: Store) -> None:
        lay_out(store, "retry")

        store.call("CONFIG", "RESETSTAT")
        running = slow_kiqctl.start("retries", "delete", "--class", "record")
        wait_until(lambda: b"cmdstat_zrange" in store.call("INFO", "commandstats"), "it to look")
        running.process.send_signal(signal.SIGINT)
        done = slow_kiqctl.end(running)

        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert store.call("ZCARD", "retry") == MANY_JOBS


class TestTerminal:
    @pytest.fixture
    def ask(self, stage: Stage) -> Iterator[Callable[..., Terminal]]:
        """Run kiqctl in a terminal."""
        running: list[Terminal] = []

        def run(*words: str) -> Terminal:
            command = [sys.executable, "-m", "kiqcluster.ctl", *words]
            running.append(Terminal(command, REDIS_URL=stage.redis.url))
            return running[-1]

        yield run
        for each in running:
            each.close()

    def test_it_asks_with_the_count_and_does_it_when_it_may(self, ask: Callable[..., Terminal], store: Store) -> None:
        lay_out(store, "dead")

        terminal = ask("dead", "delete", "--class", "record")
        terminal.wait_shown("This will delete 8,000 entries of the dead set. Go on?")
        assert store.call("ZCARD", "dead") == MANY_JOBS
        terminal.press("y\n")

        assert terminal.wait() == 0
        terminal.wait_shown("deleting", "8000/8000", "deleted 8,000 entries of the dead set")
        assert store.call("ZCARD", "dead") == 0

    @pytest.mark.parametrize("answer", ["n\n", "\n", "\x03"])
    def test_anything_but_a_yes_leaves_all_as_it_is(
        self, ask: Callable[..., Terminal], store: Store, answer: str
    ) -> None:
        lay_out(store, "dead")

        terminal = ask("migrate", "--from", "old", "--to", "new", "--in", "dead")
        terminal.wait_shown("This will move 8,000 jobs: all from old to new", "Go on?")
        terminal.press(answer)

        assert terminal.wait() == 1
        assert moved(store, "dead") == []
