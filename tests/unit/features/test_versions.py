"""Versions: old payloads run, newer ones wait, and the job is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kiqcluster import Client, current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import JobDefinitionError
from kiqcluster.features.stacks import current_stacks
from kiqcluster.features.versions import VersionCheck
from kiqcluster.sidekiq.active_job import WRAPPER, enveloped
from kiqcluster.sidekiq.outcome import Deferred, Done, Retry
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_execution import Feature, Worker, entry


@pytest.fixture
def ran(registry: Registry) -> list[Any]:
    """What ran, with the version that the job was told."""
    ran: list[Any] = []

    @job(version=2)
    def resize(path: str, width: int = 0) -> None:
        context = current_job()
        assert context is not None
        ran.append((path, width, context.version))

    @job
    def plain(path: str) -> None:
        context = current_job()
        assert context is not None
        ran.append((path, context.version))

    return ran


class TestPush:
    def test_the_version_of_the_class_is_written(self, ran: list[Any], written: Written, registry: Registry) -> None:
        Client().push({"class": "resize", "args": ["a"]})
        Client().push_bulk({"class": "resize", "args": [["a"], ["b"]]})
        Client().push({"class": "plain", "args": ["a"]})

        assert [each.get("version") for each in written.payloads()] == [2, 2, 2, None]

    def test_a_release_may_still_write_the_former_one(self, registry: Registry, written: Written) -> None:
        @job(version=2)
        def resize(path: str) -> None: ...

        resize.set(version=1).perform_async("a")

        assert written.payloads()[0]["version"] == 1

    @pytest.mark.parametrize("version", [-1, "2", True, 1.5, None])
    def test_a_version_is_a_whole_number(self, registry: Registry, version: Any) -> None:
        with pytest.raises(JobDefinitionError, match="version = "):
            job(name="resize", version=version)(lambda path: None)


class TestRun:
    @pytest.mark.parametrize(("keys", "told"), [({}, 0), ({"version": 0}, 0), ({"version": 1}, 1), ({"version": 2}, 2)])
    def test_a_version_up_to_that_of_the_class_runs_and_is_told(
        self, worker: Worker, ran: list[Any], keys: dict[str, Any], told: int
    ) -> None:
        assert worker.run("resize", "a", **keys) == Done()
        assert ran == [("a", 0, told)]

    @pytest.mark.parametrize("value", ["3", 3.5, None, True, [3]])
    def test_what_is_no_version_counts_as_none(self, worker: Worker, ran: list[Any], value: Any) -> None:
        assert worker.run("resize", "a", version=value) == Done()
        assert ran == [("a", 0, 0)]

    @pytest.mark.parametrize(("name", "version"), [("resize", 3), ("plain", 1), ("plain", 10**30)])
    @pytest.mark.parametrize("retry", [True, False, 0])
    def test_a_newer_one_is_deferred_whatever_its_retry(
        self, worker: Worker, ran: list[Any], name: str, version: int, retry: bool | int
    ) -> None:
        outcome = worker.run(name, "a", version=version, retry=retry)

        payload = entry(outcome)
        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + 30
        assert (payload["deferred_by"], payload["deferred_count"], payload["version"]) == ("version", 1, version)
        assert payload.keys().isdisjoint({"retry_count", "error_class"})
        assert ran == []
        assert worker.counted()[name, "default"].items() >= {"deferred": 1, "skipped": 1}.items()
        assert worker.reported == []

    def test_a_newer_one_is_deferred_though_its_arguments_do_not_fit(self, worker: Worker, ran: list[Any]) -> None:
        assert isinstance(worker.run("resize", "a", 5, "jpeg", version=3), Deferred)
        assert isinstance(worker.run("resize", "a", 5, "jpeg", version=2), Retry)
        assert ran == []

    @pytest.mark.parametrize(("count", "delay"), [(0, 30), (1, 60), (3, 120), (9, 300), (10**30, 300), (-1, 30)])
    def test_it_waits_longer_each_time_without_an_end(
        self, worker: Worker, ran: list[Any], count: int, delay: float
    ) -> None:
        outcome = worker.run("resize", "a", version=3, deferred_by="version", deferred_count=count)

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + delay

    def test_deferrals_of_others_do_not_count(self, worker: Worker, ran: list[Any]) -> None:
        outcome = worker.run("resize", "a", version=3, deferred_by="unknown_class", deferred_count=9)

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.now() + 30

    def test_no_other_feature_is_asked_about_one(self, worker: Worker, ran: list[Any]) -> None:
        class Never(Feature):
            def on_begin(self, run: Any) -> Any:
                raise AssertionError("its arguments may not be those that it expects")

        worker.play(*current_stacks().server, Never())

        assert isinstance(worker.run("resize", version=3), Deferred)
        assert worker.asked == []

    def test_a_job_of_rails_too(self, worker: Worker) -> None:
        ran: list[Any] = []
        job(name="SyncJob", active_job=True, version=1)(lambda path: ran.append(path))
        envelope = enveloped("SyncJob", "default", ["a"], 1.5)

        assert isinstance(worker.run(WRAPPER, envelope, wrapped="SyncJob", version=2), Deferred)
        assert worker.run(WRAPPER, envelope, wrapped="SyncJob", version=1) == Done()
        assert ran == ["a"]

    def test_each_version_of_a_class_is_logged_once(
        self, worker: Worker, ran: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        worker.play(VersionCheck())

        with caplog.at_level(logging.WARNING, "kiqcluster"):
            for version in (3, 3, 4, 3):
                worker.run("resize", "a", version=version)

        said = [each.getMessage() for each in caplog.records]
        assert [each.split(" wait ")[0] for each in said] == [
            "resize: payloads of version 3",
            "resize: payloads of version 4",
        ]
