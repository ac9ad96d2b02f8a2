"""Declarations: what a test declares ends with it, and what modules declare does not."""

from __future__ import annotations

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import forgetting_declarations, forgetting_local_jobs


def test_jobs_of_functions_are_forgotten_so_that_their_names_are_free(registry: Registry) -> None:
    def declare() -> None:
        @job
        def welcome() -> None: ...

    with forgetting_local_jobs():
        declare()

    assert registry.get("welcome") is None

    @job
    def welcome() -> None: ...

    assert registry.get("welcome") is welcome.definition


def test_jobs_of_modules_stay_for_they_are_imported_once(registry: Registry) -> None:
    module: dict[str, object] = {"__name__": "late"}

    with forgetting_local_jobs():
        exec("from kiqcluster import job\n@job\ndef late(): ...", module)

    assert registry.get("late") is not None


def test_middleware_handlers_hooks_and_settings_are_as_before(setup: Setup) -> None:
    def middleware(subject, proceed):
        return proceed()

    def handler(*facts: object) -> None: ...

    def hook() -> None: ...

    setup.configure(max_retries=3)
    setup.config = None
    setup.client_middleware.add(middleware)
    for event in ("startup", "shutdown"):
        setup.hooks.on(event)(hook)
        setup.hooks.on(event)(handler)
    before = _contents(setup)
    assert before["max_retries"] == 3

    with pytest.raises(ZeroDivisionError), forgetting_declarations() as same:
        assert same is setup
        setup.client_middleware.clear()
        setup.server_middleware.add(middleware)
        setup.error_handler(handler)
        setup.death_handler(handler)
        setup.hooks.on("shutdown")(lambda: None)
        setup.hooks.on("ready")(lambda: None)
        setup.configure(max_retries=9)
        setup.store = None
        assert setup.current_config().max_retries == 9
        raise ZeroDivisionError

    assert _contents(setup) == before


def _contents(setup: Setup) -> dict[str, object]:
    return {
        "links": (setup.client_middleware.stack, setup.server_middleware.stack),
        "handlers": (list(setup.error_handlers), list(setup.death_handlers)),
        "hooks": {event: setup.hooks.of(event) for event in ("startup", "ready", "shutdown")},
        "max_retries": (setup.config or setup.current_config() or Config()).max_retries,
        "store": setup.store,
    }
