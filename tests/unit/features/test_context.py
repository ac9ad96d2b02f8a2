"""Context: which keys a push gets from its caller, and what a job passes on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kiqcluster import Client, application_context, current_context, current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import InvalidPush, UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Deferred, Done, Outcome, Retry
from kiqcluster.sidekiq.ruby_json import decode, members
from kiqcluster.testing import inline
from tests.carried import golden_payloads
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_execution import Worker, fail

CATTR = {"user": {"_aj_globalid": "gid://shop/User/7"}, "tenant": "x"}
REQUEST = {"correlation_id": "r-1", "meta.caller_id": "POST /orders", "meta.user": "ann"}
FROM_RUBY = {"correlation_id": "r-1", "locale": "de", "cattr": CATTR, "cattr_1": {"zone": "Bern"}}


@pytest.fixture
def mail(registry: Registry) -> Any:
    @job
    def mail(number: int) -> None: ...

    return mail


def context_of(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a payload that are about its caller."""
    ordinary = {"retry", "queue", "args", "class", "jid", "created_at", "enqueued_at"}
    return {key: value for key, value in payload.items() if key not in ordinary}


class TestPush:
    def test_without_context_a_payload_is_as_ever(self, mail: Any, written: Written) -> None:
        mail.perform_async(1)
        mail.perform_bulk([[1]])

        assert [context_of(each) for each in written.payloads()] == [{}, {}]

    def test_all_pushes_of_a_block_have_its_facts(self, mail: Any, written: Written) -> None:
        with application_context(correlation_id="r-1", caller_id="POST /orders", user="ann"):
            mail.perform_async(1)
            mail.perform_in(60, 1)
            mail.perform_bulk([[1], [2]])
            Client().push({"class": "Ruby::Job", "args": []})
            Client().push_bulk({"class": "Ruby::Job", "args": [[]]})
        mail.perform_async(2)

        *inside, outside = map(context_of, written.payloads())
        assert inside == [{**REQUEST, "meta.root_caller_id": "POST /orders"}] * 6
        assert outside == {}

    def test_ruby_finds_retry_and_queue_first_and_the_times_last(self, mail: Any, written: Written) -> None:
        with application_context(correlation_id="r-1"):
            mail.perform_async(1)
            mail.perform_bulk([[1]])

        order = ["retry", "queue", "correlation_id", "args", "class", "jid", "created_at", "enqueued_at"]
        assert [list(each) for each in written.payloads()] == [order, order]

    def test_a_key_that_the_push_names_itself_stays(self, written: Written) -> None:
        with application_context(correlation_id="r-1", locale="de", user="ann"):
            Client().push({"class": "X", "args": [], "locale": "fr", "meta.user": "bob"})

        (payload,) = written.payloads()
        assert (payload["locale"], payload["meta.user"], payload["correlation_id"]) == ("fr", "bob", "r-1")

    def test_an_outermost_block_makes_a_correlation_id_and_an_inner_one_keeps_it(
        self, mail: Any, written: Written
    ) -> None:
        with application_context(user="ann") as outer, application_context(step=2, user=None) as inner:
            mail.perform_async(1)
        with application_context() as other:
            pass

        (payload,) = written.payloads()
        assert context_of(payload) == dict(inner) == {"correlation_id": outer["correlation_id"], "meta.step": 2}
        assert len(outer["correlation_id"]) == 32
        assert other["correlation_id"] != outer["correlation_id"]

    def test_the_first_caller_stays_the_root(self) -> None:
        with application_context(caller_id="POST /orders"), application_context(caller_id="Invoices.close") as keys:
            assert (keys["meta.caller_id"], keys["meta.root_caller_id"]) == ("Invoices.close", "POST /orders")

    def test_a_block_that_ends_by_an_error_ends(self) -> None:
        with pytest.raises(KeyError), application_context(user="ann"):
            raise KeyError
        assert current_context() == {}

    def test_each_context_of_variables_has_its_own(self, mail: Any, written: Written) -> None:
        with application_context(user="ann"):
            other = contextvars.Context().run(current_context)
            thread = threading.Thread(target=mail.perform_async, args=[1])
            thread.start()
            thread.join()

        assert (other, context_of(written.payloads()[0])) == ({}, {})

    def test_what_comes_from_a_header_is_cut_and_made_text(self) -> None:
        with application_context(correlation_id="x" * 9_999, agent="\ud800") as keys:
            assert (keys["correlation_id"], keys["meta.agent"]) == ("x" * 255, "?")

    @pytest.mark.parametrize(
        "facts", [{"user": ["ann"]}, {"user": float("nan")}, {"cattr": [1]}, {"cattr": {"at": object()}}]
    )
    def test_what_is_no_fact_is_refused(self, facts: Any) -> None:
        with pytest.raises(UsageError, match=r"application_context\("), application_context(**facts):
            raise AssertionError("entered")


class TestJob:
    """What a job reads of its caller, and passes on."""

    @pytest.fixture
    def parent(self, mail: Any) -> list[JobContext]:
        """A job that enqueues others; what it was told."""
        told: list[JobContext] = []

        @job
        def parent() -> None:
            running = current_job()
            assert running is not None
            told.append(running)
            mail.perform_async(1)
            mail.perform_bulk([[1]])

        return told

    def test_what_its_caller_said_goes_on_with_the_job_as_the_caller(
        self, worker: Worker, written: Written, parent: list[JobContext]
    ) -> None:
        assert worker.run("parent", **REQUEST) == Done()

        expected = {**REQUEST, "meta.caller_id": "parent", "meta.root_caller_id": "POST /orders"}
        assert [context_of(each) for each in written.payloads()] == [expected] * 2

    def test_grandchildren_keep_the_root(self, worker: Worker, written: Written, parent: list[JobContext]) -> None:
        worker.run("parent", **REQUEST)
        worker.run("parent", **context_of(written.payloads()[0]))

        grandchild = written.payloads()[2]
        assert (grandchild["meta.caller_id"], grandchild["meta.root_caller_id"]) == ("parent", "POST /orders")

    def test_locale_and_attributes_of_a_ruby_caller_go_on(
        self, worker: Worker, written: Written, parent: list[JobContext]
    ) -> None:
        worker.run("parent", **FROM_RUBY)

        own = {"meta.caller_id": "parent", "meta.root_caller_id": "parent"}
        assert [context_of(each) for each in written.payloads()] == [{**FROM_RUBY, **own}] * 2

    def test_only_of_a_context_the_caller_is_named(
        self, worker: Worker, written: Written, parent: list[JobContext]
    ) -> None:
        worker.run("parent")
        worker.run("parent", locale="de", tags=["x"], version=0, backtrace=True)

        without, *_, with_locale = map(context_of, written.payloads())
        assert (without, with_locale) == ({}, {"locale": "de"})

    @pytest.mark.parametrize(
        "keys", [{"correlation_id": 7}, {"locale": ["de"]}, {"cattr": "x"}, {"cattr_1": None}, {"meta.user": {}}]
    )
    def test_values_that_are_of_no_use_stay_behind(
        self, worker: Worker, written: Written, parent: list[JobContext], keys: dict[str, Any]
    ) -> None:
        assert worker.run("parent", **keys) == Done()

        assert [context_of(each) for each in written.payloads()] == [{}, {}]
        (told,) = parent
        assert (told.correlation_id, told.locale, told.cattr) == (None, None, {})

    def test_it_reads_what_its_caller_said(self, worker: Worker, written: Written, parent: list[JobContext]) -> None:
        worker.run("parent", **FROM_RUBY, **{"meta.user": "ann"})
        worker.run("parent")

        told, bare = parent
        assert (told.correlation_id, told.locale, told.meta, told.cattr) == ("r-1", "de", {"user": "ann"}, CATTR)
        assert (bare.correlation_id, bare.locale, bare.meta, bare.cattr) == (None, None, {}, {})

    def test_a_block_inside_of_a_job_adds_to_it(self, worker: Worker, written: Written, mail: Any) -> None:
        @job
        def closing() -> None:
            with application_context(user="bob", locale="en"):
                mail.perform_async(1)
            mail.perform_async(2)

        worker.run("closing", **REQUEST, locale="de")

        inside, outside = map(context_of, written.payloads())
        assert (inside["meta.user"], inside["locale"], inside["meta.caller_id"]) == ("bob", "en", "closing")
        assert (outside["meta.user"], outside["locale"]) == ("ann", "de")

    def test_a_job_that_runs_inside_of_a_block_has_its_own(self, setup: Setup, registry: Registry) -> None:
        seen: list[dict[str, Any]] = []
        job(name="leaf")(lambda: seen.append(current_context()))
        with inline(), application_context(correlation_id="r-1", caller_id="POST /orders"):
            Client().push({"class": "leaf", "args": []})

        assert seen[0]["meta.caller_id"] == "leaf"
        assert seen[0]["meta.root_caller_id"] == "POST /orders"

    @pytest.mark.parametrize("place", ["block", "job"])
    def test_an_inline_run_has_the_context_of_a_push(self, worker: Worker, setup: Setup, place: str) -> None:
        """Middleware sees it in the payload; the jobs that it enqueues are those of the caller."""
        seen: list[dict[str, Any]] = []

        @setup.server_middleware.add
        def link(run: Run, proceed: Any) -> Outcome | None:
            if run.job is not None and run.job.name == "leaf":
                seen.append(context_of(run.payload))
            return proceed()  # type: ignore[no-any-return]

        leaf: Any = job(name="leaf")(lambda: seen.append(current_context()))
        job(name="outer")(lambda: leaf.perform_inline())
        if place == "job":
            assert worker.run("outer", **REQUEST) == Done()
        else:
            with application_context(correlation_id="r-1", caller_id="POST /orders", user="ann"):
                leaf.perform_inline()

        in_job = {"meta.caller_id": "outer", "meta.root_caller_id": "POST /orders"}
        expected = REQUEST | (in_job if place == "job" else {"meta.root_caller_id": "POST /orders"})
        assert seen == [expected, expected]

    @pytest.mark.parametrize("run", [{"name": "broken"}, {"name": "Newcomer"}])
    def test_a_retry_and_a_deferral_keep_all_keys(self, worker: Worker, run: dict[str, Any]) -> None:
        job(name="broken")(fail)

        outcome = worker.run(**run, **FROM_RUBY, **{"meta.user": "ann"})

        assert isinstance(outcome, Retry | Deferred)
        assert decode(outcome.payload).items() >= {**FROM_RUBY, "meta.user": "ann"}.items()

    def test_what_it_passes_on_is_looked_for_once(self, written: Written, mail: Any) -> None:
        context = JobContext({"correlation_id": "r-1"}, "default", "mail", threading.Event())
        token = CURRENT_JOB.set(context)
        try:
            mail.perform_async(1)
            kept = context.passed_on
            mail.perform_async(2)
        finally:
            CURRENT_JOB.reset(token)

        assert kept is not None
        assert context.passed_on is kept


class TestAttributesOfSidekiq8:
    """From 8 on they are a list of pairs in ActiveJob's form (tests/golden/payloads.json)."""

    @pytest.fixture
    def theirs(self) -> dict[str, bytes]:
        """The keys of a payload that real Sidekiq 8.1.7 has pushed, as bytes."""
        raw = next(each["bytes"] for each in golden_payloads() if each["what"] == "attributes of two classes")
        return {key: bytes(value) for key, value in members(raw).items() if key.startswith("cattr")}

    @pytest.fixture
    def old_json(self) -> Iterator[None]:
        """Write floats as the Ruby that wrote them; the configuration is read at a push."""
        ruby_json.write_floats_as("2.6")
        yield
        ruby_json.write_floats_as("2.12")

    def test_a_job_reads_them_by_name(self, worker: Worker, theirs: dict[str, bytes]) -> None:
        told: list[Any] = []

        @job
        def reads() -> None:
            running = current_job()
            assert running is not None
            told.extend((running.cattr, running.cattrs))

        worker.run("reads", **{key: decode(value) for key, value in theirs.items()})

        first = {
            "tenant": "acme é",
            "user_id": 7,
            "since": datetime(2026, 11, 27, 12, tzinfo=UTC),
            "role": "admin",
            "limit": "12.5",
            "flags": {"beta": True, "list": [1, 2.5]},
        }
        assert told == [first, {"cattr": first, "cattr_1": {"zone": "Bern", "rate": 1e-07}}]

    def test_its_children_get_the_same_bytes(
        self, worker: Worker, setup: Setup, written: Written, theirs: dict[str, bytes], old_json: None
    ) -> None:
        setup.config = Config(ruby_json="2.6")

        @job
        def child(*_: Any) -> None: ...

        @job
        def parent() -> None:
            child.perform_async()
            child.perform_bulk([[]])
            child.then(child).perform_async()

        assert worker.run("parent", **{key: decode(value) for key, value in theirs.items()}) == Done()

        pushed = written.raw()
        following = bytes(members(pushed[-1])["kiq_then"])[1:-1]
        for raw in (*pushed, following):
            assert {key: bytes(value) for key, value in members(raw).items() if key.startswith("cattr")} == theirs

    def test_a_push_takes_them(self, written: Written, theirs: dict[str, bytes]) -> None:
        Client().push({"class": "X", "args": [], **{key: decode(value) for key, value in theirs.items()}})

        assert decode(written.raw()[0])["cattr"] == decode(theirs["cattr"])

    @pytest.mark.parametrize("odd", ["x", 5, True, False])
    def test_a_push_refuses_what_a_page_of_ruby_cannot_show(self, written: Written, odd: Any) -> None:
        with pytest.raises(InvalidPush, match="cattr"):
            Client().push({"class": "X", "args": [], "cattr": odd})

        Client().push({"class": "X", "args": [], "cattr": None, "tags": [1, None]})
        assert len(written.raw()) == 1

    @pytest.mark.parametrize("odd", [None, "x", 5, [1], [[1, 2, 3]], [[[], 1]], [[5, 1]]])
    def test_what_is_none_is_read_as_nothing_and_stays_behind(
        self, worker: Worker, written: Written, mail: Any, odd: Any
    ) -> None:
        read: list[Any] = []

        @job
        def parent() -> None:
            running = current_job()
            assert running is not None
            read.append(running.cattr)
            mail.perform_async(1)

        worker.run("parent", cattr=odd)

        assert len(read) == 1
        if not isinstance(odd, list):
            assert read == [{}]
            assert context_of(written.payloads()[0]) == {}
