"""The shared: which units run, in memory that outlives the child."""

from __future__ import annotations

import sys
from itertools import count
from threading import Event, Thread

import pytest

from kiqcluster.ipc.running_jobs import TOKEN_BYTES, RunningJobs
from tests.kit import wait_until

TOKEN = "00000001.0000000001.00001"


@pytest.fixture
def shared() -> RunningJobs:
    """A shared of three processors."""
    return RunningJobs(3)


def test_it_holds_what_runs_in_the_order_of_processors(shared: RunningJobs) -> None:
    shared.start(2, "c")
    shared.start(0, "a")

    assert shared.tokens() == ["a", "c"]


def test_what_has_finished_is_gone(shared: RunningJobs) -> None:
    shared.start(0, "a")
    shared.start(1, "b")
    shared.finish(0)

    assert shared.tokens() == ["b"]


def test_a_shorter_token_after_a_longer_one_is_whole(shared: RunningJobs) -> None:
    shared.start(1, TOKEN)
    shared.start(1, "x")

    assert shared.tokens() == ["x"]


def test_neighbours_do_not_touch_each_other_with_the_longest_token(shared: RunningJobs) -> None:
    tokens = [letter * (TOKEN_BYTES - 1) for letter in "abc"]
    for processor, token in enumerate(tokens):
        shared.start(processor, token)

    assert shared.tokens() == tokens


def test_a_token_of_the_engine_fits() -> None:
    assert len(TOKEN) < TOKEN_BYTES


def test_finishing_twice_or_before_a_start_is_harmless(shared: RunningJobs) -> None:
    shared.finish(0)
    shared.start(0, "a")
    shared.finish(0)
    shared.finish(0)

    assert shared.tokens() == []


def test_clearing_forgets_all(shared: RunningJobs) -> None:
    for processor in range(3):
        shared.start(processor, "a")
    shared.clear()

    assert shared.tokens() == []


def test_clearing_may_keep_some(shared: RunningJobs) -> None:
    for processor, token in enumerate(("a", "b", "c")):
        shared.start(processor, token)
        shared.limit(processor, token, 5.0)
    shared.clear(keep=("b", "x"))

    assert (shared.tokens(), shared.limits()) == (["b"], {"b": 5.0})


def test_the_thread_of_each_unit_is_known(shared: RunningJobs) -> None:
    for processor in range(3):
        shared.thread(processor, 70_000 + processor)
    shared.start(2, "c")
    shared.start(0, "a")
    shared.stamp(5.0, [])

    assert shared.threads() == {"a": 70_000, "c": 70_002}


def test_a_board_for_nobody_is_empty() -> None:
    shared = RunningJobs(0)

    assert shared.tokens() == []
    shared.clear()
    shared.close()


class TestJobs:
    """What is known of a unit beside its token."""

    @pytest.mark.parametrize("size", [0, 400, 1_000, 100_000])
    def test_a_job_has_its_class_and_jid_however_long_it_is(self, shared: RunningJobs, size: int) -> None:
        payload = b'{"class":"Invoice","args":["%s",{"class":"not","jid":"this"}],"queue":"default","jid":"abc"}'
        shared.start(1, "t", b'{"class":"Longer","args":["%s"]}' % (b"y" * 900))
        shared.start(1, TOKEN, payload % (b"x" * size))

        (job,) = shared.jobs()

        assert (job.token, job.jid, job.name) == (TOKEN, "abc", "Invoice")

    def test_it_has_run_since_it_was_seen_to_begin_or_since_the_last_look_at_most(self, shared: RunningJobs) -> None:
        shared.start(0, "old")
        shared.start(1, "older")
        shared.stamp(1_000.0, [(0, "old", 999.5), (1, "older", 900.0)])
        shared.start(1, "new")

        assert [(each.token, each.since) for each in shared.jobs()] == [("old", 999.5), ("new", 1_000.0)]
        assert [each.as_json(1_002.0)["seconds"] for each in shared.jobs()] == [2.5, 2.0]

    def test_bytes_that_are_no_job_have_words_for_it(self, shared: RunningJobs) -> None:
        for processor, payload in enumerate((b"\xff" * 10, b"\xff" * 10_000, b"[1]")):
            shared.start(processor, "t", payload)

        assert [each.jid for each in shared.jobs()] == ["(no jid)"] * 3

    def test_of_neighbours_each_has_its_own(self, shared: RunningJobs) -> None:
        for number in range(3):
            shared.start(number, "t", b'{"class":"C%d","jid":"%s"}' % (number, b"j" * 2_000))
        shared.finish(1)

        assert [each.name for each in shared.jobs()] == ["C0", "C2"]


def test_a_reader_beside_a_busy_processor_takes_no_unit_for_another(shared: RunningJobs) -> None:
    ended = Event()

    def work() -> None:
        for number in count():
            if ended.is_set():
                return
            shared.start(0, f"{number}", b'{"class":"X","jid":"%d","args":["%s"]}' % (number, b"x" * (number % 900)))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    worker = Thread(target=work)
    worker.start()
    try:
        wait_until(shared.jobs, "the worker to begin")
        seen = [job for _ in range(3_000) for job in shared.jobs()]
    finally:
        ended.set()
        worker.join()
        sys.setswitchinterval(usual)

    assert seen
    assert all(job.jid == job.token for job in seen)


class TestAsync:
    @pytest.fixture
    def shared(self) -> RunningJobs:
        """A shared of two processors, and of three jobs on the event loop."""
        return RunningJobs(2, 3)

    def test_only_the_one_whose_step_was_the_last_does_not_wait(self, shared: RunningJobs) -> None:
        shared.start(0, "thread")
        for record, token in enumerate(("a", "b"), 2):
            shared.start_async(record, token, b"{}")
        shared.step(2)
        shared.step(3)

        assert {each.token: each.is_waiting for each in shared.jobs()} == {"thread": False, "a": True, "b": False}

    def test_once_it_has_ended_all_wait(self, shared: RunningJobs) -> None:
        for record, token in enumerate(("a", "b"), 2):
            shared.start_async(record, token, b"{}")
        shared.step(3)
        shared.finish(3)

        assert [(each.token, each.is_waiting) for each in shared.jobs()] == [("a", True)]

    def test_its_thread_is_that_of_the_loop(self, shared: RunningJobs) -> None:
        for record, token in enumerate(("a", "b"), 2):
            shared.start_async(record, token, b"{}")
            shared.thread(record, 4711)
        shared.step(2)

        assert shared.threads() == {"a": 4711}

    def test_the_last_record_is_found(self, shared: RunningJobs) -> None:
        shared.start_async(4, "last", b"{}")
        shared.limit(4, "last", 2.5)
        shared.stamp(10.0, [(4, "last", 7.0)])

        (running,) = shared.jobs()
        assert (running.token, running.since) == ("last", 7.0)
        assert shared.limits() == {"last": 2.5}
        shared.clear()
        assert shared.tokens() == []
