"""StoreService: a thread that talks to one Redis on behalf of coroutines, each of which waits for a future.

A process has one of each kind for each Redis, made at its first use: one that does not answer keeps nobody waiting
who has to do with another one.  A fork makes its own.
"""

from __future__ import annotations

import os
from typing import ClassVar, Self
from weakref import WeakKeyDictionary, finalize

from kiqcluster.ipc.forks import ForkLock
from kiqcluster.process.service import Service
from kiqcluster.store import Store

__all__ = ["StoreService"]

PAUSE_AFTER_ERROR_SECONDS = 0.1


class StoreService(Service):
    """A subclass implements `work` and `abandon`.  The thread ends when nobody has the store any more.

    service_name: of a subclass' threads.
    """

    service_name: ClassVar[str]
    _services: ClassVar[WeakKeyDictionary[Store, dict[type, StoreService]]] = WeakKeyDictionary()
    _pid: ClassVar[int] = 0
    _making: ClassVar[ForkLock] = ForkLock()

    def __init__(self) -> None:
        super().__init__(self.service_name, lambda _name, _error: None)

    @classmethod
    def of(cls, store: Store) -> Self:
        """Return the one of this process for a store, with its thread; from any thread.  Raises NoThread."""
        with StoreService._making:
            if StoreService._pid != os.getpid():
                StoreService._services, StoreService._pid = WeakKeyDictionary(), os.getpid()
            services = StoreService._services.setdefault(store, {})
            service = services.get(cls)
            if not isinstance(service, cls):
                service = services[cls] = cls()
                finalize(store, service.stop).atexit = False
            if not service.is_alive:
                service.start_or_raise()
            return service

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.work()
            except Exception as error:  # noqa: BLE001  # a thread that ended here would keep coroutines waiting for ever
                self.abandon(error)
                self.pause(PAUSE_AFTER_ERROR_SECONDS)

    def work(self) -> None:
        """Wait for what comes next, and do it."""
        raise NotImplementedError

    def abandon(self, error: Exception) -> None:
        """Have the coroutines go on, with the error that `work` has raised, whose requests it had taken."""
        raise NotImplementedError
