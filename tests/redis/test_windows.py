"""On Windows, as far as it can be imitated: jobs are enqueued and tested, and workers are refused with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

from kiqcluster.store import Store
from tests.kit import ROOT, RedisServer

ENQUEUE = """
import tests.windows
from kiqcluster import Client, Job
from kiqcluster.testing import drain, fake

class Note(Job):
    def perform(self, value): print("performed", value)

assert Note.perform_async(1) and Note.perform_in(60, 2) and all(Note.perform_bulk([[3], [4]]))
assert Note.perform_async("x" * 3_000_000)
Client().push({"class": "Acme::Mail", "args": []})
with fake():
    Note.perform_async(5)
    assert drain() == 1
"""
KIQCTL = """
import sys
import tests.windows
from kiqcluster.ctl.command import main
sys.argv = ["kiqctl", "enqueue", "Note", "6"]
main()
"""
WORKERS = """
import sys
import tests.windows
from kiqcluster.__main__ import main
sys.argv = ["kiqcluster", "default"]
main()
"""


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "REDIS_URL": url, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)


def test_jobs_are_enqueued_and_tested(store: Store, redis_server: RedisServer) -> None:
    done = run(ENQUEUE, redis_server.url)

    assert (done.returncode, done.stdout) == (0, "performed 5\n"), done.stderr
    assert store.call("LLEN", "queue:default") == 5
    assert store.call("ZCARD", "schedule") == 1


def test_kiqctl_enqueues_too(store: Store, redis_server: RedisServer) -> None:
    done = run(KIQCTL, redis_server.url)

    assert done.returncode == 0, done.stderr
    assert store.call("LLEN", "queue:default") == 1


def test_workers_are_refused_with_a_sentence(redis_server: RedisServer) -> None:
    done = run(WORKERS, redis_server.url)

    assert done.returncode == 2
    assert "Linux and macOS only" in done.stderr
    assert "Traceback" not in done.stderr
