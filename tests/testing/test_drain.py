"""Drain: what is enqueued runs as a worker would run it, in order, and what becomes of it is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kiqcluster import DISCARD, Client, Interrupted, Job, job
from kiqcluster.errors import MisfitArguments, UsageError
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Run, Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Requeue, Retry
from kiqcluster.testing import Fake, FrozenClock, dead, drain, enqueued, fake, frozen_clock, inline, performed, retries

START = 1_893_456_000.0  # 2030-01-01 00:00 UTC


@pytest.fixture(autouse=True)
def jobs(setup: Setup):
    with fake() as jobs:
        yield jobs


@pytest.fixture
def clock():
    with frozen_clock(START) as clock:
        yield clock


@pytest.fixture
def ran() -> list:
    return []


@pytest.fixture
def note(setup: Setup, ran: list):
    @job(queue="notes")
    def note(value: object) -> None:
        ran.append(value)

    return note


class TestWhatRuns:
    def test_everything_in_the_order_of_its_push(self, note, ran) -> None:
        for value in ("a", "b", "c"):
            note.set(queue=f"queue-{value}").perform_async(value)

        assert drain() == 3
        assert ran == ["a", "b", "c"]
        assert enqueued() == []
        assert drain() == 0

    def test_the_name_of_a_job_in_the_place_of_a_queue_is_refused_for_it_would_run_nothing(self, note) -> None:
        note.perform_async("a")

        with pytest.raises(UsageError, match="pass the job itself"):
            drain("note")
        assert drain("notes") == 1
        assert drain("nobody's queue") == 0

    def test_what_jobs_push_too(self, ran) -> None:
        @job
        def countdown(left: int) -> None:
            ran.append(left)
            if left:
                countdown.perform_async(left - 1)

        countdown.perform_async(3)

        assert drain() == 4
        assert ran == [3, 2, 1, 0]

    def test_only_the_jobs_and_queues_that_are_named(self, note, ran) -> None:
        class Other(Job, queue="other"):
            def perform(self, value: str) -> None:
                ran.append(value)

        note.perform_async("note")
        Other.perform_async("other")
        note.set(queue="low").perform_async("low")

        assert drain("low") == 1
        assert drain(Other) == 1
        assert ran == ["low", "other"]
        assert [each.args for each in enqueued()] == [["note"]]

    def test_a_job_has_its_context_and_fresh_arguments(self) -> None:
        seen = []

        class Look(Job, queue="low"):
            def perform(self, value: list) -> None:
                seen.append((current_job().jid, current_job().queue, current_job().stopping, value))

        value = [1]
        jid = Look.perform_async(value)
        drain()

        assert seen == [(jid, "low", False, [1])]
        assert seen[0][3] is not value

    def test_server_middleware_is_around_it(self, setup: Setup, note, ran) -> None:
        def middleware(run: Run, proceed):
            ran.append(("before", run.payload["args"], run.queue))
            outcome = proceed()
            ran.append("after")
            return outcome

        setup.server_middleware.add(middleware)
        note.perform_async(1)
        drain()

        assert ran == [("before", [1], "notes"), 1, "after"]

    def test_jobs_that_only_ruby_has_stay(self, note, ran) -> None:
        Client().push({"class": "Acme::Mail", "args": [1]})
        note.perform_async(2)

        assert drain() == 1
        assert [each.name for each in enqueued()] == ["Acme::Mail"]

    def test_a_chain_without_an_end_is_cut_with_words_that_say_so(self, monkeypatch) -> None:
        monkeypatch.setattr("kiqcluster.testing.memory.MAX_RUNS", 50)

        @job
        def again() -> None:
            again.perform_async()

        again.perform_async()

        with pytest.raises(AssertionError, match=r"50 jobs have run, and again\(\) on default is still to come"):
            drain()


class TestSchedule:
    def test_a_scheduled_job_runs_when_the_clock_says_so(self, note, ran, clock: FrozenClock) -> None:
        note.perform_in(60, "later")
        assert drain() == 0

        clock.move(59)
        assert drain() == 0
        clock.move(1)
        assert drain() == 1

        assert ran == ["later"]

    def test_due_jobs_run_in_the_order_of_their_times(self, note, ran, clock: FrozenClock) -> None:
        note.perform_at(datetime(2030, 1, 1, 2, tzinfo=UTC), "two")
        note.perform_at(datetime(2030, 1, 1, 1, tzinfo=UTC), "one")
        clock.set(datetime(2030, 1, 1, 3, tzinfo=UTC))

        drain()

        assert ran == ["one", "two"]

    def test_whoever_does_not_care_for_the_time_says_so(self, note, ran, clock: FrozenClock) -> None:
        note.perform_in(3_600, "later")

        assert drain(scheduled=True) == 1

        assert ran == ["later"]
        assert clock.now() == START

    def test_scheduled_jobs_and_retries_are_asked_for_each_by_itself(self, note, clock: FrozenClock) -> None:
        @job
        def fail() -> None:
            raise ValueError

        fail.perform_async()
        drain(raise_errors=False)
        note.perform_in(3_600, "later")

        assert drain(retries=True, raise_errors=False) == 1
        assert len(enqueued(note)) == len(retries(fail)) == 1
        assert drain(scheduled=True) == 1
        assert len(retries(fail)) == 1

    def test_one_that_schedules_itself_runs_once_per_drain(self, ran) -> None:
        @job
        def poll() -> None:
            ran.append(1)
            poll.perform_in(60)

        poll.perform_in(60)

        assert drain(scheduled=True) == 1
        assert drain(scheduled=True) == 1
        assert len(enqueued(poll)) == 1

    def test_client_middleware_sees_it_again_when_it_is_due(self, setup: Setup, note, ran, clock: FrozenClock) -> None:
        seen = []

        def middleware(push: Push, proceed):
            seen.append(push.at)
            return None if len(seen) == 3 else proceed()

        setup.client_middleware.add(middleware)
        note.perform_in(60, "a")
        note.perform_in(60, "b")
        clock.move(60)

        assert drain() == 1
        assert seen == [START + 60, START + 60, None, None]
        assert ran == ["b"]

    def test_middleware_that_fails_on_a_due_job_leaves_it_for_later(
        self, setup: Setup, note, clock: FrozenClock
    ) -> None:
        note.perform_in(60, "a")
        clock.move(60)
        setup.client_middleware.add(lambda push, proceed: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            drain()
        assert len(enqueued(note)) == 1

        assert drain(raise_errors=False) == 0
        setup.client_middleware.clear()
        clock.move(1)
        assert drain() == 1


class TestFailure:
    def test_the_jobs_error_is_raised_and_its_retry_kept(self, ran, clock: FrozenClock) -> None:
        @job(retry=3)
        def fail() -> None:
            ran.append(1)
            raise ValueError("no")

        fail.perform_async()

        with pytest.raises(ValueError, match="no"):
            drain()

        (kept,) = retries(fail)
        assert (kept.retry_count, kept.error_class, kept.error_message) == (0, "ValueError", "no")
        assert START + 15 <= kept.at <= START + 25
        assert enqueued() == []

    def test_retries_fall_on_the_same_seconds_in_every_run(self, jobs: Fake, clock: FrozenClock) -> None:
        @job
        def fail() -> None:
            raise ValueError

        for _ in range(2):
            fail.perform_async()
            drain(raise_errors=False)

        first, second = retries()
        assert first.at == second.at

    def test_what_comes_after_it_stays_enqueued(self) -> None:
        @job
        def divide(by: int) -> None:
            1 / by

        divide.perform_bulk([[1], [0], [2]])

        with pytest.raises(ZeroDivisionError):
            drain()
        assert [each.args for each in enqueued()] == [[2]]

        assert drain() == 1

    def test_or_all_go_on_as_in_a_worker(self) -> None:
        @job
        def divide(by: int) -> None:
            1 / by

        divide.perform_bulk([[1], [0], [2]])

        assert drain(raise_errors=False) == 3
        assert [type(each.outcome) for each in performed()] == [Done, Retry, Done]
        assert isinstance(performed(divide, 0)[0].error, ZeroDivisionError)

    def test_a_retry_runs_when_its_time_has_come(self, ran, clock: FrozenClock) -> None:
        @job
        def fail_once() -> None:
            ran.append(1)
            if len(ran) == 1:
                raise ValueError

        fail_once.perform_async()
        drain(raise_errors=False)
        assert drain() == 0

        clock.move(25)
        assert drain() == 1
        assert retries() == []

    def test_a_job_is_buried_when_its_retries_are_used_up(self, setup: Setup) -> None:
        deaths = []

        @job(retry=2)
        def fail() -> None:
            raise ValueError("no")

        setup.death_handler(lambda payload, error: deaths.append((payload["retry_count"], str(error))))
        fail.perform_async()
        runs = 0
        while drain(retries=True, raise_errors=False):
            runs += 1

        assert runs == 3
        assert [each.error_message for each in dead(fail)] == ["no"]
        assert deaths == [(2, "no")]
        assert isinstance(performed()[-1].outcome, Dead)

    def test_its_hooks_and_options_are_heeded(self) -> None:
        class Fail(Job, retry=5, retry_queue="slow"):
            def perform(self, word: str) -> None:
                raise ValueError(word)

            @staticmethod
            def retry_in(count: int, error: Exception, payload: dict) -> object:
                return DISCARD if str(error) == "discard" else 1_000

        @job(retry=False)
        def forget() -> None:
            raise ValueError

        Fail.perform_async("keep")
        Fail.perform_async("discard")
        forget.perform_async()
        drain(raise_errors=False)

        (kept,) = retries()
        assert kept.queue == "slow"
        assert kept.at - kept.failed_at >= 1_000
        assert [type(each.outcome) for each in performed()] == [Retry, Discard, Discard]

    def test_error_handlers_are_told(self, setup: Setup) -> None:
        reports = []

        @job
        def fail() -> None:
            raise ValueError("no")

        setup.error_handler(lambda error, context: reports.append((str(error), context["context"])))
        fail.perform_async()
        drain(raise_errors=False)

        assert reports == [("no", "job")]
        assert len(setup.error_handlers) == 1

    def test_arguments_that_do_not_fit_are_an_error_as_in_a_worker(self) -> None:
        Client().push({"class": "resize", "args": [1]})  # by a release that knew another signature

        @job
        def resize(number: int, unit: str) -> None: ...

        with pytest.raises(MisfitArguments):
            drain()

    def test_a_job_that_leaves_the_process_fails_and_leaves_nothing(self) -> None:
        @job
        def leave() -> None:
            raise SystemExit(3)

        leave.perform_async()

        assert drain(raise_errors=False) == 1
        assert len(retries(leave)) == 1

    @pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.skip.Exception, pytest.fail.Exception])
    def test_what_ends_the_test_is_no_jobs_failure(self, error: type[BaseException]) -> None:
        @job
        def end() -> None:
            raise error("end")

        end.perform_async()

        with pytest.raises(error):
            drain(raise_errors=False)


class TestOutcomesOfLinks:
    def test_a_job_that_is_put_off_waits_in_the_schedule(self, setup: Setup, note, ran, clock: FrozenClock) -> None:
        def middleware(run: Run, proceed):
            return (
                Deferred(b'{"class":"note","args":["x"],"queue":"notes"}', clock.now() + 60) if not ran else proceed()
            )

        setup.server_middleware.add(middleware)
        note.perform_async("x")
        drain()

        assert enqueued(note)[0].at == START + 60

    def test_a_job_that_is_put_back_is_the_next_to_run(self, setup: Setup, note, ran) -> None:
        seen = []

        def middleware(run: Run, proceed):
            seen.append(run.payload["args"])
            return Requeue() if len(seen) == 1 else proceed()

        setup.server_middleware.add(middleware)
        note.perform_async("a")
        note.perform_async("b")

        assert drain() == 3
        assert ran == ["a", "b"]

    def test_a_job_that_gives_way_runs_again_a_moment_later(self, ran, clock: FrozenClock) -> None:
        @job
        def give_way() -> None:
            ran.append(1)
            if len(ran) == 1:
                raise Interrupted

        give_way.perform_async()

        assert drain() == 1
        assert retries() == []
        clock.move(1)
        assert drain() == 1


def test_clear_forgets_everything(jobs: Fake, note) -> None:
    note.perform_async(1)
    drain()
    note.perform_async(2)

    jobs.clear()

    assert (jobs.enqueued(), jobs.performed(), jobs.drain()) == ([], [], 0)


class TestChains:
    @pytest.fixture
    def chain(self) -> Any:
        @job
        def download(url: str) -> Any:
            ran.append(url)
            return object() if url == "odd" else f"<{url}>"

        @job(queue="images")
        def resize(data: str, width: int) -> str:
            ran.append(data)
            return f"{data}@{width}"

        @job
        def publish(name: str) -> None:
            ran.append(name)

        ran: list[str] = []
        self.ran = ran
        return download.then(resize, 80).then(publish)

    def test_drain_runs_one_job_after_the_other(self, chain: Any) -> None:
        with fake() as jobs:
            chain.enqueue("a")
            (first,) = jobs.enqueued()
            assert [each["class"] for each in first.payload["kiq_then"]] == ["resize", "publish"]

            assert jobs.drain("default") == 1
            jobs.assert_enqueued("resize", "<a>", 80, queue="images", at=None)
            assert jobs.drain() == 2

        assert self.ran == ["a", "<a>", "<a>@80"]

    def test_inline_runs_all_before_the_push_returns(self, chain: Any) -> None:
        with inline() as jobs:
            handle = chain.enqueue("a")

        assert self.ran == ["a", "<a>", "<a>@80"]
        assert [each.payload["jid"] for each in jobs.performed()] == list(handle.jids)
        assert chain.perform_inline("b") is None
        assert self.ran[3:] == ["b", "<b>", "<b>@80"]

    def test_what_cannot_be_passed_on_buries_the_next_job(self, chain: Any) -> None:
        with fake() as jobs:
            chain.enqueue("odd")
            jobs.drain()

            (dead,) = jobs.dead("resize")
            assert dead.payload["error_class"] == "kiqcluster.errors.CannotRun"

    def test_a_progress_is_said_in_every_mode(self) -> None:
        @job
        def count() -> None:
            running = current_job()
            assert running is not None
            running.progress(1, 2)
            told.append(running.progressed)

        told: list[Any] = []
        with inline():
            count.perform_async()
        with fake() as jobs:
            count.perform_async()
            jobs.drain()

        assert told == [(1, 2), (1, 2)]
