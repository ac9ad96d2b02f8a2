"""Tasks declared as in Celery: what they push, how they run, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kiqcluster import limits
from kiqcluster.application.registry import Registry, current_registry
from kiqcluster.contrib import celery
from kiqcluster.contrib.celery import Celery, MaxRetriesExceededError, Retry, Unsupported, shared_task
from kiqcluster.contrib.celery.declare import NO_END, Retries, rate_limit
from kiqcluster.errors import InvalidArguments, InvalidPush, JobTimedOut, MisfitArguments
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import KILL
from kiqcluster.testing import Fake, dead, drain, enqueued, frozen_clock, retries

NOTES: list[Any] = []


@pytest.fixture(autouse=True)
def _own(registry: Registry, setup: Setup) -> None:
    NOTES.clear()


@pytest.fixture
def kept(setup: Setup, kiq_fake: Fake) -> Iterator[Fake]:
    """Keep the jobs of the test's own set-up in memory."""
    from kiqcluster.testing import fake

    with fake() as jobs:
        yield jobs


class TestDeclarations:
    def test_a_task_has_the_name_that_celery_gives_it(self) -> None:
        app = Celery("shop")

        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        assert add.name == f"{__name__}.add"
        assert current_registry().get(add.name) is add.definition
        assert add(2, 3) == 5

    def test_options_become_options_of_the_job(self) -> None:
        @shared_task(
            name="Acme::Sync",
            queue="slow",
            max_retries=7,
            time_limit=60,
            soft_time_limit=50,
            expires=30,
            rate_limit="10/m",
            acks_late=True,
            serializer="json",
        )
        def sync() -> None: ...

        assert sync.definition.options == {"retry": 7, "queue": "slow", "expires_in": 30}
        assert sync.definition.local["timeout_hard"] == 60
        assert sync.definition.local["timeout"] == 50
        assert sync.definition.local["rate_limit"] == limits.sliding_window(10, 60)
        assert sync.definition.local["result_ttl"] == 86_400

    def test_a_task_that_ignores_its_result_keeps_none(self) -> None:
        @shared_task(ignore_result=True, max_retries=None)
        def quiet() -> None: ...

        assert "result_ttl" not in quiet.definition.local
        assert quiet.definition.options["retry"] == NO_END

    @pytest.mark.parametrize(
        ("options", "counterpart"),
        [
            ({"base": object}, "death_handler"),
            ({"acks_late": False}, "always True"),
            ({"serializer": "pickle"}, "JSON"),
            ({"retry_jitter": False}, "always True"),
            ({"routing_key": "a.b"}, "queue="),
            ({"priority": 5}, "queue of their own"),
            ({"retry_backoff": True}, "autoretry_for"),
            ({"rate_limit": "10/day"}, "10/m"),
            ({"throws": (ValueError,)}, "RetryError"),
            ({"what": 1}, "does not know it"),
        ],
    )
    def test_an_option_without_effect_is_refused(self, options: dict[str, Any], counterpart: str) -> None:
        with pytest.raises(Unsupported, match=counterpart):

            @shared_task(name="refused", **options)
            def refused() -> None: ...

        assert current_registry().get("refused") is None

    def test_a_coroutine_is_refused(self) -> None:
        with pytest.raises(Unsupported, match=r"kiqcluster\.job"):

            @shared_task
            async def fetch() -> None: ...

    @pytest.mark.parametrize(
        "name", ["chain", "group", "chord", "signature", "Task", "crontab", "Ignore", "current_task"]
    )
    def test_a_name_of_celery_without_effect_names_its_counterpart(self, name: str) -> None:
        if name == "Task":  # is there for annotations
            with pytest.raises(Exception, match="hooks"):
                type("Base", (celery.Task,), {})
            return
        with pytest.raises(Unsupported, match=r"docs/|raise|return|remove"):
            getattr(celery, name)

    def test_any_other_name_is_an_ordinary_mistake(self) -> None:
        with pytest.raises(AttributeError):
            celery.shard_task  # noqa: B018


class TestArguments:
    @pytest.mark.parametrize(
        ("args", "kwargs", "wire"),
        [((1,), {}, [1]), ((), {"y": 2, "x": 1}, [1, 2]), ((1,), {"z": 5}, [1, 0, 5])],
    )
    def test_keywords_travel_at_their_positions(
        self, kept: Fake, args: tuple[Any, ...], kwargs: dict[str, Any], wire: list[Any]
    ) -> None:
        @shared_task
        def add(x: int, y: int = 0, z: int = 0) -> None:
            NOTES.append((x, y, z))

        add.delay(*args, **kwargs)
        add.apply_async(args, kwargs)

        assert [job.args for job in enqueued()] == [wire, wire]
        drain()
        assert [tuple([*wire, 0, 0][:3])] * 2 == NOTES

    @pytest.mark.parametrize(
        ("args", "kwargs", "wire"),
        [((7,), {"fmt": "pdf"}, [7, "a", {"fmt": "pdf"}]), ((7, "b"), {}, [7, "b", {}])],
    )
    def test_keyword_only_parameters_travel_in_one_object_at_the_end(
        self, kept: Fake, args: tuple[Any, ...], kwargs: dict[str, Any], wire: list[Any]
    ) -> None:
        @shared_task
        def export(order_id: int, kind: str = "a", *, fmt: str = "csv") -> None:
            NOTES.append((order_id, kind, fmt))

        export.delay(*args, **kwargs)

        assert [job.args for job in enqueued()] == [wire]
        drain()
        assert [(wire[0], wire[1], wire[2].get("fmt", "csv"))] == NOTES

    def test_a_push_from_ruby_may_leave_the_object_out(self, kept: Fake) -> None:
        from kiqcluster import Client

        @shared_task(name="Export")
        def export(order_id: int, *rest: int, fmt: str = "csv", **more: Any) -> None:
            NOTES.append((order_id, rest, fmt, more))

        Client().push({"class": "Export", "args": [7]})
        Client().push({"class": "Export", "args": [7, 8, {"fmt": "pdf", "x": 1}]})
        drain()

        assert NOTES == [(7, (), "csv", {}), (7, (8,), "pdf", {"x": 1})]

    @pytest.mark.parametrize("kwargs", [{}, {"x": 1, "what": 2}, {"x": datetime(2030, 1, 1, tzinfo=UTC)}])
    def test_arguments_that_do_not_fit_are_refused_at_the_push(self, kept: Fake, kwargs: dict[str, Any]) -> None:
        @shared_task
        def one(x: Any) -> None: ...

        with pytest.raises(InvalidArguments):
            one.delay(**kwargs)
        assert enqueued() == []


class TestCalls:
    def test_options_of_a_call(self, kept: Fake) -> None:
        @shared_task
        def mail(user: int) -> None: ...

        with frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
            mail.apply_async((1,), countdown=60, queue="mailers", task_id="abc", expires=90)
            mail.apply_async((2,), eta=datetime(2030, 1, 2, tzinfo=UTC))
            mail.apply_async((3,), expires=datetime(2030, 1, 1, 0, 5, tzinfo=UTC))
            now = clock.now()

        first, second, third = enqueued()
        assert (first.at, first.queue, first.jid) == (now + 60, "mailers", "abc")
        assert first.payload["expiry"] == now + 90  # counted from the push, as in Celery
        assert second.at == now + 86_400
        assert third.payload["expiry"] == now + 300

    @pytest.mark.parametrize(
        ("options", "counterpart"),
        [
            ({"link": object()}, "chain"),
            ({"priority": 3}, "queue of their own"),
            ({"countdown": 1, "eta": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
            ({"countdown": 60, "expires": 30}, "never run"),
            ({"serializer": "pickle"}, "JSON"),
            ({"retry": False}, "StoreError"),
            ({"ignore_result": True}, "declare"),
            ({"what": 1}, "does not know it"),
        ],
    )
    def test_an_option_without_effect_is_refused(self, kept: Fake, options: dict[str, Any], counterpart: str) -> None:
        @shared_task
        def mail() -> None: ...

        with pytest.raises(Unsupported, match=counterpart):
            mail.apply_async(**options)
        assert enqueued() == []

    def test_a_time_without_a_zone_is_refused(self, kept: Fake) -> None:
        @shared_task
        def mail() -> None: ...

        with pytest.raises(InvalidPush, match="no time zone"):
            mail.apply_async(eta=datetime(2030, 1, 1))  # noqa: DTZ001

    @pytest.mark.parametrize("name", ["s", "si", "signature", "map", "starmap", "chunks", "update_state", "replace"])
    def test_canvas_is_refused(self, name: str) -> None:
        @shared_task
        def mail() -> None: ...

        with pytest.raises(Unsupported, match=r"docs/|push the jobs"):
            getattr(mail, name)

    def test_a_task_is_sent_by_its_name(self, kept: Fake) -> None:
        app = Celery("shop")

        @app.task(name="known")
        def known(x: int, y: int) -> None: ...

        app.send_task("known", kwargs={"y": 2, "x": 1}, queue="q")
        app.send_task("elsewhere", [3], countdown=60)
        with pytest.raises(Unsupported, match="positions of y"):
            app.send_task("elsewhere", kwargs={"y": 2})

        assert [(job.name, job.args, job.queue) for job in enqueued()] == [
            ("known", [1, 2], "q"),
            ("elsewhere", [3], "default"),
        ]

    def test_apply_runs_the_task_here(self) -> None:
        @shared_task
        def halve(x: int) -> float:
            return 1 / x

        assert halve.apply((2,)).get() == 0.5
        failed = halve.apply((0,))
        assert (failed.status, type(failed.result)) == ("FAILURE", ZeroDivisionError)


class TestRetries:
    def test_retry_runs_the_task_again_with_its_number(self, kept: Fake) -> None:
        @shared_task(bind=True, max_retries=2)
        def flaky(self: Any, x: int) -> None:
            NOTES.append((self.request.id, self.request.retries, self.request.args, self.request.called_directly))
            self.retry(exc=ValueError("not yet"), countdown=5)

        jid = flaky.delay(7).id
        for _ in range(3):
            drain(retries=True, raise_errors=False)

        assert [(jid, count, (7,), False) for count in range(3)] == NOTES
        assert [(job.error_class, job.error_message) for job in dead()] == [("ValueError", "not yet")]

    def test_the_delay_is_the_countdown_without_jitter(self, kept: Fake) -> None:
        @shared_task(bind=True, default_retry_delay=500)
        def flaky(self: Any, countdown: int | None) -> None:
            raise self.retry(countdown=countdown)

        with frozen_clock() as clock:
            flaky.delay(100)
            flaky.delay(None)
            flaky.delay(0)
            drain(raise_errors=False)
            delays = sorted(round((job.at or 0) - clock.now(), 2) for job in retries())

        assert delays == [0, 100, 500]

    def test_a_failure_that_nobody_retries_is_dead_at_once(self, kept: Fake) -> None:
        @shared_task
        def fails() -> None:
            raise ValueError("no")

        fails.delay()
        drain(raise_errors=False)

        assert retries() == []
        assert [job.error_message for job in dead()] == ["no"]

    def test_named_errors_are_retried(self, kept: Fake) -> None:
        @shared_task(autoretry_for=(LookupError,), dont_autoretry_for=(KeyError,), retry_kwargs={"max_retries": 1})
        def fails(key: bool) -> None:
            raise KeyError("k") if key else IndexError("i")

        fails.delay(True)
        fails.delay(False)
        drain(raise_errors=False)

        assert [job.args for job in retries()] == [[False]]
        assert [job.args for job in dead()] == [[True]]
        drain(retries=True, raise_errors=False)
        assert sorted(job.args for job in dead()) == [[False], [True]]

    def test_without_an_error_of_its_own_the_last_one_says_so(self, kept: Fake) -> None:
        @shared_task(bind=True, max_retries=0)
        def flaky(self: Any) -> None:
            try:
                self.retry()
            except self.MaxRetriesExceededError:
                NOTES.append("caught")
                raise

        flaky.delay()
        drain(raise_errors=False)

        assert NOTES == ["caught"]
        assert len(dead()) == 1

    def test_more_retries_than_declared_are_refused(self, kept: Fake) -> None:
        @shared_task(bind=True)
        def flaky(self: Any) -> None:
            self.retry(max_retries=10)

        flaky.delay()
        with pytest.raises(Unsupported, match="declare max_retries=10"):
            drain()

    @pytest.mark.parametrize("options", [{"args": (1,)}, {"queue": "q"}, {"priority": 1}])
    def test_an_option_without_effect_is_refused(self, kept: Fake, options: dict[str, Any]) -> None:
        @shared_task(bind=True)
        def flaky(self: Any) -> None:
            self.retry(**options)

        flaky.delay()
        with pytest.raises(Unsupported):
            drain()

    def test_a_direct_call_raises_the_error_itself(self) -> None:
        @shared_task(bind=True)
        def flaky(self: Any, exc: Exception | None) -> None:
            assert self.request.id is None
            self.retry(exc=exc)

        with pytest.raises(ValueError, match="x"):
            flaky(ValueError("x"))
        with pytest.raises(Retry):
            flaky(None)

    def test_an_attribute_of_the_request_that_is_not_there_names_its_counterpart(self) -> None:
        @shared_task(bind=True)
        def host(self: Any) -> str:
            return self.request.hostname

        with pytest.raises(Unsupported, match="log lines"):
            host()

    def test_delays(self) -> None:
        backoff = Retries(max_retries=None, retried=(Exception,), backoff=2, max_backoff=100)
        plain = Retries(retried=(Exception,), seconds=9)

        assert [backoff.retry_in(count, ValueError()) for count in (0, 1, 5, 6, 10_000)] == [2, 4, 64, 100, 100]
        assert plain.retry_in(0, ValueError()) == 9
        assert plain.retry_in(0, JobTimedOut("x", "timeout", 1)) == 9
        assert plain.retry_in(0, JobTimedOut("x", "timeout_hard", 1)) is KILL
        assert plain.retry_in(0, MaxRetriesExceededError()) is KILL
        assert plain.retry_in(0, MisfitArguments("x")) is KILL

    def test_rates(self) -> None:
        assert rate_limit("t", 5) == limits.sliding_window(5, 1)
        assert rate_limit("t", "100/h") == limits.sliding_window(100, 3_600)
        assert rate_limit("t", "0.5/m") == limits.sliding_window(1, 120)
