"""Versions: a payload that is newer than the class of this process waits for a process of the newer release.

The class declares `version=N`, and its pushes carry the key `version`; a payload without it counts as 0, as in GitLab,
and so does a class that declares none.  `perform` may handle all versions up to its own: `current_job().version`.

on_begin   such a job is deferred, as often as it comes: 30 s, and 30 s more each time, 5 minutes at most

Price: no round trip and no key in Redis; a payload without `version` costs nothing.
Counterpart: GitLab's sidekiq_versioning, which has run such jobs in the old code since it no longer requeues them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.process.job_context import version_of
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import VERSION, deferral_count
from kiqcluster.store.engine.units import BeginVerdict

__all__ = ["DEFERRED_BY_VERSION", "VersionCheck"]

DEFERRED_BY_VERSION = "version"  # in `deferred_by`
DEFERRAL_SECONDS = 30.0  # a deploy brings the newer release within minutes
MAX_DEFERRAL_SECONDS = 300.0  # where it does not come, or was rolled back, the jobs must not keep the fleet busy
MAX_LOGGED = 1_000  # (class, version) pairs that a process remembers to have logged


class VersionCheck:
    """The server half; a push needs none, since `version` is an option that is written to the payload."""

    name = DEFERRED_BY_VERSION
    keys = frozenset({VERSION})

    def __init__(self) -> None:
        self._logged: set[tuple[str, int]] = set()

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        """Return a deferral for a payload that is newer than its class."""
        if not run.job.is_older_than(run.payload):
            return ()
        self._log(run)
        number = min(deferral_count(run.payload, self.name), 100) + 1  # an int of any size may be there
        return BeginVerdict("defer", min(DEFERRAL_SECONDS * number, MAX_DEFERRAL_SECONDS))

    def _log(self, run: Run) -> None:
        """Log the first payload of each version of a class, not each payload."""
        version = version_of(run.payload)
        if (run.job.name, version) in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add((run.job.name, version))
        message = "%s: payloads of version %d wait for a process that has it, since this one has version %d"
        logging.getLogger("kiqcluster").warning(message, run.job.name, version, run.job.version)
