"""The examples about what a payload says of itself: its size, its version, its expiry."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

from kiqcluster.sidekiq.compression import decompressed
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests import forkserver
from tests.docs.guarantee_pages import shown
from tests.kit import ROOT, RedisServer


def example(title: str) -> str:
    """Return the Python example of a guarantee."""
    return shown(title, "python")


def output(source: str, folder: Path, server: RedisServer) -> str:
    """Run an example; return what it prints."""
    (folder / "example.py").write_text(source)
    environ = {"REDIS_URL": server.url, "PYTHONPATH": str(ROOT)}
    done = forkserver.run([sys.executable, "example.py"], cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def drained(source: str, first_push: str) -> str:
    """Return an example whose pushes go to memory, from this one on, and run there.  No Redis is asked."""
    declarations, _, pushes = source.partition(f"\n{first_push}")
    run = indent(f"{first_push}{pushes}\njobs.drain()\n", "    ")
    return f"from kiqcluster.testing import fake\n{declarations}\nwith fake() as jobs:\n{run}"


def test_the_example_of_the_size_limiter(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    printed = output(example("Size limiter"), tmp_path, redis_server)

    stored = [decode(raw) for raw in store.call("LRANGE", "queue:default", 0, -1)]
    assert printed == ""
    assert [(each["class"], each["compressed"]) for each in stored] == [("import_dump", True), ("index", True)]
    assert decompressed(stored[1])["args"] == ["again " * 100_000]


def test_the_example_of_versions(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    source = drained(example("Versions"), "resize.perform_async")

    assert output(source, tmp_path, redis_server) == "resize a.png to 320\nresize b.png to 640\n"


def test_the_example_of_expiry(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    printed = output(drained(example("Expiry"), "offer.perform_async"), tmp_path, redis_server)

    assert printed == "an offer for 1\nan offer for 3\n"
