"""Jobs that are interrupted too often, with their hook."""

from __future__ import annotations

import os
import time
from typing import Any

from kiqcluster import Job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note


class Noting(Job):
    """Notes what its hooks are told."""

    def interruptions_exhausted(self, payload: dict[str, Any], error: Exception) -> None:
        note("interrupted too often:", payload["args"][0], payload["interrupted_count"])

    def retries_exhausted(self, payload: dict[str, Any], error: Exception) -> None:
        note("retried too often:", payload["args"][0])


class Killer(Noting, max_retries_after_interruption=2):
    def perform(self, word: str) -> None:
        note("kills", word)
        os.kill(os.getpid(), 9)


class Doomed(Job, max_retries_after_interruption=1):
    """Its hook kills the process as well: always, or once."""

    def perform(self, word: str) -> None:
        note("kills", word)
        os.kill(os.getpid(), 9)

    def interruptions_exhausted(self, payload: dict[str, Any], error: Exception) -> None:
        word = payload["args"][0]
        note("asked", word)
        if word == "always" or current_setup().current_store().call("INCR", f"asked:{word}") == 1:
            os.kill(os.getpid(), 9)
        note("told", word)


class Sleeper(Noting, max_retries_after_interruption=0):
    def perform(self, word: str) -> None:
        note("sleeps", word)
        time.sleep(600)
