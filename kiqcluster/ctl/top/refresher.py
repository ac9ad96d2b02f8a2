"""Looker: the thread behind `top` that alone talks to Redis, so that keys answer while Redis does not.

1. orders   what the person at the keyboard wants done, one after the other
2. look     a picture of now
3. wait     until the next look is due, somebody orders something, or wants another view
While Redis is away it says so, and goes on trying.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kiqcluster.api.dashboard import Picture, View, take
from kiqcluster.clock import Clock
from kiqcluster.ctl.top.actions import Deed
from kiqcluster.errors import KiqError, StoreError
from kiqcluster.process.service import Service
from kiqcluster.store import Store

__all__ = ["Looker", "Wanted"]

SLOWEST_RETRY = 5.0  # seconds between two looks while Redis is away, where the interval is longer


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the next picture is to show.  offset: of the first entry, in views that have pages."""

    view: View
    offset: int = 0


class Looker(Service):
    """Takes pictures, and carries out orders.  Shared with the screen: `wanted`, `_orders` and `_poked`.

    on_picture, on_trouble, on_done: called in this thread with a picture, why there is none, an order, how it went and
    whether it has failed.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        interval: float,
        on_picture: Callable[[Picture], object],
        on_trouble: Callable[[str], object],
        on_done: Callable[[Deed, str, bool], object],
    ) -> None:
        super().__init__("looker", self._crashed)
        self._store = store
        self._clock = clock
        self._interval = interval
        self._on_picture = on_picture
        self._on_trouble = on_trouble
        self._on_done = on_done
        self._orders: deque[Deed] = deque()
        self._poked = threading.Event()
        self.wanted = Wanted(View.QUEUES)

    def show(self, wanted: Wanted) -> None:
        """Look at something else, at once."""
        self.wanted = wanted
        self._poked.set()

    def order(self, deed: Deed) -> None:
        """Do something, at once."""
        self._orders.append(deed)
        self._poked.set()

    def wake(self) -> None:
        """See Service."""
        self._poked.set()

    def run(self) -> None:
        """Look until stopped."""
        while not self.stopping.is_set():
            self._poked.clear()
            while self._orders:
                self._obey(self._orders.popleft())
            self._poked.wait(self._look())

    def _crashed(self, _name: str, error: Exception) -> None:
        self._on_trouble(f"this is a bug in kiqctl top, which looks no more: {error!r}")

    def _obey(self, deed: Deed) -> None:
        try:
            said, has_failed = deed.run(), False
        except KiqError as error:
            said, has_failed = f"could not {deed.what}: {error}", True
        self._on_done(deed, said, has_failed)

    def _look(self) -> float:
        """Take a picture; return the seconds until the next."""
        try:
            picture = take(self._store, self._clock, self.wanted.view, self.wanted.offset)
        except StoreError as error:
            self._store.close()
            self._on_trouble(str(error))
            return min(self._interval, SLOWEST_RETRY)
        self._on_picture(picture)
        return self._interval
