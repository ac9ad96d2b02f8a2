"""StoreService: a thread that talks to one Redis on behalf of coroutines.

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


class StoreService(Service):
    """service_name: of a subclass' threads.  The thread ends when nobody has the store any more."""

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
