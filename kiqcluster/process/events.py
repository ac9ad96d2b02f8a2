"""Events: a bus that passes the events of a process to listeners.

Loops emit events with fields and carry no log text; logs/wording.py has the texts.  Tests wait for them.  The lifecycle
events (LIFECYCLE) are also for applications: `@on("startup")`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

from kiqcluster.errors import UsageError
from kiqcluster.process.boundary.forms import check_form

__all__ = ["LIFECYCLE", "Events", "Fields", "Hooks", "LifecycleEvent"]

Fields = dict[str, Any]  # the facts of one event; names are stable API (docs/guides/logs.md)
Listener = Callable[[str, Fields], None]
Hook = Callable[[], object]
H = TypeVar("H", bound=Hook)

# In the order of a process' life.  Handlers that undo startup run in reverse order of registration, as in Sidekiq: the
# last set-up is torn down first.
LifecycleEvent = Literal["startup", "ready", "quiet", "resume", "shutdown", "exit", "heartbeat", "beat", "fork"]
LIFECYCLE: tuple[str, ...] = get_args(LifecycleEvent)
REVERSED = frozenset({"quiet", "shutdown", "exit"})


class Events:
    """A bus within one process.  Listeners are set up before threads start; emitting takes no lock."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, Callable[[str], bool]]] = []

    def listen(self, listener: Listener, hears: Callable[[str], bool] = lambda _: True) -> None:
        """hears: returns whether the listener handles an event; an event without a listener need not be emitted."""
        self._listeners.append((listener, hears))

    def emit(self, event: str, **fields: Any) -> None:
        for listener, _ in self._listeners:
            listener(event, fields)

    def is_heard(self, event: str) -> bool:
        """Return whether emitting the event has any effect; hot paths ask once at set-up."""
        return bool(self.hearers(event))

    def hearers(self, event: str) -> list[Listener]:
        """Return the listeners that handle an event."""
        return [listener for listener, hears in self._listeners if hears(event)]


class Hooks:
    """The application's handlers of lifecycle events."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {name: [] for name in LIFECYCLE}

    def on(self, event: LifecycleEvent) -> Callable[[H], H]:
        """Return a decorator that registers a handler without arguments.

        Raises UsageError for an unknown event, and for a handler that cannot be called so.
        """
        if event not in self._hooks:
            near = difflib.get_close_matches(event, LIFECYCLE, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the events are {', '.join(LIFECYCLE)}"
            raise UsageError(f"there is no event {event!r}; {hint}")

        def register(hook: H) -> H:
            check_form(f"a handler of {event}", hook, "()")
            self._hooks[event].append(hook)
            return hook

        return register

    def of(self, event: str) -> list[Hook]:
        """Return the handlers in the order in which they run."""
        hooks = self._hooks[event]
        return hooks[::-1] if event in REVERSED else list(hooks)

    def keep(self, event: str, hooks: list[Hook]) -> None:
        """Replace all handlers by these, in the order in which `of` returns them; for tests."""
        self._hooks[event] = hooks[::-1] if event in REVERSED else list(hooks)
