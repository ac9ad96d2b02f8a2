"""LiveSite: what a browser looks at: a Redis, a cluster, Ruby's Sidekiq beside it, and `kiqctl web` in front."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from kiqcluster.api import WorkSet
from kiqcluster.api.lookup.known import cancel_everywhere
from kiqcluster.control import process_registry
from tests import forkserver
from tests.interop.programs import RubyServer
from tests.kit import ROOT, TIMEOUT_SECONDS, Cluster, RedisServer, free_port, wait_until
from tests.stage import Stage, pid_of

QUEUES = ("live", "ruby")  # of the cluster, and of Ruby; what a test puts into others stays there
SLOTS = 2


class WebServer:
    """`kiqctl web` in front of a Redis."""

    def __init__(self, redis_url: str, folder: Path, *options: str) -> None:
        port = free_port()
        self.origin = f"http://127.0.0.1:{port}"
        words = [sys.executable, "-m", "kiqcluster.ctl", "web", "--redis", redis_url, "--listen", f"127.0.0.1:{port}"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KIQ_")}
        with (folder / "web.log").open("wb") as log:
            self._process = forkserver.Popen(
                [*words, *options], cwd=folder, env={**environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
            )
        wait_until(self._answers, "the pages to answer")

    def _answers(self) -> bool:
        assert self._process.poll() is None, "kiqctl web has ended"
        with suppress(URLError, ConnectionError), urlopen(f"{self.origin}/queues", timeout=TIMEOUT_SECONDS):
            return True
        return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class LiveSite(Stage):
    """A stage whose cluster, Ruby process and pages run on while tests come and go."""

    def __init__(self, redis: RedisServer, folder: Path, *, with_ruby: bool = True) -> None:
        super().__init__(redis, folder)
        self.ruby = RubyServer(redis.url, queue=QUEUES[1]) if with_ruby else None
        self.cluster = self.start_cluster()
        self.web = WebServer(redis.url, folder)
        self.origin = self.web.origin
        self.cluster.wait_ready(SLOTS)
        wait_until(self.everybody_is_there, "the cluster and Ruby to be listed", 30)
        self._kept = set(self.store.call("KEYS", "*"))

    def start_cluster(self) -> Cluster:
        return self.run_cluster(*[QUEUES[0]] * SLOTS, "-c", "2", app="tests.apps.cancelled")

    @property
    def supervisor(self) -> str:
        """The name of the cluster."""
        return self.supervisor_of(self.cluster)

    def supervisor_of(self, cluster: Cluster) -> str:
        (found,) = [name for name in self.cluster_names() if pid_of(name) == cluster.pid]
        return found

    @property
    def identities(self) -> list[str]:
        """The processes of the cluster, in the order of their pids."""
        pids = set(self.cluster.pids().values())
        return sorted((name for name in self.members() if pid_of(name) in pids), key=pid_of)

    def cluster_names(self) -> set[str]:
        return {str(each["supervisor"]) for each in self.cluster_documents()}

    def begin(self, job: str, word: str) -> str:
        """Have a process of the cluster run a job; return its jid once it is shown to run."""
        jid = self.push(job, word, queue=QUEUES[0])
        self.wait_noted(f"began {word}")
        self.ask_for_beats()
        wait_until(lambda: any(each.job.jid == jid for each in WorkSet(store=self.store)), "the job to be shown")
        return jid

    def everybody_is_there(self) -> bool:
        listed = process_registry.list_processes(self.store)
        ours = sum(each.is_ours for each in listed)
        return ours == SLOTS and len(listed) - ours == (self.ruby is not None)

    def clear(self) -> None:
        """End what still runs, and delete what a test has left: all keys but those of the fleet."""
        self.store.call("RPUSH", "release", "now", "now", "now", "now")
        for work in WorkSet(store=self.store):  # of a test that has failed before it did so
            cancel_everywhere([self.store], work.job.jid)
        self.wait_settled()
        fleet = {each.identity.encode() for each in process_registry.list_processes(self.store)}
        gone = [
            key
            for key in self.store.call("KEYS", "*")
            if key not in self._kept and not any(identity in key for identity in fleet)
        ]
        if gone:
            self.store.call("DEL", *gone)

    def close(self) -> None:
        self.web.close()
        if self.ruby is not None:
            self.ruby.close()
        super().close()


@contextmanager
def live_site(folder: Path, *, with_ruby: bool = True) -> Iterator[LiveSite]:
    """Run one for a `with` block, on a Redis of its own."""
    redis = RedisServer()
    site = LiveSite(redis, folder, with_ruby=with_ruby)
    try:
        yield site
    finally:
        site.close()
        redis.close()
