"""Events and the hooks of a process' life."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process.events import LIFECYCLE, Events, Fields, Hooks


class TestHooks:
    @pytest.mark.parametrize("event", ["startup", "ready", "resume", "heartbeat", "beat", "fork"])
    def test_hooks_run_in_the_order_of_registration(self, event: str) -> None:
        hooks = Hooks()
        first, second = hooks.on(event)(lambda: 1), hooks.on(event)(lambda: 2)

        assert hooks.of(event) == [first, second]

    @pytest.mark.parametrize("event", ["quiet", "shutdown", "exit"])
    def test_those_that_take_down_run_in_reverse(self, event: str) -> None:
        hooks = Hooks()
        first, second = hooks.on(event)(lambda: 1), hooks.on(event)(lambda: 2)

        assert hooks.of(event) == [second, first]

    def test_the_decorator_leaves_the_function_as_it_is(self) -> None:
        def connect() -> None: ...

        assert Hooks().on("startup")(connect) is connect

    def test_an_unknown_event_is_refused_with_the_nearest_known_one(self) -> None:
        with pytest.raises(UsageError, match="did you mean 'startup'"):
            Hooks().on("start_up")

    def test_an_event_like_no_other_is_refused_with_all_that_there_are(self) -> None:
        with pytest.raises(UsageError) as caught:
            Hooks().on("xyzzy")

        assert all(event in str(caught.value) for event in LIFECYCLE)

    def test_what_of_returns_is_the_callers_own(self) -> None:
        hooks = Hooks()
        hooks.of("startup").append(lambda: None)

        assert hooks.of("startup") == []


def test_every_listener_hears_every_event_in_order() -> None:
    events, heard = Events(), list[tuple[int, str, Fields]]()
    events.listen(lambda event, fields: heard.append((1, event, fields)))
    events.listen(lambda event, fields: heard.append((2, event, fields)))

    events.emit("recovered", units=3)
    events.emit("worker_left")

    assert heard == [
        (1, "recovered", {"units": 3}),
        (2, "recovered", {"units": 3}),
        (1, "worker_left", {}),
        (2, "worker_left", {}),
    ]


@pytest.mark.parametrize("wrong", [lambda payload: None, "connect", None])
def test_a_hook_that_cannot_be_called_is_refused(wrong: Any) -> None:
    hooks = Hooks()

    with pytest.raises(UsageError, match="a handler of startup"):
        hooks.on("startup")(wrong)

    assert hooks.of("startup") == []


def test_a_hook_that_nobody_would_await_is_refused() -> None:
    async def connect() -> None: ...

    with pytest.raises(UsageError, match="nobody would await"):
        Hooks().on("startup")(connect)
