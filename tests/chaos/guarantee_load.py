"""The jobs that tests/chaos/test_guarantees.py pushes, what is known of each, and what it does to the fleet."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

import tests.apps.guarantees  # noqa: F401  # registers its jobs, so that pushes here go through the features
from kiqcluster import Client, application_context
from kiqcluster.process.runtime import Setup, using_setup
from tests.chaos.runs import digest_of

__all__ = ["SECRET", "Load", "Pushed"]

SECRET = "ff00-open-sesame-ff00"  # in the arguments that are encrypted
LETTERS = 3_000  # of texts that are compressed
JOB_MS = (2, 10, 20)
NAMES = (
    *("Refresh", "Refresh", "Export", "Deliver", "Call", "Rebuild", "Mail", "Offer", "Sweep", "Report", "Upgrade"),
    *("Sync", "Count"),
)
SUBJECTS = {
    "Refresh": ("page0", "page1", "page2", "page3"),
    "Export": ("a", "b", "c"),
    "Deliver": ("here", "there", "anywhere"),
    "Rebuild": ("index0", "index1", "later0", "later1", "never0"),
    "Mail": ("struck", "put off", "other"),
}


@dataclass(frozen=True)
class Pushed:
    """A job.  at: seconds of the monotonic clock before its push.  text: digest of its last argument."""

    name: str
    subject: str
    at: float
    correlation_id: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


class Load:
    """Pushes as an application does.

    jobs: those that were written, by jid.  last: (class, subject) → when it was pushed last.  refused: pushes.
    """

    def __init__(self, setup: Setup, rng: Random) -> None:
        self.jobs: dict[str, Pushed] = {}
        self.last: dict[tuple[str, str], float] = defaultdict(float)
        self.count = self.refused = 0
        self.setup, self._rng = setup, rng

    def of(self, name: str) -> dict[str, Pushed]:
        """Return the jobs of a class."""
        return {jid: each for jid, each in self.jobs.items() if each.name == name}

    def push_any(self) -> None:
        """Push a job of some class."""
        rng = self._rng
        name = rng.choice(NAMES)
        facts: dict[str, Any] = {}
        if name in ("Export", "Deliver") and rng.random() < 0.2:
            facts["at"] = time.time() + rng.random()
        if name == "Offer" and rng.random() < 0.3:
            facts["expiry"] = time.time() - 1
        if name == "Upgrade" and rng.random() < 0.2:
            facts["version"] = 3  # by a newer release
        self.push(name, rng.choice(SUBJECTS.get(name, (f"{self.count}",))), **facts)

    def push_skipped(self) -> None:
        """Push jobs that are skipped whatever happens: a killed process takes what it has counted with it."""
        self.push("Offer", f"{self.count}", expiry=time.time() - 1)
        self.push("Upgrade", f"{self.count}", version=3)

    def push(self, name: str, subject: str, milliseconds: int | None = None, **facts: Any) -> None:
        """Push a job; a push that is refused, since an equal one waits or runs, is only counted."""
        rng = self._rng
        text = SECRET if name == "Export" else "x" * rng.choice((0, 0, 0, LETTERS))
        self.count += 1
        jid, correlation_id, at = f"{rng.getrandbits(96):024x}", f"request-{self.count}", time.monotonic()
        arguments = [subject, rng.choice(JOB_MS) if milliseconds is None else milliseconds, text]
        with using_setup(self.setup), application_context(correlation_id=correlation_id, user="ann"):
            written = Client().push({"class": name, "args": arguments, "jid": jid, **facts})
        assert written is not None
        self.last[name, subject] = at
        if written == jid:
            self.jobs[jid] = Pushed(name, subject, at, correlation_id, digest_of(text), facts)
        else:
            self.refused += 1
