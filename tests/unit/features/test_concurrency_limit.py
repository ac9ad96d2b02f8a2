"""Concurrency limits: which limit and which key a job counts for."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import UsageError
from kiqcluster.features.limits.concurrency_limit import ConcurrencyLimits, key_of, limit_of
from kiqcluster.sidekiq.active_job import WRAPPER

pytestmark = pytest.mark.usefixtures("registry")


class TestLimit:
    @pytest.mark.parametrize(
        ("declared", "limit"),
        [
            (5, 5),
            (0, 0),
            (-1, -1),
            (lambda: 7, 7),
            ("10%", 3),
            ("100%", 25),
            ("1%", 1),
            ("12.5%", 4),
            (lambda: "50%", 13),
        ],
    )
    def test_is_a_number_or_a_part_of_25_threads_rounded_up(self, declared: Any, limit: int) -> None:
        assert limit_of(declared, 25) == limit

    def test_is_none_where_a_function_returns_nothing(self) -> None:
        assert limit_of(lambda: None, 25) == 0

    @pytest.mark.parametrize("answer", [True, 2.0, "many", b"3"])
    def test_another_answer_of_a_function_is_refused(self, answer: object) -> None:
        with pytest.raises(UsageError, match="concurrency_limit"):
            limit_of(lambda: answer, 25)  # type: ignore[arg-type,return-value]  # that is the point


class TestKey:
    def test_a_class_without_keys_has_one_limit(self) -> None:
        @job(concurrency_limit=1)
        def sync(account: int) -> None: ...

        assert key_of(sync.definition, {"class": "sync", "args": [7]}) == ""

    @pytest.mark.parametrize(("account", "key"), [(7, "7"), ("Zoë|1", "Zoë|1"), ("x" * 100, "x" * 100)])
    def test_is_what_the_function_returns_of_the_arguments(self, account: Any, key: str) -> None:
        @job(concurrency_limit=1, concurrency_key=lambda account, **_: account)
        def sync(account: object) -> None: ...

        assert key_of(sync.definition, {"class": "sync", "args": [account]}) == key

    def test_a_long_one_is_shortened_to_its_digest(self) -> None:
        @job(concurrency_limit=1, concurrency_key=lambda text: text)
        def sync(text: str) -> None: ...

        keys = {key_of(sync.definition, {"class": "sync", "args": ["x" * length]}) for length in (101, 102)}
        assert {len(key) for key in keys} == {40}
        assert len(keys) == 2

    def test_one_with_half_a_character_is_replaced_by_its_digest(self) -> None:
        """Any JSON may have such text, and Redis' keys may not."""

        @job(concurrency_limit=1, concurrency_key=lambda text: text)
        def sync(text: str) -> None: ...

        keys = {
            key_of(sync.definition, {"class": "sync", "args": [text]})
            for text in ("\ud800", "\ud801", "\ud800" + "x" * 200)
        }
        assert len(keys) == 3
        assert all(key.isascii() for key in keys)

    def test_one_with_a_colon_is_replaced_by_its_digest(self) -> None:
        """Its set might have the name of another one's line."""

        @job(concurrency_limit=1, concurrency_key=lambda text: text)
        def sync(text: str) -> None: ...

        texts = ["x:parked", "x:turns", "x:places"]
        keys = {key_of(sync.definition, {"class": "sync", "args": [text]}) for text in texts}
        assert len(keys) == len(texts)
        assert not any(":" in key for key in keys)

    def test_is_none_where_the_function_returns_nothing(self) -> None:
        @job(concurrency_limit=1, concurrency_key=lambda: None)
        def sync() -> None: ...

        assert key_of(sync.definition, {"class": "sync", "args": []}) is None

    @pytest.mark.parametrize("answer", ["", True, 2.5, ["a"]])
    def test_another_answer_is_refused(self, answer: object) -> None:
        @job(concurrency_limit=1, concurrency_key=lambda: answer)  # type: ignore[arg-type,return-value]  # the point
        def sync() -> None: ...

        with pytest.raises(UsageError, match="sync"):
            key_of(sync.definition, {"class": "sync", "args": []})

    def test_of_a_job_of_rails_the_arguments_in_its_envelope_count(self, registry: Registry) -> None:
        @job(name="SyncJob", active_job=True, concurrency_limit=1, concurrency_key=lambda account, *, region: region)
        def sync(account: int, *, region: str) -> None: ...

        definition = sync.definition.enveloped
        assert definition is not None
        envelope = sync.definition.envelope({"queue": "default"}, 0.0)[2](
            sync.definition.positional((7,), {"region": "eu"})
        )
        assert key_of(definition, {"class": WRAPPER, "args": envelope}) == "eu"
        assert key_of(sync.definition, {"class": WRAPPER, "args": envelope}) == "eu"  # as at its end


def test_only_jobs_that_declare_a_limit_use_it() -> None:
    feature = ConcurrencyLimits()

    @job(concurrency_limit=0)
    def limited() -> None: ...

    @job
    def free() -> None: ...

    assert feature.is_used_by(limited.definition)
    assert not feature.is_used_by(free.definition)
