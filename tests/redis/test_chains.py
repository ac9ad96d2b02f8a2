"""Chains: each way by which a job can end, and what becomes of the jobs after it then."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

import kiqcluster
from kiqcluster import Client, Interrupted, Job, application_context, job
from kiqcluster.api import DeadSet
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, NormalFailure
from kiqcluster.client.chains import MAX_JOBS, Chain
from kiqcluster.client.handle import Handle
from kiqcluster.errors import InvalidArguments, InvalidPush, JobDropped, JobFailed, RedisRefused
from kiqcluster.features.cancellation import CANCELLATIONS
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.config import Config
from kiqcluster.process.context.cancel_marks import Marks
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Dead, Done, Dropped
from kiqcluster.sidekiq.payload import KEPT_RESULT_TTL, THEN
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.kit import require_module


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def download(worker: Worker) -> Any:
    """The first job of most chains; it returns what `worker.during` says."""

    @job
    def download(url: str) -> Any:
        return worker.during(url)

    worker.during = lambda url: f"<{url}>"
    return download


@pytest.fixture
def resize(worker: Worker) -> Any:
    @job(queue="images", retry=3, tags=["slow"])
    def resize(data: str, width: int = 10) -> str:
        worker.ran.append((data, width))
        return f"{data}@{width}"

    return resize


@pytest.fixture
def publish(worker: Worker) -> Any:
    @job(result_ttl=60)
    def publish(name: str) -> str:
        worker.ran.append((name,))
        return f"{name}!"

    return publish


@pytest.fixture
def chain(download: Any, resize: Any, publish: Any) -> Chain[..., str]:
    made: Chain[..., str] = download.then(resize, 80).then(publish.set(queue="low"))
    return made


def enqueued(chain: Chain[..., Any], *arguments: Any) -> Handle[Any]:
    handle = chain.enqueue(*arguments)
    assert handle is not None
    return handle


def queued(store: Store, queue: str) -> list[dict[str, Any]]:
    return [decode(raw) for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def shortly(value: object) -> str:
    return f"{value!r:.8}"


class Lazy(dict[str, Any]):
    """A row that loads its columns when somebody reads them, and fails then."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(column=1)
        self.error = error

    def _load(self, *_: object) -> Any:
        raise self.error

    items = keys = values = __iter__ = __len__ = __getitem__ = __str__ = __repr__ = _load


def raising(error: BaseException) -> Callable[..., object]:
    def run(*_: object) -> None:
        raise error

    return run


class TestPush:
    def test_each_job_gets_what_the_one_before_returned_and_its_own_arguments(
        self, chain: Chain[..., str], worker: Worker, store: Store
    ) -> None:
        handle = enqueued(chain, "a.png")
        assert store.call("KEYS", "queue:*") == [b"queue:default"]

        outcomes = [worker.run(), worker.run("images"), worker.run("low")]

        assert [type(each) for each in outcomes] == [Done] * 3
        assert worker.ran == [("<a.png>", 80), ("<a.png>@80",)]
        assert handle.result(0) == "<a.png>@80!"
        assert set(store.call("SMEMBERS", "queues")) == {b"default", b"images", b"low"}
        assert not any(queued(store, name) for name in ("default", "images", "low"))

    def test_what_is_pushed_is_the_job_that_a_push_would_have_written(
        self, chain: Chain[..., str], resize: Any, worker: Worker, store: Store
    ) -> None:
        resize.perform_async("<a.png>", 80)
        (plain,) = queued(store, "images")
        store.call("DEL", "queue:images")
        handle = enqueued(chain, "a.png")

        worker.run()

        (pushed,) = queued(store, "images")
        (last,) = pushed.pop(THEN)
        assert pushed.keys() == plain.keys()
        changing = ("jid", "created_at", "enqueued_at")
        assert {key: pushed[key] for key in plain if key not in changing} == {
            key: plain[key] for key in plain if key not in changing
        }
        assert (pushed["jid"], last["jid"]) == handle.jids[1:]
        assert last["args"] == [None]
        worker.run("images")
        (pushed_last,) = queued(store, "low")
        assert pushed_last.keys() & {THEN, KEPT_RESULT_TTL} == set()

    def test_a_chain_is_a_value(self, download: Any, resize: Any, publish: Any, worker: Worker) -> None:
        begun = download.then(resize, width=7)
        both = [begun.then(publish), begun.then(resize)]

        jids = {jid for each in (*both, both[0]) for jid in enqueued(each, "a").jids}

        assert len(jids) == 9
        assert repr(both[0]) == "<chain download → resize → publish>"

    def test_classes_and_later_times(self, worker: Worker, resize: Any, store: Store) -> None:
        class Fetch(Job, queue="slow"):
            def perform(self, url: str) -> str:
                return url

        class Count(Job):
            def perform(self, data: str, by: int, start: int = 0) -> int:
                return len(data) * by + start

        chain = Fetch.then(Count, 2, start=1)

        assert chain.perform_in(60, "abc") is not None
        assert chain.perform_inline("abc") == 7
        ((raw, _),) = [store.call("ZRANGE", "schedule", 0, 0, "WITHSCORES")]
        assert decode(raw)[THEN][0]["args"] == [None, 2, 1]

    def test_a_coroutine_enqueues_one(self, chain: Chain[..., str], worker: Worker) -> None:
        import asyncio

        handle = asyncio.run(chain.aenqueue("a"))
        for queue in ("default", "images", "low"):
            worker.run(queue)

        assert handle is not None
        assert handle.result(0) == "<a>@80!"

    def test_a_class_that_no_process_here_defines_is_pushed_by_its_name(
        self, download: Any, worker: Worker, store: Store
    ) -> None:
        enqueued(download.then({"class": "Acme::Mail", "queue": "ruby", "retry": 2, "tags": ["x"]}, 7), "a")

        worker.run()

        (pushed,) = queued(store, "ruby")
        assert (pushed["class"], pushed["args"], pushed["retry"], pushed["tags"]) == (
            "Acme::Mail",
            ["<a>", 7],
            2,
            ["x"],
        )

    def test_middleware_and_context_see_all_jobs_when_the_chain_is_pushed(
        self, chain: Chain[..., str], setup: Setup, worker: Worker, store: Store
    ) -> None:
        seen: list[tuple[str, list[Any]]] = []

        def note(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append((push.payload["class"], push.payload["args"]))
            push.payload["noted"] = True
            return proceed()

        setup.client_middleware.add(note)
        with application_context(correlation_id="r-1"):
            enqueued(chain, "a")
        worker.run()

        assert seen == [("resize", [None, 80]), ("publish", [None]), ("download", ["a"])]
        (pushed,) = queued(store, "images")
        assert (pushed["noted"], pushed["correlation_id"], pushed["args"]) == (True, "r-1", ["<a>", 80])

    def test_what_cannot_be_in_a_chain_is_refused_before_anything_is_written(
        self, download: Any, resize: Any, setup: Setup, store: Store
    ) -> None:
        @job(deduplicate="until_executed")
        def once(data: str) -> None: ...

        @job(active_job=True, name="RailsJob")
        def rails(data: str) -> None: ...

        @job(encrypt=True)
        def secret(data: str) -> None: ...

        @job
        def idle() -> None: ...

        for refused, words in ((once, "deduplicate"), (rails, "active_job"), (secret, "encrypt")):
            with pytest.raises(InvalidPush, match=words):
                download.then(resize, 1).then(refused).enqueue("a")
        for refused, words in ((once, "deduplicate"), (rails, "active_job")):
            with pytest.raises(InvalidPush, match=words):
                refused.then(resize).enqueue("a")
        with pytest.raises(InvalidArguments, match="no argument"):
            download.then(idle)
        with pytest.raises(InvalidArguments, match="unexpected"):
            download.then(resize, height=3)
        with pytest.raises(InvalidPush, match="is not a job"):
            download.then(print)
        with pytest.raises(InvalidPush, match="args"):
            download.then({"class": "A", "args": []})
        with pytest.raises(InvalidArguments, match="nan"):
            download.then(resize, float("nan")).enqueue("a")
        setup.client_middleware.add(lambda push, proceed: None if push.payload["class"] == "resize" else proceed())
        with pytest.raises(InvalidPush, match="middleware stopped resize"):
            download.then(resize).enqueue("a")
        assert store.call("KEYS", "queue:*") == []

    def test_large_chains_are_refused(self, download: Any, resize: Any) -> None:
        chain = download.then(resize)
        for _ in range(MAX_JOBS - 2):
            chain = chain.then(resize)

        assert len(enqueued(chain, "a").jids) == MAX_JOBS
        with pytest.raises(InvalidPush, match="50 jobs at most"):
            chain.then(resize)
        with pytest.raises(InvalidPush, match="bytes"):
            download.then({"class": "A", "queue": "q"}, "x" * 1_000_001).enqueue("a")
        deep: Any = []
        for _ in range(96):
            deep = [deep]
        with pytest.raises(InvalidArguments, match="nested"):
            download.then({"class": "A", "queue": "q"}, deep).enqueue("a")

    def test_jobs_of_two_shards_are_refused(
        self, download: Any, resize: Any, setup: Setup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kiqcluster.client import destination

        other = Store("redis://127.0.0.1:1/0", name="other")
        monkeypatch.setattr(destination, "shard_of", lambda _setup, name, _: other if name == "resize" else None)

        with pytest.raises(InvalidPush, match="another shard"):
            download.then(resize).enqueue("a")

    def test_the_first_job_may_be_encrypted(self, resize: Any, setup: Setup, registry: Registry, store: Store) -> None:
        @job(encrypt=True)
        def unlock(door: str, code: str) -> str:
            return f"{door} {code}"

        require_module("cryptography")
        setup.config = Config(encryption_keys=f"1:{b64encode(bytes(32)).decode()}")
        enqueued(unlock.then(resize), "north", "1234")
        (stored,) = queued(store, "default")

        Worker(store, setup, registry).run()

        assert stored["args"][1] != "1234"
        (pushed,) = queued(store, "images")
        assert (pushed["args"], "encrypt" in pushed) == (["north 1234"], False)

    def test_a_first_job_that_middleware_stops_enqueues_nothing(self, resize: Any, setup: Setup, store: Store) -> None:
        @job
        def stopped(url: str) -> str:
            return url

        setup.client_middleware.add(lambda push, proceed: None if push.payload["class"] == "stopped" else proceed())

        assert stopped.then(resize).enqueue("a") is None
        assert stopped.then(resize).perform_async("a") is None
        assert stopped.then(resize).perform_inline("a") is None
        assert store.call("KEYS", "queue:*") == []


class TestEnds:
    @pytest.mark.parametrize(
        "during",
        [raising(ValueError("no luck")), raising(Interrupted())],
        ids=["retry", "interrupted"],
    )
    def test_a_job_that_runs_again_pushes_nothing_yet(
        self, chain: Chain[..., str], worker: Worker, store: Store, during: Callable[..., object]
    ) -> None:
        handle = enqueued(chain, "a")
        fine, worker.during = worker.during, during

        worker.run()

        assert store.call("EXISTS", "queue:images") == 0
        assert handle.status().state == "pending"
        for key in ("retry", "schedule"):
            for raw in store.call("ZRANGE", key, 0, -1):
                store.call("LPUSH", "queue:default", raw)
        worker.during = fine
        for queue in ("default", "images", "low"):
            worker.run(queue)
        assert handle.result(0) == "<a>@80!"

    def test_a_dead_job_ends_the_chain_and_who_waits_is_told_which(
        self, download: Any, resize: Any, publish: Any, worker: Worker, store: Store
    ) -> None:
        handle = enqueued(download.set(retry=0).then(resize).then(publish), "a")
        fine, worker.during = worker.during, raising(ValueError("no luck"))

        assert isinstance(worker.run(), Dead)

        with pytest.raises(JobFailed, match=r"download .* has failed: ValueError: no luck") as caught:
            handle.result(0)
        assert (caught.value.name, caught.value.jid) == ("download", handle.jids[0])
        assert store.call("EXISTS", "queue:images") == 0
        (dead,) = DeadSet(store=store)
        dead.retry()
        worker.during = fine
        for queue in ("default", "images", "default"):
            worker.run(queue)
        assert handle.result(0) == "<a>@10!"

    def test_other_ends(self, resize: Any, publish: Any, worker: Worker, setup: Setup, store: Store) -> None:
        @job(retry=False)
        def discarded(url: str) -> str:
            raise ValueError(url)

        @job(expires_in=0.000001)
        def late(url: str) -> str:
            return url

        @job
        def normal(url: str) -> str:
            raise NormalFailure("no such page")

        handles = [enqueued(each.then(resize).then(publish), "a") for each in (discarded, late, normal)]
        for _ in handles:
            worker.run()

        with pytest.raises(JobFailed, match=r"discarded .* ValueError: a"):
            handles[0].result(0)
        with pytest.raises(JobDropped, match=r"late .* dropped by expiry"):
            handles[1].result(0)
        with pytest.raises(JobFailed, match=r"normal .* no such page"):
            handles[2].result(0)
        assert store.call("EXISTS", "queue:images") == 0

    def test_a_job_that_middleware_did_not_let_run_ends_it(
        self, chain: Chain[..., str], worker: Worker, setup: Setup, store: Store
    ) -> None:
        handle = enqueued(chain, "a")
        setup.server_middleware.add(lambda run, proceed: None)

        assert isinstance(worker.run(), Done)

        with pytest.raises(JobDropped, match=r"download .* dropped by middleware"):
            handle.result(0)
        assert store.call("EXISTS", "queue:images") == 0

    def test_middleware_around_a_job_passes_its_result_on(
        self, chain: Chain[..., str], worker: Worker, setup: Setup, store: Store
    ) -> None:
        enqueued(chain, "a")
        setup.server_middleware.add(lambda run, proceed: proceed())

        worker.run()

        assert queued(store, "images")[0]["args"] == ["<a>", 80]

    @pytest.mark.parametrize(
        ("returned", "words"),
        [
            (object(), "object"),
            ("x" * 1_000_001, "1000000 are passed on at most"),
            (float("inf"), "inf"),
            ("\ud800", "surrogate"),
            (Lazy(RuntimeError("the session is closed")), "the session is closed"),
            (Lazy(ZeroDivisionError("by zero")), "by zero"),
            (Lazy(MemoryError("no room")), "no room"),
            (Lazy(SystemExit("gone")), "gone"),
        ],
        ids=["no_json", "large", "infinite", "half_a_character", "runtime", "arithmetic", "memory", "exit"],
    )
    def test_a_result_that_cannot_be_passed_on_buries_the_next_job(
        self, chain: Chain[..., str], worker: Worker, setup: Setup, store: Store, returned: Any, words: str
    ) -> None:
        reported: list[tuple[str, Any]] = []
        setup.error_handler(lambda error, context: reported.append((context["context"], context["job"]["jid"])))
        handle = enqueued(chain, "a")
        worker.during = lambda _: returned

        assert isinstance(worker.run(), Done)

        (dead,) = DeadSet(store=store)
        assert (dead.name, dead.args, dead.jid, len(dead[THEN])) == ("resize", [None, 80], handle.jids[1], 1)
        assert dead.error_class == "kiqcluster.errors.CannotRun"
        assert words in str(dead.error_message)
        assert f"download {handle.jids[0]}" in str(dead.error_message)
        assert reported == [("end of chain", handle.jids[0])]
        with pytest.raises(JobFailed, match=r"resize .* cannot be passed on"):
            handle.result(0)
        assert store.call("EXISTS", "queue:images") == 0

    def test_what_the_size_limiter_refuses_is_buried_and_what_it_compresses_runs(
        self, chain: Chain[..., str], worker: Worker, setup: Setup, store: Store
    ) -> None:
        worker.during = lambda _: "x" * 200_000
        setup.configure(size_limiter={"mode": "compress", "limit": "100kB"})
        setup.config = None
        enqueued(chain, "a")
        worker.run()
        assert queued(store, "images")[0]["compressed"] is True
        worker.run("images")
        assert [len(data) for data, _ in worker.ran] == [200_000]

        setup.configure(size_limiter={"mode": "raise", "limit": "100kB"})
        store.call("DEL", "queue:low")
        enqueued(chain, "a")
        worker.run()

        (dead,) = DeadSet(store=store)
        assert (dead.name, dead.args) == ("resize", [None, 80])
        assert "100000" in str(dead.error_message)

    def test_only_who_holds_the_job_pushes_the_next_one(
        self, chain: Chain[..., str], worker: Worker, store: Store
    ) -> None:
        enqueued(chain, "a")
        lost = worker.take()
        outcome = worker.execute(lost)
        worker.recover(worker.name)
        worker.engine.join(worker.member)

        assert worker.settle(lost, outcome) == 0
        assert store.call("EXISTS", "queue:images") == 0
        worker.run()
        assert len(queued(store, "images")) == 1

    def test_a_queue_of_the_wrong_type_keeps_the_job_until_it_is_mended(
        self, chain: Chain[..., str], worker: Worker, store: Store
    ) -> None:
        enqueued(chain, "a")
        store.call("SET", "queue:images", "text")
        unit = worker.take()
        outcome = worker.execute(unit)
        with pytest.raises(RedisRefused, match="WRONGTYPE lpush"):
            worker.settle(unit, outcome)
        store.call("DEL", "queue:images")

        assert worker.settle(unit, outcome) == 1
        assert len(queued(store, "images")) == 1

    def test_a_cancelled_last_job_does_not_run(
        self, chain: Chain[..., str], worker: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = enqueued(chain, "a")
        assert not kiqcluster.cancel(handle.jid)  # it does not wait yet, and has a mark
        marks = [jid.decode() for jid in store.call("ZRANGE", store.keys.cancelled, 0, -1)]
        known = Marks(frozenset(marks), frozenset())  # as the heartbeat has a worker know them
        monkeypatch.setattr(CANCELLATIONS, "marks", known)
        current_stacks().run.ask_again()

        outcomes = [worker.run(queue) for queue in ("default", "images", "low")]

        assert [type(each) for each in outcomes] == [Done, Done, Dropped]
        with pytest.raises(JobDropped, match="publish"):
            handle.result(0)
        monkeypatch.undo()
        current_stacks().run.ask_again()

    def test_foreign_bytes_in_the_key_end_the_chain_and_are_reported(
        self, download: Any, worker: Worker, setup: Setup, store: Store
    ) -> None:
        """No client of ours writes such a key: half a pair is written as JSON can write it."""
        reported: list[Exception] = []
        setup.error_handler(lambda error, _context: reported.append(error))
        odd = {"class": "A", "queue": "q", "jid": "j", "args": {}}
        for value in ("text", [{"class": "A"}], [7], odd, [{**odd, "args": [], "queue": "\ud800"}]):
            Client().push({"class": download, "args": ["a"]})
            payload = json.loads(store.call("RPOP", "queue:default"))
            store.call("LPUSH", "queue:default", json.dumps({**payload, THEN: value}))
            assert isinstance(worker.run(), Done)

        assert [type(each) for each in reported] == [ValueError] * 5

    @pytest.mark.parametrize("ttl", [10**30, 10**400, -1, 0, True, 1.5, "1"], ids=shortly)
    def test_a_forged_time_of_a_result_keeps_no_job(self, worker: Worker, store: Store, ttl: object) -> None:
        @job(retry=0)
        def fail() -> None:
            raise ValueError("no luck")

        last = {"class": "A", "queue": "q", "jid": "j", "args": [None], KEPT_RESULT_TTL: ttl}
        Client().push({"class": fail, "args": [], THEN: [last]})

        assert isinstance(worker.run(), Dead)

        assert store.call("EXISTS", "kiq:result:j") == 0

    @pytest.mark.parametrize("duration", [10**400, 10**30, -1, True, "1"], ids=shortly)
    def test_a_forged_time_to_live_loses_no_job(
        self, download: Any, worker: Worker, store: Store, duration: object
    ) -> None:
        following = {"class": "A", "queue": "q", "jid": "j", "args": [None], "expires_in": duration}
        Client().push({"class": download, "args": ["a"], THEN: [following]})

        worker.run()

        (pushed,) = queued(store, "q")
        assert pushed["args"] == ["<a>"]
        assert "expiry" not in pushed

    def test_a_time_to_live_begins_with_the_push_of_the_job(
        self, download: Any, resize: Any, worker: Worker, store: Store
    ) -> None:
        enqueued(download.then(resize.set(expires_in=60)), "a")
        assert "expiry" not in queued(store, "default")[0][THEN][0]

        worker.run()

        (pushed,) = queued(store, "images")
        assert abs(pushed["expiry"] - pushed["enqueued_at"] - 60) < 0.01


class TestBatches:
    def test_a_chain_is_a_callback_of_a_batch(self, resize: Any, publish: Any, worker: Worker, store: Store) -> None:
        @job(queue="rows")
        def handle_row(number: int) -> None: ...

        @job
        def report(batch: str) -> int:
            return Batch.get(batch).status().finish

        @job
        def mail(count: int, to: str) -> None:
            worker.ran.append((count, to))

        Batch.create("import", handle_row, [[1], [2]], on_complete=report.set(queue="reports").then(mail, "ann"))
        for queue in ("rows", "rows", "reports", "default"):
            worker.run(queue)

        assert worker.ran == [(2, "ann")]

    def test_a_chain_is_no_job_of_a_batch(self, chain: Chain[..., str]) -> None:
        with pytest.raises(InvalidPush, match=r"class is a job.* no chain .*current_batch\(\).add"):
            Batch.create("import", chain, [["a"]])
