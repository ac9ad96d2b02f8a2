"""The size limiter: what is written for large arguments, and what is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.client.reenqueue import added, enqueued, retried
from kiqcluster.errors import ExceedLimitError, PushError
from kiqcluster.process.config import MIN_LIMITED_BYTES, Config
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.compression import decompressed
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store import Store

THRESHOLD, LIMIT = 2_000, 5_000
NOW = 1_795_168_740.5
noise = Random(1).randbytes(20_000).hex()  # of which zlib saves a half only, and base64 takes a third of that back
Told = list[tuple[Exception, dict[str, Any]]]


class Written:
    """Takes all pushes, in place of Redis."""

    def __init__(self) -> None:
        self.jobs: list[Ready] = []

    def deliver(self, jobs: Sequence[Ready], store: Store | None) -> bool:
        self.jobs += jobs
        return True

    def raw(self) -> list[bytes]:
        return [each.encoded for each in self.jobs]

    def payloads(self) -> list[dict[str, Any]]:
        return [decode(each) for each in self.raw()]


@pytest.fixture
def told(setup: Setup) -> Told:
    """What error handlers were told."""
    told: Told = []
    setup.error_handler(lambda error, context: told.append((error, context)))
    return told


@pytest.fixture
def use(setup: Setup) -> Callable[..., None]:
    def use(mode: str, limit: int = LIMIT) -> None:
        setup.config = Config(
            size_limiter_mode=mode,
            size_limiter_compression_threshold=THRESHOLD,
            size_limiter_limit=limit,
        )

    return use


@pytest.fixture
def keep() -> Any:
    @job
    def keep(text: str) -> None: ...

    return keep


def text_of(size: int) -> str:
    """Return a text with which the arguments have so many bytes."""
    return "x" * (size - len('[""]'))


class TestTrack:
    def test_is_the_default_for_a_worker_of_plain_sidekiq_can_run_all_it_writes(self) -> None:
        assert Config().size_limiter_mode == "track"

    def test_a_job_beyond_the_limit_is_reported_and_pushed_as_it_is(
        self, use: Any, keep: Any, written: Written, told: Told
    ) -> None:
        use("track")

        keep.perform_async(text_of(LIMIT))
        assert told == []
        jid = keep.perform_async(text_of(LIMIT + 1))

        ((error, context),) = told
        assert isinstance(error, ExceedLimitError)
        assert (error.name, error.size, error.limit, context["context"]) == ("keep", LIMIT + 1, LIMIT, "size limiter")
        assert written.payloads()[-1]["args"] == [text_of(LIMIT + 1)]
        assert (written.jobs[-1].jid, "compressed" in written.payloads()[-1]) == (jid, False)


class TestRaise:
    def test_a_job_beyond_the_limit_is_refused_and_none_is_compressed(
        self, use: Any, keep: Any, written: Written, told: Told
    ) -> None:
        use("raise")

        keep.perform_async(text_of(LIMIT))
        with pytest.raises(ExceedLimitError, match=f"keep .*{LIMIT + 1} bytes, and {LIMIT} are allowed") as caught:
            keep.perform_async(text_of(LIMIT + 1))

        assert isinstance(caught.value, PushError)
        assert [each["args"] for each in written.payloads()] == [[text_of(LIMIT)]]
        assert told == []

    def test_with_a_limit_of_zero_nothing_is(self, use: Any, keep: Any, written: Written) -> None:
        use("raise", limit=0)

        assert keep.perform_async(text_of(1_000_000)) is not None


class TestCompress:
    def test_arguments_of_the_threshold_and_more_are_compressed(self, use: Any, keep: Any, written: Written) -> None:
        use("compress")

        keep.perform_async(text_of(THRESHOLD - 1))
        keep.perform_async(text_of(THRESHOLD))

        small, large = written.payloads()
        assert "compressed" not in small
        assert (large["compressed"], large["original_job_size_bytes"]) == (True, THRESHOLD)
        assert decompressed(large)["args"] == [text_of(THRESHOLD)]
        assert len(written.jobs[1].encoded) < 500

    def test_what_is_beyond_the_limit_even_so_is_refused(self, use: Any, keep: Any, written: Written) -> None:
        use("compress")

        keep.perform_async(text_of(100 * LIMIT))
        with pytest.raises(ExceedLimitError) as caught:
            keep.perform_async(noise)

        assert LIMIT < caught.value.size < len(noise)  # compressed
        assert len(written.jobs) == 1

    def test_what_it_does_not_make_smaller_stays(self, use: Any, keep: Any, written: Written) -> None:
        use("compress", limit=0)

        keep.perform_async(b64encode(Random(2).randbytes(3_000)).decode())

        assert "compressed" not in written.payloads()[0]

    @pytest.mark.parametrize("limit", ["MAX_ARGUMENTS_BYTES", "MAX_ARGUMENTS_VALUES"])
    def test_beyond_what_a_worker_unpacks_nothing_is_compressed(
        self, use: Any, keep: Any, written: Written, limit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"kiqcluster.sidekiq.compression.{limit}", 3_000)
        use("compress", limit=0)

        keep.perform_async(text_of(3_001) if limit == "MAX_ARGUMENTS_BYTES" else ["é" * 500, *range(3_000)])

        assert "compressed" not in written.payloads()[0]

    def test_a_class_with_big_payloads_is_compressed_and_never_refused(
        self, use: Any, written: Written, told: Told
    ) -> None:
        @job(big_payload=True)
        def hoard(text: str) -> None: ...

        for mode in ("compress", "raise", "track"):
            use(mode)
            hoard.perform_async(noise)
            hoard.perform_bulk([[noise]])

        assert ["compressed" in each for each in written.payloads()] == [True, True, False, False, False, False]
        assert all("big_payload" not in each for each in written.payloads())
        assert told == []

    @pytest.mark.parametrize("size", [THRESHOLD, 100 * LIMIT])
    def test_a_job_of_a_class_that_is_not_registered_too(self, use: Any, written: Written, size: int) -> None:
        use("compress")

        Client().push({"class": "Ruby::Job", "args": [text_of(size)]})
        Client().push_bulk({"class": "Ruby::Job", "args": [["small"], [text_of(size)]]})

        first, small, second = written.payloads()
        assert decompressed(first)["args"] == decompressed(second)["args"] == [text_of(size)]
        assert small["args"] == ["small"]

    def test_an_envelope_of_activejob_too(self, use: Any, written: Written) -> None:
        use("compress")

        @job(name="RemindJob", active_job=True)
        def remind(text: str, *, note: str = "") -> None: ...

        remind.perform_async(text_of(THRESHOLD), note="n")

        (payload,) = written.payloads()
        assert payload["wrapped"] == "RemindJob"
        assert decompressed(payload)["args"][0]["arguments"][0] == text_of(THRESHOLD)

    def test_what_is_compressed_is_not_compressed_again(self, use: Any, written: Written) -> None:
        use("compress")
        Client().push({"class": "X", "args": [text_of(LIMIT)]})
        (payload,) = written.payloads()

        Client().push({**payload, "args": [payload["args"][0] + " " * THRESHOLD]})

        assert written.payloads()[1]["args"][0].startswith(payload["args"][0])

    def test_middleware_and_features_see_the_arguments(
        self, use: Any, keep: Any, setup: Setup, written: Written
    ) -> None:
        use("compress")
        seen: list[Any] = []

        @setup.client_middleware.add
        def look(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append(push.payload["args"])
            return proceed()

        keep.perform_async(text_of(THRESHOLD))
        keep.perform_bulk([[text_of(THRESHOLD)]])

        assert seen == [[text_of(THRESHOLD)]] * 2
        assert all(each["compressed"] for each in written.payloads())


class TestBulk:
    def test_each_job_stands_for_itself(self, use: Any, keep: Any, written: Written) -> None:
        use("compress")
        sizes = [10, THRESHOLD, 20, LIMIT, 30]

        jids = keep.perform_bulk([[text_of(size)] for size in sizes])

        payloads = written.payloads()
        assert [each["jid"] for each in payloads] == jids
        assert ["compressed" in each for each in payloads] == [False, True, False, True, False]
        assert [decompressed(each)["args"] if "compressed" in each else each["args"] for each in payloads] == [
            [text_of(size)] for size in sizes
        ]

    @pytest.mark.parametrize("mode", ["raise", "compress"])
    def test_one_that_is_refused_refuses_all_and_is_named(
        self, use: Any, keep: Any, written: Written, mode: str
    ) -> None:
        use(mode)

        with pytest.raises(ExceedLimitError, match=r"entry 1: keep .* no job of this bulk push was enqueued"):
            keep.perform_bulk([["small"], [noise], ["small"]])

        assert written.jobs == []

    def test_track_reports_each(self, use: Any, keep: Any, written: Written, told: Told) -> None:
        use("track")

        keep.perform_bulk([["small"], [noise], [noise]])

        assert [type(error) for error, _ in told] == [ExceedLimitError] * 2
        assert len(written.jobs) == 3


class TestSmall:
    def test_a_small_payload_is_not_looked_at(
        self, use: Any, keep: Any, written: Written, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use("compress")
        looked: list[Any] = []
        monkeypatch.setattr("kiqcluster.features.payload.size_limiter.limited", lambda *facts: looked.append(facts))

        keep.perform_async("x" * (MIN_LIMITED_BYTES - 200))
        keep.perform_bulk([["x" * (THRESHOLD - 200)]] * 3)

        assert looked == []
        assert len(written.jobs) == 4


class TestMoves:
    """What the poller, or somebody by hand, moves to a queue."""

    @pytest.fixture
    def raw(self, use: Any, written: Written) -> bytes:
        use("compress")
        Client().push({"class": "X", "args": [text_of(THRESHOLD)], "at": NOW * 2})
        return written.jobs[0].encoded

    @pytest.mark.parametrize("move", [enqueued, added, retried])
    def test_it_stays_compressed_as_it_was(self, raw: bytes, setup: Setup, move: Any) -> None:
        moved = decode(move(setup, raw, NOW).new)

        assert moved == {**decode(raw), "enqueued_at": NOW}

    @pytest.mark.parametrize("move", [enqueued, added, retried])
    def test_middleware_sees_the_arguments_again(self, raw: bytes, setup: Setup, move: Any) -> None:
        seen: list[Any] = []

        @setup.client_middleware.add
        def look(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append((push.payload["args"], "compressed" in push.payload))
            push.payload["seen"] = True
            return proceed()

        moved = decode(move(setup, raw, NOW).new)

        assert seen == [([text_of(THRESHOLD)], False)]
        assert moved == {**decode(raw), "seen": True, "enqueued_at": NOW}

    def test_what_middleware_changes_is_compressed_again(self, raw: bytes, setup: Setup) -> None:
        @setup.client_middleware.add
        def change(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.payload["args"].append([1])
            return proceed()

        moved = decode(enqueued(setup, raw, NOW).new)

        assert decompressed(moved)["args"] == [text_of(THRESHOLD), [1]]
        assert moved["original_job_size_bytes"] == THRESHOLD + len(",[1]")

    def test_one_that_cannot_be_read_moves_as_it_is(self, setup: Setup) -> None:
        setup.client_middleware.add(lambda push, proceed: proceed())
        raw = encode({"class": "X", "args": ["no zlib"], "compressed": True, "queue": "q"})

        assert decode(enqueued(setup, raw, NOW).new) == {**decode(raw), "enqueued_at": NOW}
