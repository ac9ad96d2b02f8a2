"""InteropStage: a stage with jobs that Ruby has as well; and which buttons of Sidekiq::Web a test presses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.worker.heartbeat import BEAT_SECONDS
from tests.apps.interop import fragile
from tests.kit import Cluster, wait_until
from tests.stage import Stage

JOB_KEYS = (b"queues", b"retry", b"schedule", b"dead", b"paused", b"echoes", b"began", b"release", b"mended")
F = TypeVar("F", bound=Callable[..., Any])
AT_ONCE_SECONDS = BEAT_SECONDS - 1  # sooner than a process that learns of it at its next beat
PRESSED: set[str] = set()  # routes of Sidekiq::Web that some test posts to


def presses(*routes: str) -> Callable[[F], F]:
    """Say which routes of Sidekiq::Web a test posts to; the browser holds it to that, and a test counts them."""

    def mark(test: F) -> F:
        test.presses = set(routes)  # type: ignore[attr-defined]
        PRESSED.update(routes)
        return test

    return mark


class InteropStage(Stage):
    """A stage with the jobs of tests/apps/interop.py, which Ruby has as well."""

    def run_cluster(self, *arguments: str, app: str = "tests.apps.interop", **environ: str) -> Cluster:
        return super().run_cluster(*arguments, app=app, **environ)

    # jobs that run

    def echoes(self) -> list[dict[str, Any]]:
        """Return what Echo jobs received so far: by ("python" or "ruby"), jid, args, payload."""
        return [json.loads(each) for each in self.store.call("LRANGE", "echoes", 0, -1)]

    def echo_of(self, jid: str) -> dict[str, Any]:
        """Wait for the Echo job with that jid, and return what it received."""
        return wait_until(
            lambda: next((each for each in self.echoes() if each["jid"] == jid), None), f"job {jid} to run"
        )

    def ran(self) -> list[str]:
        """Return the jids of the Echo and mended jobs that ran, in order; one that ran twice is there twice."""
        return [each["jid"] for each in self.echoes()]

    def wait_ran(self, expected: Sequence[str]) -> None:
        """Wait until as many jobs ran; they have to be these, each once."""
        wait_until(lambda: len(self.ran()) >= len(expected), f"{len(expected)} jobs to run")
        assert sorted(self.ran()) == sorted(expected)

    # jobs that fail

    def fail_jobs(self, count: int, queue: str = "default") -> list[str]:
        """Have jobs with the arguments 0, 1, … fail; return their jids once all wait for a retry."""
        jids = fragile.set(queue=queue, tags=["vip"]).perform_bulk([[number] for number in range(count)])
        wait_until(lambda: self.store.call("ZCARD", "retry") == count, "all jobs to wait for their retry")
        return [str(jid) for jid in jids]

    def kill_jobs(self, count: int) -> list[str]:
        """The same with jobs that are not retried: they are in the dead set."""
        jids = fragile.set(retry=0).perform_bulk([[number] for number in range(count)])
        wait_until(lambda: self.store.call("ZCARD", "dead") == count, "all jobs to be dead")
        return [str(jid) for jid in jids]

    def mend_jobs(self) -> None:
        """Have the jobs that fail succeed from now on."""
        self.store.call("SET", "mended", "1")

    def entries(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the payloads of a set by jid."""
        payloads = [decode(raw) for raw in self.store.call("ZRANGE", name, 0, -1)]
        return {payload["jid"]: payload for payload in payloads}

    def jids(self, name: str) -> set[str]:
        """Return the jids of a set."""
        return set(self.entries(name))


class SharedStage(InteropStage):
    """One whose cluster runs on while the tests of a module come and go."""

    cluster: Cluster

    def clear_jobs(self) -> None:
        """Delete all jobs, and what they noted."""
        self.wait_settled()
        keys = self.store.call("KEYS", "*")
        jobs = [key for key in keys if key in JOB_KEYS or key.startswith((b"queue:", b"kiq:wake:", b"stat:"))]
        if jobs:
            self.store.call("DEL", *jobs)
