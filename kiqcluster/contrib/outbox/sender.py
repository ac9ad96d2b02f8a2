"""Sender: pushes the rows that this process has just committed, so that no job waits for the relay's next look.

Runs in: one thread for each database, which starts with the first commit; a forked process starts its own.
The caller's commit waits for nothing, and learns of no error: what fails here is left to the relay.
A test that keeps jobs in memory (kiqcluster.testing) has them delivered by the commit itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence

from kiqcluster.contrib.outbox.relay import BATCH_SIZE, Relay
from kiqcluster.process.runtime import current_setup
from kiqcluster.process.service import Service

__all__ = ["Sender"]

MAX_WAITING = 10_000  # rows; the relay has the others
PAUSE_AFTER_ERROR_SECONDS = 5.0
LOGGER = logging.getLogger("kiqcluster")


class Sender:
    """Receives the ids of committed rows.  Thread-safe."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._threads: dict[int, SenderThread] = {}  # pid → thread; that of the parent is no more in a fork

    def send(self, ids: Sequence[int]) -> None:
        """Push rows soon.  Never raises."""
        try:
            if current_setup().delivery is not None:
                move_rows(self._relay, ids)
                return
            thread = self._threads.get(os.getpid())
            if thread is None:
                thread = self._threads.setdefault(os.getpid(), SenderThread(self._relay))
            thread.send(ids)
        except Exception:  # the caller's transaction has ended, and the relay has the rows
            LOGGER.exception("%s: committed rows are left to the relay", self._relay.name)


class SenderThread(Service):
    def __init__(self, relay: Relay) -> None:
        super().__init__(f"sender/{relay.name}", lambda name, error: LOGGER.warning("%s: %r", name, error))
        self._relay = relay
        self._waiting: deque[int] = deque(maxlen=MAX_WAITING)
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def send(self, ids: Sequence[int]) -> None:
        self._waiting.extend(ids)
        self.start()
        self._woken.set()

    def run(self) -> None:
        while not self.stopping.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                self.send_waiting()
            except Exception as error:  # noqa: BLE001  # a database may raise anything
                LOGGER.warning("%s: committed rows are left to the relay: %r", self._relay.name, error)
                self.pause(PAUSE_AFTER_ERROR_SECONDS)
                self._waiting.clear()

    def send_waiting(self) -> None:
        while self._waiting and not self.stopping.is_set():
            move_rows(self._relay, [self._waiting.popleft() for _ in range(min(BATCH_SIZE, len(self._waiting)))])


def move_rows(relay: Relay, ids: Sequence[int]) -> None:
    for start in range(0, len(ids), BATCH_SIZE):
        relay.move_rows(ids[start : start + BATCH_SIZE])
