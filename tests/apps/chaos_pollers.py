"""The jobs of chaos.py, in workers that sign what their pollers move."""

from __future__ import annotations

import os
from collections.abc import Callable

from kiqcluster import client_middleware
from kiqcluster.process.runtime import Push
from tests.apps import chaos

__all__ = ["chaos"]


@client_middleware.add
def sign(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
    push.payload["moved_by"] = os.getpid()
    return proceed()
