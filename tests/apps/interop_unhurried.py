"""The jobs of interop.py, in a worker whose poller takes its time between reading what is due and moving it."""

from __future__ import annotations

import time
from collections.abc import Callable

from kiqcluster import client_middleware
from kiqcluster.process.runtime import Push
from tests.apps import interop

__all__ = ["interop"]


@client_middleware.add
def dawdle(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
    time.sleep(0.005)
    return proceed()
