"""Execution: a unit goes in, an outcome comes out, whatever the job, the payload, hooks and handlers do."""

from __future__ import annotations

import datetime
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NoReturn

import pytest

from kiqcluster import DISCARD, KILL, Interrupted, Job, current_job, job
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import NormalFailure, RedisRefused, RedisUnavailable, RetryError, StoreError, UsageError
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.hooks.run_hooks import ServerFeature
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events, Fields
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Run, Runtime, Setup
from kiqcluster.process.tallies import MIN_CPU_MEASURED_SECONDS
from kiqcluster.sidekiq import backtraces
from kiqcluster.sidekiq.active_job import WRAPPER
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Dropped, Effect, Outcome, Parked, Requeue, Retry
from kiqcluster.sidekiq.outcome import Interrupted as InterruptedOutcome
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, bare, kept
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.run.endings import DEFERRAL_SECONDS, INTERRUPTED_DELAY_SECONDS, MAX_DEFERRALS
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.run_report import UNREGISTERED
from tests.kit import ManualClock

JID = "a" * 24


class Worker:
    """An execution and what it said: to error handlers, to death handlers, as events, as metrics."""

    def __init__(self, setup: Setup, registry: Registry, config: Config | None = None, slot: int | None = None) -> None:
        self.setup = setup
        self.clock = ManualClock()
        self.stopping = threading.Event()
        self.reported: list[tuple[Exception, dict[str, Any]]] = []
        self.told_of_deaths: list[tuple[dict[str, Any], Exception]] = []
        self.events: list[tuple[str, Fields]] = []
        setup.error_handler(lambda error, context: self.reported.append((error, context)))
        setup.death_handler(lambda payload, error: self.told_of_deaths.append((payload, error)))
        events = Events()
        events.listen(lambda event, fields: self.events.append((event, fields)))
        self.metrics = JobMetrics(1, list)
        runtime = Runtime(config or Config(), setup.current_store(), setup, events, self.clock, Random(1), slot)
        self._parts = (runtime, registry, self.metrics, self.stopping)
        self.verdict: BeginVerdict | StoreError = GO
        self.asked: list[Sequence[Effect]] = []
        self.execution = Execution(*self._parts)

    def play(self, *features: ServerFeature) -> None:
        """Have features in force from here on; begin rows get `verdict`."""
        with using_stacks(Stacks(server=features)):
            self.execution = Execution(*self._parts, begin_run=self._begin_run)

    def _begin_run(self, unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
        self.asked.append(rows)
        if isinstance(self.verdict, StoreError):
            raise self.verdict
        return self.verdict

    def run_bytes(self, raw: bytes, queue: str = "default") -> Outcome:
        return self.execution.execute(JobRun(Unit(queue, raw, "token", "me"), self.clock.now()))

    def run(self, name: str, *args: Any, **keys: Any) -> Outcome:
        payload = {"retry": True, "queue": "default", "args": list(args), "class": name, "jid": JID, **keys}
        return self.run_bytes(encode(payload))

    def sample(self, suffix: str, name: str, **labels: str) -> float:
        """Return the value of a series of a job."""
        for family in self.metrics.collect():
            for sample in family.samples:
                if (
                    sample.name == f"sidekiq_jobs_{suffix}"
                    and {**labels, "worker": name}.items() <= sample.labels.items()
                ):
                    return sample.value
        return 0.0

    def counted(self) -> dict[tuple[str, str], dict[str, float]]:
        """Return (job, queue) → counters that are not zero, runs by status among them."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        for family in self.metrics.collect():
            for sample in family.samples:
                name = sample.name.removeprefix("sidekiq_jobs_").removesuffix("_total")
                if name == "completion_seconds_count" or sample.name.endswith("_count"):
                    name = sample.labels.get("job_status", "queued")
                elif not sample.name.endswith("_total"):
                    continue
                if sample.value and "worker" in sample.labels:
                    key = (sample.labels["worker"], sample.labels["queue"])
                    found.setdefault(key, {})[name] = sample.value
        return found


@dataclass(eq=False)
class Feature:
    """A feature of the test's own: rows or a verdict at the begin, hooks at the end.

    uses: whether classes declare it.  keys: of payloads that use it; by default those of any job.
    """

    rows: Sequence[Effect] | BeginVerdict = ()
    end: Callable[[JobEnd], Iterable[Effect]] = lambda _end: ()
    instead: Callable[[JobEnd, BaseException], Iterable[Effect]] = lambda _end, _error: ()
    uses: bool = True
    keys: frozenset[str] = frozenset({"jid"})
    name: str = "feature"

    def is_used_by(self, definition: Definition) -> bool:
        return self.uses

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        return self.rows

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        return self.end(end)

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        return self.instead(end, error)


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    """A worker without jobs; the test declares them."""
    return Worker(setup, registry)


def entry(outcome: Outcome) -> dict[str, Any]:
    """Return the payload that an outcome would write; Ruby's pages must be able to show it."""
    assert isinstance(outcome, Retry | Dead | Deferred | InterruptedOutcome)
    payload: dict[str, Any] = decode(outcome.payload)
    if not isinstance(outcome, InterruptedOutcome):
        assert misfits(payload) == []
    return payload


def fail(*_: object) -> NoReturn:
    raise ZeroDivisionError("on purpose")


class TestDone:
    def test_a_job_that_returns_is_done(self, worker: Worker) -> None:
        ran: list[Any] = []

        @job()
        def note(a: int, b: str = "b", *rest: int) -> str:
            ran.append((a, b, rest))
            return "ignored"

        assert worker.run("note", 1) == Done()
        assert worker.run("note", 1, "x", 2, 3) == Done()
        assert ran == [(1, "b", ()), (1, "x", (2, 3))]
        assert worker.reported == worker.told_of_deaths == []
        assert worker.counted() == {("note", "default"): {"done": 2}}

    def test_what_a_job_sets_in_its_context_is_gone_for_the_next_one(self, worker: Worker) -> None:
        tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
        seen: list[str] = []

        @job()
        def serve(name: str) -> None:
            seen.append(tenant.get())
            tenant.set(name)
            seen.append(tenant.get())

        worker.run("serve", "acme")
        worker.run("serve", "other")

        assert seen == ["nobody", "acme", "nobody", "other"]
        assert tenant.get() == "nobody"

    def test_args_that_are_null_or_missing_are_none_as_in_ruby(self, worker: Worker) -> None:
        @job()
        def nothing() -> None: ...

        assert worker.run_bytes(b'{"class":"nothing","args":null}') == Done()
        assert worker.run_bytes(b'{"class":"nothing"}') == Done()

    def test_a_job_sees_itself_while_it_runs_and_nobody_does_afterwards(self, worker: Worker) -> None:
        seen: list[Any] = []

        @job()
        def look() -> None:
            running = current_job()
            assert running is not None
            seen.append((running.jid, running.name, running.queue, running.payload["args"], running.stopping))
            worker.stopping.set()
            seen.append(running.stopping)

        worker.run("look")

        assert seen == [(JID, "look", "default", [], False), True]
        assert current_job() is None

    def test_the_time_that_it_waited_is_counted(self, worker: Worker) -> None:
        @job()
        def nothing() -> None: ...

        worker.run("nothing", enqueued_at=worker.clock.now() - 3)
        worker.run("nothing", enqueued_at=int((worker.clock.now() - 3) * 1_000))
        worker.run("nothing", enqueued_at="yesterday")

        assert worker.counted()["nothing", "default"]["queued"] == 2


class Unawaited:
    def __await__(self) -> Iterator[None]:
        yield


async def unbegun() -> AsyncIterator[int]:
    yield 1


UNBEGUN: dict[str, Callable[[], object]] = {
    "a generator": lambda: (number for number in range(3)),
    "an async_generator": unbegun,
    "a map": lambda: map(print, [1]),
    "a filter": lambda: filter(print, [1]),
    "a Unawaited": Unawaited,
}


class TestFailure:
    @pytest.mark.parametrize("has_middleware", [False, True])
    def test_a_job_that_returns_a_coroutine_has_not_run(self, worker: Worker, has_middleware: bool) -> None:
        async def resize() -> None: ...

        sample = job(name="SampleJob")(lambda: resize())  # as with a decorator that is not async
        if has_middleware:
            worker.setup.server_middleware.add(lambda run, proceed: proceed())

        outcome = worker.run("SampleJob")

        assert type(outcome) is Retry
        assert "returned a coroutine, which nobody awaits" in entry(outcome)["error_message"]
        with pytest.raises(UsageError, match="returned a coroutine"):
            sample.perform_inline()

    @pytest.mark.parametrize("has_middleware", [False, True])
    @pytest.mark.parametrize("kind", UNBEGUN)
    def test_a_job_that_returns_work_which_nobody_begins_has_not_run(
        self, worker: Worker, kind: str, has_middleware: bool
    ) -> None:
        sample = job(name="SampleJob")(lambda: UNBEGUN[kind]())  # as with a decorator that passes it on
        if has_middleware:
            worker.setup.server_middleware.add(lambda run, proceed: proceed())

        outcome = worker.run("SampleJob")

        assert type(outcome) is Retry
        assert f"returned {kind}, which nobody awaits or iterates" in entry(outcome)["error_message"]
        with pytest.raises(UsageError, match=f"returned {kind}"):
            sample.perform_inline()

    def test_a_job_that_returns_an_iterator_which_has_done_its_work_is_done(self, worker: Worker) -> None:
        """A cursor of a database is its own iterator."""
        job(name="SampleJob")(lambda: iter([1]))

        assert type(worker.run("SampleJob")) is Done

    @pytest.mark.parametrize("has_middleware", [False, True])
    def test_a_job_whose_result_lies_about_its_class_is_done(self, worker: Worker, has_middleware: bool) -> None:
        """A lazy object of Django, say, whose class is known once it has been loaded."""

        class Lazy:
            __class__ = property(fail)  # type: ignore[assignment]

        job(name="lazy")(lambda: Lazy())
        if has_middleware:
            worker.setup.server_middleware.add(lambda run, proceed: proceed() or Lazy())  # type: ignore[arg-type, return-value]

        assert worker.run("lazy") == Done()

    def test_an_error_that_lies_about_its_class_is_an_error_like_others(self, worker: Worker) -> None:
        class Lying(Exception):
            __class__ = property(fail)  # type: ignore[assignment]

        @job()
        def lie() -> None:
            raise Lying("why")

        assert entry(worker.run("lie"))["error_message"] == "why"

    def test_a_job_that_fails_is_tried_again_later(self, worker: Worker) -> None:
        job(name="broken")(fail)

        outcome = worker.run("broken")

        now = worker.clock.now()
        assert isinstance(outcome, Retry)
        assert now + 15 <= outcome.at < now + 25
        kept = entry(outcome)
        assert kept.pop("error_backtrace")
        assert kept == {
            "retry": True,
            "queue": "default",
            "args": [],
            "class": "broken",
            "jid": JID,
            "error_class": "ZeroDivisionError",
            "error_message": "on purpose",
            "failed_at": now,
            "retry_count": 0,
        }
        ((error, context),) = worker.reported
        assert isinstance(error, ZeroDivisionError)
        assert (context["context"], context["queue"], context["job"]["jid"]) == ("job", "default", JID)
        assert worker.told_of_deaths == []
        assert worker.counted() == {("broken", "default"): {"fail": 1, "failed": 1}}

    def test_what_is_written_back_are_the_bytes_that_came(self, worker: Worker) -> None:
        job(name="broken")(fail)
        raw = b'{"class":"broken","jid":"x","retry":true,"args":[1.50,1E5,"\\u00e9\\/",12345678901234567890]}'

        outcome = worker.run_bytes(raw)

        assert isinstance(outcome, Retry)
        assert outcome.payload.startswith(raw[:-1] + b',"queue":"default"')

    def test_unknown_keys_travel_on(self, worker: Worker) -> None:
        job(name="broken")(fail)

        payload = entry(worker.run("broken", cattr={"user": 5}, traceparent="00-1-2-00", bid="b"))

        assert (payload["cattr"], payload["traceparent"], payload["bid"]) == ({"user": 5}, "00-1-2-00", "b")

    def test_what_a_job_or_a_link_does_to_its_copy_is_not_written_back(self, worker: Worker) -> None:
        @job()
        def greedy(items: list[int]) -> None:
            items.clear()
            running = current_job()
            assert running is not None
            running.payload.clear()
            fail()

        def alter(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            run.payload["args"] = tuple(run.payload["args"])
            run.payload["retry"] = False
            return proceed()

        worker.setup.server_middleware.add(alter)
        outcome = worker.run("greedy", [1, 2])

        assert isinstance(outcome, Retry)
        assert entry(outcome)["args"] == [[1, 2]]
        assert entry(outcome)["class"] == "greedy"

    @pytest.mark.parametrize(
        ("keys", "kind"),
        [
            ({"retry": True}, Retry),
            ({"retry": 1}, Retry),
            ({"retry": 0}, Dead),
            ({"retry": 0, "dead": False}, Discard),
            ({"retry": False}, Discard),
            ({"retry": 2, "failed_at": 1.5, "retry_count": 0}, Retry),
            ({"retry": 2, "failed_at": 1.5, "retry_count": 1}, Dead),
            ({"retry": True, "failed_at": 1.5, "retry_count": 24}, Dead),
            ({"retry": "x"}, Retry),
            ({"retry_for": 60, "failed_at": 1.5}, Dead),
        ],
    )
    def test_its_options_decide_what_becomes_of_it(
        self, worker: Worker, keys: dict[str, Any], kind: type[Outcome]
    ) -> None:
        job(name="broken")(fail)

        outcome = worker.run("broken", **keys)

        assert type(outcome) is kind
        assert (len(worker.told_of_deaths) == 1) is (kind is not Retry)
        assert len(worker.reported) == 1
        assert outcome.processed
        assert outcome.failed

    @pytest.mark.parametrize(("option", "kind"), [(True, Retry), (0, Dead), (False, Discard)])
    def test_a_payload_without_an_option_goes_by_that_of_the_class(
        self, worker: Worker, option: Any, kind: type[Outcome]
    ) -> None:
        job(name="broken", retry=option)(fail)

        assert type(worker.run("broken", retry=None)) is kind
        assert type(worker.run_bytes(b'{"class":"broken","args":[]}')) is kind

    def test_the_dead_one_is_buried_now_with_its_reason(self, worker: Worker) -> None:
        job(name="broken")(fail)

        outcome = worker.run("broken", retry=0)

        assert isinstance(outcome, Dead)
        assert outcome.at == worker.clock.now()
        assert entry(outcome)["error_message"] == "on purpose"
        ((payload, error),) = worker.told_of_deaths
        assert (payload["error_class"], payload["jid"], type(error)) == ("ZeroDivisionError", JID, ZeroDivisionError)
        assert worker.counted()["broken", "default"] == {"fail": 1, "failed": 1, "dead": 1}

    def test_a_later_attempt_is_counted_as_one(self, worker: Worker) -> None:
        job(name="broken")(fail)

        worker.run("broken", failed_at=1.5, retry_count=3)

        assert worker.counted()["broken", "default"]["retried"] == 1

    @pytest.mark.parametrize(
        ("options", "given", "first"),
        [
            ({}, {}, "Traceback (most recent call last):"),
            ({"backtrace": False}, {"backtrace": True}, "Traceback (most recent call last):"),
            ({}, {"backtrace": 1}, ":in 'fail'"),
        ],
    )
    def test_the_traceback_is_kept(self, worker: Worker, options: Any, given: Any, first: str) -> None:
        job(name="broken", **options)(fail)

        lines = backtraces.decode(entry(worker.run("broken", **given))["error_backtrace"])

        assert lines is not None
        assert lines[0].endswith(first)

    @pytest.mark.parametrize(("options", "given"), [({"backtrace": False}, {}), ({}, {"backtrace": False})])
    def test_it_can_be_switched_off(self, worker: Worker, options: Any, given: Any) -> None:
        job(name="broken", **options)(fail)

        assert "error_backtrace" not in entry(worker.run("broken", **given))

    def test_a_failure_without_one_does_not_keep_that_of_an_earlier_failure(self, worker: Worker) -> None:
        @job(name="waits")
        def wait() -> None:
            raise RetryError("not yet")

        payload = entry(worker.run("waits", error_backtrace=backtraces.encode(["of another"])))

        assert "error_backtrace" not in payload
        assert payload["error_message"] == "not yet"

    def test_a_job_that_is_done_reads_no_traceback(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kiqcluster.worker.run.retry.trace", None)
        job(name="fine")(lambda: None)

        assert worker.run("fine") == Done()

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
    def test_no_error_whatsoever_gets_past(self, worker: Worker, error: BaseException) -> None:
        @job()
        def leave() -> None:
            raise error

        outcome = worker.run("leave")

        assert isinstance(outcome, Retry)
        assert entry(outcome)["error_class"] == type(error).__name__
        told = worker.reported[0][0]
        assert isinstance(told, Exception)
        assert error in (told, told.__cause__)

    @pytest.mark.parametrize("base", [Exception, BaseException])
    def test_an_error_whose_text_fails_is_an_error_like_others(self, worker: Worker, base: type[BaseException]) -> None:
        class Unspeakable(base):  # type: ignore[misc, valid-type]
            def __str__(self) -> str:
                return fail()

        @job()
        def speechless() -> None:
            raise Unspeakable

        payload = entry(worker.run("speechless"))

        assert "cannot be shown" in payload["error_message"]
        assert payload["error_class"].endswith("Unspeakable")

    def test_an_error_that_hides_where_it_comes_from_is_an_error_like_others(self, worker: Worker) -> None:
        class Secretive(Exception):
            __traceback__ = __cause__ = __context__ = property(fail)  # type: ignore[assignment]

        @job()
        def hide() -> None:
            raise Secretive("why")

        payload = entry(worker.run("hide", backtrace=True))

        assert payload["error_message"] == "why"
        assert payload["error_class"].endswith("Secretive")

    def test_an_error_whose_class_cannot_be_asked_for_its_name_is_an_error_like_others(self, worker: Worker) -> None:
        class Kind(type):
            def __getattribute__(cls, name: str) -> Any:
                return sys.exit(3) if name == "__qualname__" else super().__getattribute__(name)

        class Trap(Exception, metaclass=Kind):
            pass

        @job()
        def trap() -> None:
            raise Trap

        outcome = worker.run("trap")

        assert isinstance(outcome, Retry)
        assert entry(outcome)["error_class"].endswith("Trap")

    @pytest.mark.parametrize("retry", [True, False])
    @pytest.mark.parametrize("args", [(), (1, 2, 3)])
    def test_arguments_that_do_not_fit_never_run_and_are_never_forgotten(
        self, worker: Worker, args: tuple[int, ...], retry: bool
    ) -> None:
        @job()
        def two(a: int, b: int) -> None:
            fail()

        outcome = worker.run("two", *args, retry=retry)

        assert type(outcome) is (Retry if retry else Dead)
        assert "two(a: 'int', b: 'int')" in entry(outcome)["error_message"]
        assert entry(outcome)["args"] == list(args)

    def test_a_class_whose_instances_cannot_be_made_fails(self, worker: Worker) -> None:
        class Broken(Job):
            def __init__(self) -> None:
                fail()

            def perform(self) -> None: ...

        assert isinstance(worker.run("Broken"), Retry)


class TestAbsurdValues:
    """None of them may take the thread with it, or lose the job."""

    @pytest.mark.parametrize(
        ("raw", "kind"),
        [
            (b'"retry":' + b"9" * 400, Retry),
            (b'"retry":true,"retry_for":' + b"9" * 400, Retry),
            (b'"retry":true,"retry_for":1e400', Retry),
            (b'"retry":true,"retry_for":-1', Dead),
            (b'"retry":true,"retry_count":' + b"9" * 5_000 + b',"failed_at":1.5', Dead),
            (b'"retry":true,"retry_count":"x","failed_at":"y"', Retry),
            (b'"retry":true,"backtrace":' + b"9" * 400, Retry),
            (b'"retry":true,"retry_queue":{}', Retry),
            (b'"retry":true,"error_message":' + b"9" * 5_000, Retry),
            (b'"retry":true,"created_at":1e400', Retry),
            (b'"retry":true,"tags":"vip","jid":5,"queue":null', Retry),
            (b'"retry":true,"kiq_wrapped":7,"tags":7', Retry),
            (b'"retry":true,"\\ud800":"\\ud800"', Retry),
            (b'"retry":true,"x":' + b"[" * 99 + b"]" * 99, Retry),
            (b'"retry":true,"x":' + b"[" * 500 + b"]" * 500, Retry),
            (b'"retry":true,"enqueued_at":"x","at":"y"', Retry),
            (b'"retry":true,"created_at":1e400,"tags":[1e400,1e16]', Retry),
            (b'"retry":true,"retry_for":"3 days"', Retry),
            (b'"retry":true,"cattr":"x"', Retry),
            (b'"retry":true,"x":[1e400,1e16]', Retry),
            (b'"retry":true,"tags":' + b"[" * 500 + b"1e16" + b"]" * 500, Retry),
        ],
        ids=lambda value: value[:40] if isinstance(value, bytes) else "",
    )
    def test_a_job_with_absurd_keys_fails_like_others(self, worker: Worker, raw: bytes, kind: type[Outcome]) -> None:
        job(name="broken")(fail)

        outcome = worker.run_bytes(b'{"class":"broken","args":[],' + raw + b"}")

        assert isinstance(outcome, Retry | Dead)
        assert entry(outcome)["error_class"] == "ZeroDivisionError"
        assert type(outcome) is kind

    def test_a_first_failure_that_ruby_sent_back_is_put_off_as_it_is(self, worker: Worker) -> None:
        outcome = worker.run("nobody", retry_count=-1, failed_at=1.5)

        assert isinstance(outcome, Deferred)
        assert entry(outcome)["retry_count"] == -1
        assert "kiq_wrapped" not in entry(outcome)

    @pytest.mark.parametrize("odd", [b'"\\ud800"', b"[" * 500 + b"]" * 500, b"1e400", b'{"k":[-1e400]}'])
    def test_what_ruby_cannot_read_waits_in_an_entry_that_its_poller_does_not_drop(
        self, worker: Worker, odd: bytes
    ) -> None:
        outcome = worker.run_bytes(b'{"class":"nobody","args":[],"retry":true,"x":' + odd + b"}")

        assert isinstance(outcome, Deferred)
        assert entry(outcome)["display_class"] == "nobody"
        assert b'"x":' + odd in bare(outcome.payload)

    @pytest.mark.parametrize("count", [-1, "3", None, True, 1.5, 10**400])
    def test_an_absurd_count_of_deferrals_is_no_reason_to_run_or_lose_it(self, worker: Worker, count: Any) -> None:
        assert isinstance(worker.run("nobody", deferred_count=count), Deferred | Retry)


class TestHooks:
    def hooked(self, **hooks: Any) -> None:
        job(name="broken", **hooks)(fail)

    def test_retry_in_is_told_count_error_and_payload_and_its_seconds_count(self, worker: Worker) -> None:
        told: list[Any] = []

        def retry_in(count: int, error: Exception, payload: dict[str, Any]) -> int:
            told.append((count, type(error), payload["jid"], payload["error_message"], payload["retry_count"]))
            return 1_000

        self.hooked(retry_in=retry_in)
        outcome = worker.run("broken", failed_at=1.5, retry_count=1)

        assert isinstance(outcome, Retry)
        assert 1_000 <= outcome.at - worker.clock.now() < 1_030
        assert told == [(2, ZeroDivisionError, JID, "on purpose", 2)]

    def test_discard_forgets_it_after_its_death_handlers(self, worker: Worker) -> None:
        self.hooked(retry_in=lambda count, error, payload: DISCARD)

        assert worker.run("broken") == Discard()
        assert len(worker.told_of_deaths) == 1

    def test_kill_buries_it_now(self, worker: Worker) -> None:
        exhausted: list[Any] = []
        self.hooked(
            retry_in=lambda count, error, payload: KILL,
            retries_exhausted=lambda payload, error: exhausted.append((payload["jid"], type(error))),
        )

        assert isinstance(worker.run("broken"), Dead)
        assert len(worker.told_of_deaths) == 1
        assert exhausted == [(JID, ZeroDivisionError)]

    @pytest.mark.parametrize("answer", [0, datetime.timedelta(0)])
    def test_zero_from_retry_in_means_now(self, worker: Worker, answer: Any) -> None:
        self.hooked(retry_in=lambda count, error, payload: answer)

        outcome = worker.run("broken")

        assert isinstance(outcome, Retry)
        assert 0 <= outcome.at - worker.clock.now() < 10

    @pytest.mark.parametrize("answer", [None, -5, "soon", float("nan"), float("inf"), 10**400, True, object()])
    def test_any_other_answer_means_the_usual_delay_and_is_reported(self, worker: Worker, answer: Any) -> None:
        self.hooked(retry_in=lambda count, error, payload: answer)

        outcome = worker.run("broken")

        assert isinstance(outcome, Retry)
        assert 15 <= outcome.at - worker.clock.now() < 25
        told = [context["job"]["jid"] for _, context in worker.reported if context["context"] == "hook retry_in"]
        assert told == ([] if answer is None else [JID])

    @pytest.mark.parametrize("hook", [fail, lambda *_: sys.exit(3), lambda: 5])
    def test_a_hook_that_fails_is_reported_and_counts_as_no_answer(self, worker: Worker, hook: Any) -> None:
        self.hooked(retry_in=hook, retries_exhausted=hook)

        assert isinstance(worker.run("broken"), Retry)
        assert isinstance(worker.run("broken", retry=0), Dead)
        assert sum("hook" in context["context"] for _, context in worker.reported) == 2

    @pytest.mark.parametrize(
        ("keys", "kind"), [({"retry": 0}, Discard), ({"retry": 0, "dead": True}, Discard), ({"retry": 1}, Retry)]
    )
    def test_retries_exhausted_may_forget_it(self, worker: Worker, keys: dict[str, Any], kind: type[Outcome]) -> None:
        self.hooked(retries_exhausted=lambda payload, error: DISCARD)

        assert type(worker.run("broken", **keys)) is kind

    def test_without_a_wish_to_retry_no_hook_is_asked(self, worker: Worker) -> None:
        asked: list[int] = []
        self.hooked(retry_in=lambda *_: asked.append(1), retries_exhausted=lambda *_: asked.append(2))

        assert worker.run("broken", retry=False) == Discard()
        assert asked == []


class TestHandlers:
    @pytest.mark.parametrize("handler", [fail, lambda: None])
    def test_handlers_that_fail_change_nothing(self, worker: Worker, handler: Any) -> None:
        worker.setup.error_handlers.insert(0, handler)
        worker.setup.death_handlers.insert(0, handler)
        job(name="broken")(fail)

        assert isinstance(worker.run("broken"), Retry)
        assert isinstance(worker.run("broken", retry=0), Dead)
        assert worker.run("broken", retry=False) == Discard()
        assert isinstance(worker.run_bytes(b"rubbish"), Dead)
        assert len(worker.told_of_deaths) == 2

    @pytest.mark.parametrize("chain", ["error_handlers", "death_handlers"])
    def test_one_that_leaves_the_process_costs_neither_job_nor_thread(self, worker: Worker, chain: str) -> None:
        job(name="broken")(fail)
        job(name="nothing")(lambda: None)
        getattr(worker.setup, chain).insert(0, lambda *_: sys.exit(3))
        raw = b'{"class":"broken","args":[1.50],"retry":0}'

        outcome = worker.run_bytes(raw)

        assert isinstance(outcome, Dead)
        assert entry(outcome)["class"] in ("broken", INVALID_PAYLOAD)
        assert raw.decode() in entry(outcome)["args"] or entry(outcome)["args"] == [1.5]
        assert worker.run("nothing") == Done(), "the next job is not affected"

    @pytest.mark.parametrize("chain", ["error_handlers", "death_handlers"])
    def test_one_that_calls_sys_exit_changes_no_outcome(self, worker: Worker, chain: str) -> None:
        job(name="broken")(fail)
        getattr(worker.setup, chain).insert(0, lambda *_: sys.exit(3))

        assert isinstance(worker.run("broken"), Retry)
        assert entry(worker.run("broken", retry=0))["class"] == "broken"


class TestInterrupted:
    def test_a_job_that_gives_way_to_a_stop_goes_back_as_it_was(self, worker: Worker) -> None:
        @job()
        def polite() -> None:
            raise Interrupted

        worker.stopping.set()
        raw = b'{"class":"polite","args":[],"x":1.50}'

        assert worker.run_bytes(raw) == InterruptedOutcome(raw)
        assert worker.reported == []
        assert worker.counted()["polite", "default"] == {"interrupted": 1}

    def test_without_a_stop_it_waits_a_moment_for_else_it_would_spin(self, worker: Worker) -> None:
        @job()
        def polite() -> None:
            raise Interrupted

        outcome = worker.run("polite", enqueued_at=1.5)

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + INTERRUPTED_DELAY_SECONDS
        assert "enqueued_at" not in entry(outcome)
        assert "retry_count" not in entry(outcome)

    def test_an_error_made_of_it_counts_as_it(self, worker: Worker) -> None:
        @job()
        def wrapping() -> None:
            try:
                raise Interrupted
            except Interrupted as error:
                raise ValueError("wrapped") from error

        @job()
        def clumsy() -> None:
            try:
                raise Interrupted
            finally:
                fail()

        worker.stopping.set()

        assert isinstance(worker.run("wrapping"), InterruptedOutcome)
        assert isinstance(worker.run("clumsy"), InterruptedOutcome)

    def test_errors_that_cause_each_other_are_no_endless_search(self, worker: Worker) -> None:
        @job()
        def circular() -> None:
            one, other = ValueError("one"), ValueError("other")
            one.__cause__, other.__cause__ = other, one
            raise one

        assert isinstance(worker.run("circular"), Retry)

    def test_a_link_may_give_way_too(self, worker: Worker) -> None:
        job(name="nothing")(lambda: None)

        def give_way(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            raise Interrupted

        worker.setup.server_middleware.add(give_way)
        worker.stopping.set()

        assert isinstance(worker.run("nothing"), InterruptedOutcome)


class TestForcedStop:
    def run_of(self, **keys: Any) -> JobRun:
        return self.run_of_bytes(encode({"class": "long", "args": [], "jid": JID, **keys}))

    def run_of_bytes(self, raw: bytes, deaths: int = 0) -> JobRun:
        return JobRun(Unit("default", raw, "token", "me", deaths=deaths), 0.0)

    @pytest.mark.parametrize(("before", "after"), [(None, 1), (1, 2), ("x", 1), (-3, 1), (True, 1)])
    def test_it_counts_interruptions(self, worker: Worker, before: Any, after: int) -> None:
        job(name="long")(lambda: None)
        keys = {} if before is None else {"interrupted_count": before}

        outcome = worker.execution.interrupt(self.run_of(**keys))

        assert isinstance(outcome, InterruptedOutcome)
        assert entry(outcome)["interrupted_count"] == after

    @pytest.mark.parametrize(
        ("keys", "kind"),
        [
            ({}, InterruptedOutcome),
            ({"interrupted_count": 1}, InterruptedOutcome),
            ({"interrupted_count": 2}, Dead),
            ({"interrupted_count": 2, "dead": False}, Discard),
        ],
    )
    def test_the_class_may_limit_them(self, worker: Worker, keys: dict[str, Any], kind: type[Outcome]) -> None:
        job(name="long", max_retries_after_interruption=3)(lambda: None)

        assert type(worker.execution.interrupt(self.run_of(**keys))) is kind

    @pytest.mark.parametrize("limit", [0, 1, 2, 3])
    def test_a_limit_means_as_many_runs_for_stops_as_for_deaths(self, worker: Worker, limit: int) -> None:
        job(name="long", max_retries_after_interruption=limit)(lambda: None)

        stops, raw = 0, self.run_of().unit.payload
        while isinstance(outcome := worker.execution.interrupt(self.run_of_bytes(raw)), InterruptedOutcome):
            stops, raw = stops + 1, outcome.payload
        deaths = 0
        while not isinstance(worker.execution.execute(self.run_of_bytes(raw, deaths)), Dead):
            deaths += 1

        assert isinstance(outcome, Dead)
        assert stops + 1 == deaths == max(limit, 1)

    def test_without_a_limit_of_its_own_a_job_bears_many(self, worker: Worker) -> None:
        job(name="long")(lambda: None)
        limit = Config().max_forced_stops

        assert isinstance(worker.execution.interrupt(self.run_of(interrupted_count=limit - 2)), InterruptedOutcome)
        assert isinstance(worker.execution.interrupt(self.run_of(interrupted_count=limit - 1)), Dead)

    def test_a_name_that_nobody_knows_any_more_goes_back(self, worker: Worker) -> None:
        assert isinstance(worker.execution.interrupt(self.run_of()), InterruptedOutcome)

    def test_the_buried_one_says_why(self, worker: Worker) -> None:
        job(name="long", max_retries_after_interruption=0)(lambda: None)

        payload = entry(worker.execution.interrupt(self.run_of()))

        assert "interrupted 1 times" in payload["error_message"]
        assert len(worker.told_of_deaths) == 1


class TestUnknown:
    def test_it_is_put_off_without_counting_for_a_deploy_may_bring_it(self, worker: Worker) -> None:
        outcome = worker.run("Newcomer", enqueued_at=1.5)

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + DEFERRAL_SECONDS
        payload = entry(outcome)
        assert (payload["deferred_count"], payload["deferred_by"]) == (1, "unknown_class")
        assert payload.keys().isdisjoint({"enqueued_at", "retry_count", "failed_at", "error_class"})
        assert (outcome.processed, outcome.failed) == (False, False)
        assert worker.counted() == {(UNREGISTERED, "default"): {"deferred": 1, "queued": 1}}

    @pytest.mark.parametrize("retry", [True, 0, False, None])
    def test_that_happens_ten_times_whatever_its_option(self, worker: Worker, retry: Any) -> None:
        raw = encode({"class": "Newcomer", "args": [1.5], "retry": retry, "jid": JID})
        kinds = []
        for _ in range(MAX_DEFERRALS + 1):
            outcome = worker.run_bytes(raw)
            kinds.append(type(outcome))
            raw = outcome.payload  # type: ignore[attr-defined]

        assert kinds == [Deferred] * 10 + [Retry if retry is True else Dead]
        assert decode(raw)["error_class"].endswith("UnknownJob")
        assert "Newcomer" in decode(raw)["error_message"]
        assert decode(raw)["args"] == [1.5]

    @pytest.mark.parametrize("reason", ["rate_limit", "version", "strike:a"])
    def test_deferrals_for_another_reason_do_not_count(self, worker: Worker, reason: str) -> None:
        outcome = worker.run("Newcomer", retry=0, deferred=True, deferred_by=reason, deferred_count=10)

        assert isinstance(outcome, Deferred)
        assert (entry(outcome)["deferred_count"], entry(outcome)["deferred_by"]) == (1, "unknown_class")

    def test_one_that_may_not_be_kept_is_not_kept(self, worker: Worker) -> None:
        outcome = worker.run("Newcomer", retry=0, dead=False, deferred_count=10)

        assert outcome == Discard()
        assert len(worker.told_of_deaths) == 1

    def test_names_from_redis_do_not_become_series(self, worker: Worker) -> None:
        for number in range(20):
            worker.run(f"Nobody{number}")

        assert list(worker.counted()) == [(UNREGISTERED, "default")]


class TestActiveJob:
    """What ActiveJob has wrapped is, to everybody who is told, a job of its own class."""

    def run(self, worker: Worker, *arguments: Any, wrapped: str = "SampleJob", **keys: Any) -> Outcome:
        envelope = {"job_class": wrapped, "arguments": list(arguments), "executions": 3}
        return worker.run(WRAPPER, envelope, wrapped=wrapped, **keys)

    def test_it_runs_with_the_arguments_in_its_envelope(self, worker: Worker) -> None:
        ran: list[Any] = []
        names: list[str] = []

        @job(name="SampleJob", active_job=True)
        def sample(*args: Any, **keywords: Any) -> None:
            ran.append((args, keywords))
            running = current_job()
            assert running is not None
            names.append(running.name)
            assert running.payload["class"] == WRAPPER

        date = {"_aj_serialized": "ActiveJob::Serializers::DateSerializer", "value": "2026-01-02"}
        outcome = self.run(worker, 1, [date], {"key": "x", "_aj_ruby2_keywords": ["key"]})

        assert type(outcome) is Done
        assert ran == [((1, [datetime.date(2026, 1, 2)]), {"key": "x"})]
        assert names == ["SampleJob"]
        assert worker.counted() == {("SampleJob", "default"): {"done": 1}}

    def test_a_class_may_take_it_too(self, worker: Worker) -> None:
        ran: list[object] = []

        class SampleJob(Job, active_job=True):
            def perform(self, number: int) -> None:
                ran.append((type(self), number))

        worker.setup.server_middleware.add(lambda run, proceed: (ran.append(run.job.name), proceed())[1])

        assert type(self.run(worker, 7)) is Done
        assert ran == ["SampleJob", (SampleJob, 7)]

    def test_a_payload_without_an_envelope_runs_as_it_is(self, worker: Worker) -> None:
        ran: list[object] = []
        job(name="SampleJob", active_job=True)(lambda *args: ran.append(args))

        assert type(worker.run("SampleJob", {"job_class": "SampleJob", "arguments": []})) is Done
        assert ran == [({"job_class": "SampleJob", "arguments": []},)]

    def test_its_failure_goes_by_its_options_and_hooks_and_keeps_its_bytes(self, worker: Worker) -> None:
        told: list[Any] = []
        hooks = {"retry_in": lambda count, error, payload: told.append((count, payload["wrapped"])) or 1_000}
        job(name="SampleJob", active_job=True, **hooks)(fail)

        outcome = self.run(worker, 1, failed_at=1.5, retry_count=1)

        assert isinstance(outcome, Retry)
        kept = entry(outcome)
        assert (kept["class"], kept["wrapped"], kept["retry_count"]) == (WRAPPER, "SampleJob", 2)
        assert kept["args"] == [{"job_class": "SampleJob", "arguments": [1], "executions": 3}]
        assert told == [(2, "SampleJob")]
        assert worker.counted() == {("SampleJob", "default"): {"failed": 1, "fail": 1, "retried": 1}}

    @pytest.mark.parametrize(
        ("retry", "kind"), [(True, Retry), (0, Dead), (False, Dead)], ids=["retried", "buried", "never forgotten"]
    )
    def test_what_python_cannot_mean_fails_with_that_reason(
        self, worker: Worker, retry: Any, kind: type[Outcome]
    ) -> None:
        job(name="SampleJob", active_job=True)(lambda account: None)

        outcome = self.run(worker, {"_aj_globalid": "gid://shop/Account/42"}, retry=retry)

        assert type(outcome) is kind
        assert entry(outcome)["error_class"] == "kiqcluster.errors.CannotDeserialize"
        assert "arguments[0] is the GlobalID gid://shop/Account/42" in entry(outcome)["error_message"]

    def test_arguments_that_do_not_fit_are_never_forgotten(self, worker: Worker) -> None:
        job(name="SampleJob", active_job=True)(lambda a, b: None)

        outcome = self.run(worker, 1, retry=False)

        assert type(outcome) is Dead
        assert entry(outcome)["error_class"] == "kiqcluster.errors.MisfitArguments"
        assert "SampleJob(a, b): missing a required argument: 'b'" in entry(outcome)["error_message"]

    @pytest.mark.parametrize("args", [[], [None], [{}], [{"arguments": {}}], [1, 2]])
    def test_an_envelope_that_is_none_fails(self, worker: Worker, args: list[Any]) -> None:
        job(name="SampleJob", active_job=True)(fail)

        outcome = worker.run(WRAPPER, *args, wrapped="SampleJob")

        assert type(outcome) is Retry
        assert entry(outcome)["error_class"].startswith("kiqcluster.errors.")

    @pytest.mark.parametrize("is_declared", [False, True], ids=["no such job", "not as an ActiveJob"])
    def test_an_unknown_one_is_deferred_under_its_own_name(self, worker: Worker, is_declared: bool) -> None:
        if is_declared:
            job(name="SampleJob")(fail)

        outcome = self.run(worker, 1)

        assert type(outcome) is Deferred
        ((error, _),) = [(fields["error"], fields) for event, fields in worker.events if event == "job_failed"]
        assert "no job named 'SampleJob' with active_job=True" in error

    def test_a_wrapper_around_nothing_is_unknown(self, worker: Worker) -> None:
        outcome = worker.run(WRAPPER, "x", wrapped=None)

        assert type(outcome) is Deferred

    def test_a_forced_stop_counts_for_it(self, worker: Worker) -> None:
        job(name="SampleJob", active_job=True, max_retries_after_interruption=0)(fail)
        raw = encode({"class": WRAPPER, "wrapped": "SampleJob", "args": [{"arguments": []}], "jid": JID})

        outcome = worker.execution.interrupt(JobRun(Unit("default", raw, "token", "me"), 0.0))

        assert type(outcome) is Dead
        assert worker.counted() == {("SampleJob", "default"): {"interrupted": 1}}

    def test_a_killer_is_buried_under_its_own_name(self, worker: Worker) -> None:
        job(name="SampleJob", active_job=True)(fail)
        raw = encode({"class": WRAPPER, "wrapped": "SampleJob", "args": [{"arguments": []}], "jid": JID})

        outcome = worker.execution.execute(JobRun(Unit("default", raw, "token", "me", deaths=3), 0.0))

        assert type(outcome) is Dead
        assert list(worker.counted()) == [("SampleJob", "default")]


class TestMalformed:
    @pytest.mark.parametrize(
        "raw", [b"", b"\xff\xfe", b"{", b"123", b"null", b"[]", b'"x"', b"true", b"[" * 100_000, b'{"a":NaN}']
    )
    def test_bytes_that_are_no_object_are_buried_whole_with_their_reason(self, worker: Worker, raw: bytes) -> None:
        outcome = worker.run_bytes(raw, "mails")

        assert isinstance(outcome, Dead)
        assert (outcome.at, outcome.processed, outcome.failed) == (worker.clock.now(), False, False)
        payload = entry(outcome)
        assert (payload["class"], payload["queue"]) == (INVALID_PAYLOAD, "mails")
        assert payload["error_class"] == "kiqcluster.errors.MalformedPayload"
        ((_, context),) = worker.reported
        assert context["payload"] == raw

    @pytest.mark.parametrize("raw", [b"\xff\xfe", b"{", b"123"])
    def test_tried_again_from_there_they_end_there_again_and_are_wrapped_once(self, worker: Worker, raw: bytes) -> None:
        first = worker.run_bytes(raw)
        assert isinstance(first, Dead)

        second = worker.run_bytes(first.payload)

        assert isinstance(second, Dead)
        assert entry(second)["args"] == entry(first)["args"]

    @pytest.mark.parametrize(
        "raw",
        [
            b"{}",
            b'{"args":[1]}',
            b'{"class":null,"args":[1]}',
            b'{"class":5,"args":[1]}',
            b'{"class":"","args":[1]}',
            b'{"class":["X"],"args":[1]}',
            b'{"class":"X","args":{"a":1}}',
            b'{"class":"X","args":"text"}',
            b'{"class":"X","args":5,"retry":false}',
        ],
    )
    def test_an_object_that_is_no_job_is_buried_whole(self, worker: Worker, raw: bytes) -> None:
        outcome = worker.run_bytes(raw)

        assert isinstance(outcome, Dead)
        assert not outcome.counted
        assert entry(outcome)["error_class"] == "kiqcluster.errors.MalformedPayload"
        assert bare(outcome.payload) == raw

    def test_one_that_was_buried_for_a_class_that_came_later_runs_when_it_is_tried_again(self, worker: Worker) -> None:
        ran: list[float] = []
        job(name="late")(lambda number: ran.append(number))

        assert worker.run_bytes(kept(b'{"class":"late","args":[1.5]}', {"retry": False, "jid": JID})) == Done()
        assert ran == [1.5]

    @pytest.mark.parametrize("name", [b"", b'"class":null,', b'"class":"Kiqcluster::InvalidPayload",'])
    def test_an_argument_never_becomes_a_job(self, worker: Worker, name: bytes) -> None:
        """Somebody who may choose an argument must not choose what runs, once a person presses Retry."""
        ran: list[float] = []
        job(name="late")(lambda number: ran.append(number))
        outcome: Outcome = Retry(b"{" + name + b'"args":["{\\"class\\":\\"late\\",\\"args\\":[1]}"]}', 0.0)

        for _ in range(3):
            assert isinstance(outcome, Retry | Dead | Deferred)
            outcome = worker.run_bytes(outcome.payload)

        assert ran == []


class TestCpu:
    """CPU seconds; the clock for them is read as seldom as will do."""

    @pytest.fixture
    def worker(self, worker: Worker) -> Worker:
        @job()
        def spin(seconds: float, used: float) -> None:
            worker.clock.time += seconds
            worker.clock.used += used

        return worker

    def used(self, worker: Worker) -> tuple[float, float]:
        """Return how many runs were counted, and with how many CPU seconds in all."""
        labels = {"job_status": "done"}
        return worker.sample("cpu_seconds_count", "spin", **labels), worker.sample("cpu_seconds_sum", "spin", **labels)

    def test_a_run_counts_with_what_its_thread_used(self, worker: Worker) -> None:
        worker.run("spin", 2.0, 0.5)
        worker.clock.used += 7.0  # others' work, between two runs
        worker.clock.time += 9.0
        worker.run("spin", 2.0, 0.25)

        assert self.used(worker) == (2, 0.75)

    def test_a_brief_run_counts_with_its_duration(self, worker: Worker) -> None:
        worker.run("spin", MIN_CPU_MEASURED_SECONDS / 4, 0.0)

        assert self.used(worker) == (1, pytest.approx(MIN_CPU_MEASURED_SECONDS / 4, abs=1e-6))

    def test_brief_runs_before_a_long_one_add_no_more_than_they_took(self, worker: Worker) -> None:
        for _ in range(100):
            worker.run("spin", MIN_CPU_MEASURED_SECONDS / 4, MIN_CPU_MEASURED_SECONDS / 4)
        worker.run("spin", 1.0, 0.5)

        count, used = self.used(worker)
        assert count == 101
        assert 0.5 + 25 * MIN_CPU_MEASURED_SECONDS <= used <= 0.5 + 26.5 * MIN_CPU_MEASURED_SECONDS

    def test_nobody_uses_more_than_there_was(self, worker: Worker) -> None:
        worker.run("spin", 1.0, 5.0)

        assert self.used(worker) == (1, 1.0)


class TestMiddleware:
    def test_links_are_around_the_job_and_may_end_it_with_an_outcome(self, worker: Worker) -> None:
        ran: list[str] = []

        @job()
        def note() -> None:
            ran.append("job")

        def skip(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            return Discard() if run.payload.get("skip") else proceed()

        worker.setup.server_middleware.add(skip)

        assert worker.run("note", skip=True) == Discard()
        assert worker.run("note") == Done()
        assert ran == ["job"]

    def test_a_link_sees_the_job_its_instance_and_its_queue(self, worker: Worker) -> None:
        seen: list[Any] = []

        class Looked(Job):
            def perform(self) -> None:
                seen.append(self)

        def look(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            seen.append((run.instance, run.job.name, run.queue, run.jid))
            return proceed()

        worker.setup.server_middleware.add(look)
        worker.run("Looked")

        assert seen == [(seen[1], "Looked", "default", JID), seen[1]]

    def test_effects_are_written_with_their_own_run_whatever_handlers_do(self, worker: Worker) -> None:
        job(name="broken")(fail)
        kept: list[list[Effect]] = []

        def keep(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            for late in kept:
                late.append(Effect("sadd", "late", (run.jid,)))
            kept.append(run.effects)
            run.effects.append(Effect("sadd", "released", (run.jid,)))
            return proceed()

        def interrupt(*_: object) -> NoReturn:
            raise KeyboardInterrupt

        worker.setup.server_middleware.add(keep)
        worker.setup.error_handlers.insert(0, interrupt)

        first, second = worker.run("broken", jid="1"), worker.run("broken", jid="2")

        assert type(first) is type(second) is Retry, "a handler decides nothing"
        assert first.effects == (Effect("sadd", "released", ("1",)),)
        assert second.effects == (Effect("sadd", "released", ("2",)),)

    def test_a_link_that_does_not_proceed_has_done_it(self, worker: Worker) -> None:
        job(name="broken")(fail)
        worker.setup.server_middleware.add(lambda run, proceed: None)

        assert worker.run("broken") == Done()

    @pytest.mark.parametrize(
        ("answer", "action"), [(None, "dropped"), (Discard(), "dropped"), (Deferred(b"{}", 5.0), "deferred")]
    )
    def test_what_a_link_does_not_let_run_counts_as_skipped(
        self, worker: Worker, answer: Outcome | None, action: str
    ) -> None:
        job(name="nothing")(lambda: None)
        worker.setup.server_middleware.add(lambda run, proceed: answer if run.payload.get("skip") else proceed())
        worker.run("nothing", skip=True)
        worker.run("nothing")

        assert worker.sample("skipped_total", "nothing", action=action) == 1
        assert worker.counted()["nothing", "default"]["skipped"] == 1

    def test_an_error_of_a_link_is_one_of_the_job(self, worker: Worker) -> None:
        job(name="nothing")(lambda: None)
        worker.setup.server_middleware.add(fail)

        assert isinstance(worker.run("nothing"), Retry)

    @pytest.mark.parametrize("answer", [True, "done", 5, object(), Done])
    def test_an_answer_that_is_no_outcome_does_not_undo_the_job(self, worker: Worker, answer: Any) -> None:
        job(name="nothing")(lambda: None)
        worker.setup.server_middleware.add(lambda run, proceed: proceed() or answer)

        assert worker.run("nothing") == Done()

    def test_a_link_that_empties_the_payload_costs_the_job_a_retry_at_most(self, worker: Worker) -> None:
        job(name="nothing")(lambda: None)
        worker.setup.server_middleware.add(lambda run, proceed: run.payload.clear() or proceed())

        outcome = worker.run("nothing")

        assert isinstance(outcome, Retry)
        assert entry(outcome)["class"] == "nothing"


class TestBegin:
    """on_begin of features: what becomes of a unit that may not begin."""

    LIMIT = Effect("enter", "kiq:test:slots", (3, "park"))

    @pytest.fixture
    def ran(self) -> list[int]:
        ran: list[int] = []
        job(name="limited")(lambda: ran.append(1))
        return ran

    @pytest.mark.parametrize(
        ("verdict", "expected"),
        [
            (BeginVerdict("park", row=LIMIT), Parked("kiq:test:slots", 3)),
            (BeginVerdict("lost"), Requeue()),
            (RedisUnavailable("away"), Requeue()),
        ],
    )
    def test_it_does_not_run(
        self, worker: Worker, ran: list[int], verdict: BeginVerdict | StoreError, expected: Outcome
    ) -> None:
        worker.verdict = verdict
        worker.play(Feature(rows=[self.LIMIT]))

        assert worker.run("limited") == expected
        assert ran == []
        assert worker.reported == []

    def test_a_job_that_is_dropped_keeps_its_bytes_and_says_by_what(self, worker: Worker, ran: list[int]) -> None:
        worker.play(Feature(rows=BeginVerdict("drop"), name="strict"))

        outcome = worker.run("limited", enqueued_at=1.5)

        assert isinstance(outcome, Dropped)
        payload = decode(outcome.payload)
        assert (payload["class"], payload["dropped"], payload["dropped_by"]) == ("limited", True, "strict")
        assert (outcome.at, ran) == (worker.clock.now(), [])

    def test_it_does_not_run_after_a_freeze_since_redis_was_asked(
        self, worker: Worker, ran: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others may have recovered it meanwhile, and its place is theirs."""

        def freeze(unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
            worker.clock.time += STALE_UNIT_SECONDS + 1
            return GO

        monkeypatch.setattr(worker, "_begin_run", freeze)
        worker.play(Feature(rows=[self.LIMIT]))
        raw = encode({"class": "limited", "args": [], "jid": JID})
        unit = Unit("default", raw, "token", "me", reserved_at=worker.clock.monotonic())

        assert worker.execution.execute(JobRun(unit, worker.clock.now())) == Requeue()
        assert ran == []

    @pytest.mark.parametrize(
        ("verdict", "delay"), [(BeginVerdict("defer", 2.5), 2.5), (RedisRefused("WRONGTYPE x"), 30.0)]
    )
    def test_it_runs_later(
        self, worker: Worker, ran: list[int], verdict: BeginVerdict | StoreError, delay: float
    ) -> None:
        worker.verdict = verdict
        worker.play(Feature(rows=[self.LIMIT]))

        outcome = worker.run("limited")

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + delay
        assert entry(outcome)["class"] == "limited"
        assert ran == []
        assert len(worker.reported) == isinstance(verdict, RedisRefused)

    def test_the_rows_of_all_features_are_asked_at_once_and_in_order(self, worker: Worker, ran: list[int]) -> None:
        other = Effect("absent", "kiq:test:cancelled", ("drop",))
        worker.play(Feature(rows=[other]), Feature(), Feature(rows=[self.LIMIT]))

        assert worker.run("limited") == Done()
        assert worker.asked == [[other, self.LIMIT]]
        assert ran == [1]

    def test_a_deferred_job_names_the_feature_whose_row_is_not_true(self, worker: Worker, ran: list[int]) -> None:
        worker.verdict = BeginVerdict("defer", 2.5, self.LIMIT)
        worker.play(Feature(rows=[replace(self.LIMIT)], name="other"), Feature(rows=[self.LIMIT], name="limits"))

        payload = entry(worker.run("limited", deferred_count=2))

        assert (payload["deferred"], payload["deferred_by"], payload["deferred_count"]) == (True, "limits", 3)

    def test_a_verdict_decides_without_a_round_trip(self, worker: Worker, ran: list[int]) -> None:
        worker.play(
            Feature(rows=[self.LIMIT]), Feature(rows=BeginVerdict("defer", 5), name="early"), Feature(rows=[self.LIMIT])
        )

        payload = entry(worker.run("limited"))

        assert (payload["deferred_by"], worker.asked, ran) == ("early", [], [])

    def test_a_verdict_decides_without_redis_as_well(self, worker: Worker, ran: list[int]) -> None:
        with using_stacks(Stacks(server=(Feature(rows=BeginVerdict("drop")),))):
            worker.execution = Execution(*worker._parts)

        assert isinstance(worker.run("limited"), Dropped)
        assert ran == []

    @pytest.mark.parametrize(
        ("uses", "keys", "asked"),
        [(False, set(), False), (True, set(), True), (False, {"mark"}, True), (False, {"absent"}, False)],
    )
    def test_only_a_job_that_uses_a_feature_is_asked(
        self, worker: Worker, ran: list[int], uses: bool, keys: set[str], asked: bool
    ) -> None:
        worker.play(Feature(rows=[self.LIMIT], uses=uses, keys=frozenset(keys)))

        worker.run("limited", mark=1)

        assert worker.asked == ([[self.LIMIT]] if asked else [])
        assert ran == [1]

    def test_a_feature_that_fails_fails_the_job(self, worker: Worker, ran: list[int]) -> None:
        class Broken(Feature):
            def on_begin(self, run: Run) -> NoReturn:
                raise ValueError("no rows")

        worker.play(Broken())

        assert isinstance(worker.run("limited"), Retry)
        assert ran == []


class TestEndHook:
    """on_end of features."""

    @pytest.mark.parametrize(
        ("name", "keys", "kind"),
        [
            ("fine", {}, Done),
            ("broken", {}, Retry),
            ("broken", {"retry": 0}, Dead),
            ("broken", {"retry": False}, Discard),
            ("nobody", {}, Deferred),
        ],
    )
    def test_a_feature_sees_the_decided_outcome_and_adds_rows_to_it(
        self, worker: Worker, name: str, keys: dict[str, Any], kind: type[Outcome]
    ) -> None:
        seen: list[JobEnd] = []

        def release(end: JobEnd) -> list[Effect]:
            seen.append(end)
            return [Effect("sadd", type(end.outcome).__name__, (end.token,))]

        job(name="fine")(lambda: None)
        job(name="broken")(fail)
        worker.play(Feature(end=release))

        outcome = worker.run(name, **keys)

        (end,) = seen
        assert type(outcome) is type(end.outcome) is kind
        assert outcome.effects == (Effect("sadd", kind.__name__, ("token",)),)
        assert (end.payload["jid"], end.name, end.queue, end.identity) == (JID, name, "default", "me")

    def test_its_rows_follow_those_of_middleware(self, worker: Worker) -> None:
        @worker.setup.server_middleware.add
        def acquire(run: Run, proceed: Any) -> Outcome | None:
            run.effects.append(Effect("sadd", "link"))
            return proceed()  # type: ignore[no-any-return]

        job(name="fine")(lambda: None)
        worker.play(Feature(end=lambda _end: [Effect("sadd", "hook")]))

        assert [effect.key for effect in worker.run("fine").effects] == ["link", "hook"]

    def test_it_sees_what_a_forced_stop_cuts_off_even_before_its_begin(self, worker: Worker) -> None:
        seen: list[JobEnd] = []
        job(name="long")(lambda: None)
        worker.play(Feature(end=lambda end: seen.append(end) or []))  # type: ignore[func-returns-value]
        cut_off = JobRun(Unit("default", encode({"class": "long", "args": [], "jid": JID}), "token", "me"), 0.0)

        worker.execution.interrupt(cut_off)

        (end,) = seen
        assert (type(end.outcome), end.name, end.payload["jid"]) == (InterruptedOutcome, "long", JID)

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
    def test_one_that_fails_is_reported_and_costs_no_outcome_and_no_other_hook(
        self, worker: Worker, error: BaseException
    ) -> None:
        def broken(_end: JobEnd) -> NoReturn:
            raise error

        def broken_handler(_error: Exception, _context: object) -> NoReturn:
            raise KeyboardInterrupt

        job(name="fine")(lambda: None)
        worker.play(Feature(end=broken), Feature(end=lambda _end: [Effect("sadd", "hook")]))
        worker.setup.error_handler(broken_handler)

        assert worker.run("fine") == Done(effects=(Effect("sadd", "hook"),))
        ((told, context),) = worker.reported
        assert error in (told, told.__cause__)
        assert (context["context"], context["job"]["jid"], context["queue"]) == ("end of feature", JID, "default")

    @pytest.mark.parametrize("error", [TypeError(), RuntimeError(), MemoryError(), SystemExit(), KeyboardInterrupt()])
    def test_one_that_fails_writes_rows_that_need_nothing_of_the_application(
        self, worker: Worker, error: BaseException
    ) -> None:
        seen: list[JobEnd] = []

        def broken(_end: JobEnd) -> NoReturn:
            raise error

        def instead(end: JobEnd, raised: BaseException) -> list[Effect]:
            seen.append(end)
            return [Effect("sadd", "instead", (type(raised).__name__,))]

        @job()
        def changing() -> object:
            running = current_job()
            assert running is not None
            running.payload["jid"] = running.payload["args"] = object()
            running.messages = ["said"]
            return object()

        worker.play(Feature(end=broken, instead=instead))

        assert worker.run("changing") == Done(effects=(Effect("sadd", "instead", (type(error).__name__,)),))
        (end,) = seen
        assert (end.payload["jid"], end.payload["args"], end.returned, end.messages) == (JID, [], None, ())

    def test_one_that_fails_for_want_of_memory_may_succeed_a_moment_later(self, worker: Worker) -> None:
        tries: list[JobEnd] = []

        def scarce(end: JobEnd) -> list[Effect]:
            tries.append(end)
            if len(tries) == 1:
                raise MemoryError
            return [Effect("sadd", "own")]

        job(name="fine")(lambda: None)
        worker.play(Feature(end=scarce))

        assert worker.run("fine") == Done(effects=(Effect("sadd", "own"),))
        assert worker.reported == []

    def test_one_whose_other_rows_fail_as_well_writes_none(self, worker: Worker) -> None:
        job(name="fine")(lambda: None)
        worker.play(Feature(end=lambda _end: fail(), instead=lambda _end, _error: fail()))

        assert worker.run("fine") == Done()
        assert [context["context"] for _, context in worker.reported] == ["end of feature"] * 2


def test_a_running_job_can_be_told_that_it_should_stop(worker: Worker) -> None:
    has_begun, was_told = threading.Event(), threading.Event()
    seen: list[bool] = []

    @job()
    def long() -> None:
        context = current_job()
        assert context is not None
        seen.append(context.stopping)
        has_begun.set()
        assert was_told.wait(10)
        seen.append(context.stopping)
        raise Interrupted

    run = JobRun(Unit("default", encode({"class": "long", "args": [], "jid": JID}), "token", "me"), 0.0)

    def tell() -> None:
        assert has_begun.wait(10)
        assert run.context is not None
        run.context.is_asked_to_stop = True
        was_told.set()

    teller = threading.Thread(target=tell)
    teller.start()
    outcome = worker.execution.execute(run)
    teller.join()

    assert seen == [False, True]
    assert isinstance(outcome, Deferred)  # the process goes on, so it runs again in a moment
    assert not worker.stopping.is_set()


def test_a_unit_that_was_reserved_long_ago_is_put_back_unrun(worker: Worker) -> None:
    """The process was frozen meanwhile: others may have recovered it, and run the job."""
    ran: list[float] = []
    ages = (0.0, STALE_UNIT_SECONDS - 0.1, STALE_UNIT_SECONDS + 0.1, 3_600.0)

    @job()
    def note(age: float) -> None:
        ran.append(age)

    now = worker.clock.monotonic()
    units = [Unit("default", encode({"class": "note", "args": [age]}), "token", "me", 0, now - age) for age in ages]
    outcomes = [worker.execution.execute(JobRun(unit, 0.0)) for unit in units]

    assert outcomes == [Done(), Done(), Requeue(), Requeue()]
    assert ran == list(ages[:2])
    assert worker.counted() == {("note", "default"): {"done": 2}}


@pytest.mark.parametrize("job_log", ["done", "off"])
def test_a_failure_in_the_sense_of_its_work_is_said_and_counted(setup: Setup, registry: Registry, job_log: str) -> None:
    """Without a batch, nobody else knows of it: the job is done."""

    @job(name="import")
    def refuse(row: int) -> None:
        raise NormalFailure(f"row {row} has no name")

    worker = Worker(setup, registry, Config(log_jobs=job_log))

    assert worker.run("import", 7) == Done()

    assert [(event, fields["reason"]) for event, fields in worker.events] == [
        ("job_normal_failure", "row 7 has no name")
    ]
    assert worker.sample("normal_failures_total", "import") == 1
    assert worker.sample("failed_total", "import") == 0


def test_outcomes_are_said_once_each(worker: Worker) -> None:
    job(name="broken")(fail)
    job(name="nothing")(lambda: None)
    for name, keys in (("nothing", {}), ("broken", {}), ("broken", {"retry": 0}), ("broken", {"retry": False})):
        worker.run(name, **keys)
    worker.run("nobody")
    worker.run_bytes(b"rubbish")

    said = [(event, fields.get("outcome")) for event, fields in worker.events if event != "job_start"]
    assert said == [
        ("job_done", None),
        ("job_failed", "failed, will be retried"),
        ("job_failed", "failed, buried"),
        ("job_failed", "failed, discarded"),
        ("job_failed", "deferred"),
        ("job_failed", "cannot run, buried"),
    ]
