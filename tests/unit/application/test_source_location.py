"""Source location: two jobs of one name are refused, and a job whose module runs again replaces the former one."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kiqcluster import Job, job
from kiqcluster.application.registry import current_registry
from kiqcluster.contrib.celery import shared_task
from kiqcluster.errors import JobDefinitionError

TWO_OF_ONE_NAME = r"two jobs are named .*test_source_location.*test_source_location.*functools\.wraps"
JOBS = """
from kiqcluster import Job, job
from kiqcluster.contrib.celery import shared_task
from tests.unit.application.test_source_location import decorated

@job(name="Charge")
@decorated
def charge(n): ...

class Refund(Job):
    factor = object()
    def perform(self, n): ...

@shared_task
def remind(n): ...
"""


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate without functools.wraps, so that all functions have one name."""

    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def charge(n: int) -> None: ...
def refund(n: int) -> None: ...


@pytest.mark.parametrize("declare", [job, shared_task])
def test_two_functions_that_a_decorator_gives_one_name_are_refused(declare: Any) -> None:
    declare(decorated(charge))
    with pytest.raises(JobDefinitionError, match=TWO_OF_ONE_NAME):
        declare(decorated(refund))


def test_functions_under_a_decorator_with_wraps_keep_their_names() -> None:
    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(decorated(function))

    job(wrapped(charge))
    job(wrapped(refund))

    assert {each.name for each in current_registry()} == {"charge", "refund"}


def test_a_function_of_the_same_name_further_down_is_refused() -> None:
    @job
    def notify(n: int) -> None: ...

    with pytest.raises(JobDefinitionError, match="two jobs are named 'notify'"):

        @job
        def notify(n: int) -> None: ...


def test_jobs_that_a_loop_makes_of_different_values_are_refused_without_names_of_their_own() -> None:
    def make(factor: int, name: str | None = None) -> Any:
        @job(name=name)
        def scale(n: int) -> int:
            return n * factor

        return scale

    make(2)
    with pytest.raises(JobDefinitionError, match="two jobs are named 'scale'"):
        make(3)
    make(3, "scale_by_3")


def test_classes_that_a_loop_makes_of_different_values_are_refused() -> None:
    def make(client: str) -> Any:
        class Sync(Job):
            url = client

            def perform(self) -> None: ...

        return Sync

    make("one")
    with pytest.raises(JobDefinitionError, match="two jobs are named 'Sync'"):
        make("other")


def test_a_function_that_declares_its_jobs_may_be_called_again() -> None:
    def create_app() -> Any:
        @job(queue="mailers")
        def welcome(n: int) -> None:
            welcome.perform_async(n)

        class Report(Job):
            def perform(self) -> None: ...

        return welcome

    assert create_app() is not create_app()


class TestAgain:
    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        (tmp_path / "jobs_to_reload.py").write_text(JOBS)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "jobs_to_reload", raising=False)
        return importlib.import_module("jobs_to_reload")

    def test_a_reload_replaces_the_jobs_of_a_module(self, module: ModuleType) -> None:
        before = {each.name: each for each in current_registry()}
        importlib.reload(module)

        after = {each.name: each for each in current_registry()}
        assert after.keys() == before.keys() == {"Charge", "Refund", "jobs_to_reload.remind"}
        assert all(after[name] is not before[name] for name in before)

    def test_so_does_an_import_after_the_module_was_forgotten(self, module: ModuleType) -> None:
        del sys.modules["jobs_to_reload"]

        assert importlib.import_module("jobs_to_reload").Refund is not module.Refund

    def test_a_cell_of_a_notebook_may_define_its_job_otherwise(self) -> None:
        cells = {"__name__": "__main__", "job": job}
        for number in range(3):
            cell = f"@job\ndef total(n):\n    return n + {number}"
            exec(compile(cell, f"<cell {number}>", "exec"), cells)  # as notebooks and prompts do

        assert [each.name for each in current_registry()] == ["total"]

    def test_a_program_that_runs_its_compiled_script_again_may_declare_its_jobs_again(self) -> None:
        script = compile("class Row(Job):\n    kept = []\n    def perform(self): ...", "app.py", "exec")
        for _ in range(2):
            exec(script, {"__name__": "__main__", "Job": Job})  # as Streamlit does

        assert len(current_registry()) == 1
