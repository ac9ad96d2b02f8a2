"""Refresher: the thread behind `top` that alone talks to Redis, so that keys answer while Redis does not.

1. run the submitted actions, one after the other
2. read the dashboard
3. wait until the next refresh is due, an action is submitted, or the view changes
While Redis is away it reports the error and keeps trying.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kiqcluster.api.dashboard import Dashboard, View, read_dashboard
from kiqcluster.ctl.top.actions import Action
from kiqcluster.errors import KiqError, StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.process.service import Service
from kiqcluster.store import Store

__all__ = ["Refresher", "ViewRequest"]

MAX_RETRY_SECONDS = 5.0  # seconds between two looks while Redis is away, where the interval is longer


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """The view to read next.  offset: of the first entry, in views that have pages."""

    view: View
    offset: int = 0


class Refresher(Service):
    """Reads the dashboard, and runs actions.  Shared with the screen: `request`, `_actions` and `_wakeup`.

    Called in this thread: on_dashboard with each dashboard; on_refresh_failed with the reason; on_action_done with an
    action, its result and whether it failed.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        interval: float,
        on_dashboard: Callable[[Dashboard], object],
        on_refresh_failed: Callable[[str], object],
        on_action_done: Callable[[Action, str, bool], object],
    ) -> None:
        super().__init__("looker", self._crashed)
        self._store = store
        self._clock = clock
        self._interval = interval
        self._on_dashboard = on_dashboard
        self._on_refresh_failed = on_refresh_failed
        self._on_action_done = on_action_done
        self._actions: deque[Action] = deque()
        self._wakeup = threading.Event()
        self.request = ViewRequest(View.QUEUES)

    def show(self, request: ViewRequest) -> None:
        """Look at something else, at once."""
        self.request = request
        self._wakeup.set()

    def submit(self, action: Action) -> None:
        """Do something, at once."""
        self._actions.append(action)
        self._wakeup.set()

    def wake(self) -> None:
        """See Service."""
        self._wakeup.set()

    def run(self) -> None:
        """Look until stopped."""
        while not self.stopping.is_set():
            self._wakeup.clear()
            while self._actions:
                self._run_action(self._actions.popleft())
            self._wakeup.wait(self._refresh())

    def _crashed(self, _name: str, error: Exception) -> None:
        self._on_refresh_failed(f"this is a bug in kiqctl top, which looks no more: {error!r}")

    def _run_action(self, action: Action) -> None:
        try:
            said, has_failed = action.run(), False
        except KiqError as error:
            said, has_failed = f"could not {action.what}: {error}", True
        self._on_action_done(action, said, has_failed)

    def _refresh(self) -> float:
        """Take a picture; return the seconds until the next."""
        try:
            dashboard = read_dashboard(self._store, self._clock, self.request.view, self.request.offset)
        except StoreError as error:
            self._store.close()
            self._on_refresh_failed(str(error))
            return min(self._interval, MAX_RETRY_SECONDS)
        self._on_dashboard(dashboard)
        return self._interval
