"""Clients in processes that the application forks while its other threads push: no lock is held in the child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests import forkserver
from tests.kit import ROOT, RedisServer

HEAD = """
    import asyncio, os, signal, sys, threading, warnings
    from kiqcluster import Client, job
    from kiqcluster.errors import StoreError
    from kiqcluster.ipc.forks import ForkLock
    from kiqcluster.process.runtime import current_setup
    from kiqcluster.batches import Batch

    warnings.simplefilter("ignore", DeprecationWarning)  # of Python, for the fork of a process with threads

    @job(result_ttl=60)
    def note(n: int, m: int = 0) -> None: ...

    def wait():
        try: note.enqueue(1).result(0.01)
        except TimeoutError: pass

    async def await_one():
        try: await (await note.aenqueue(1)).aresult(0.01)
        except TimeoutError: pass

    def connect():
        current_setup().current_store().close()
        note.perform_async(1)

    VERBS = [
        lambda: note.perform_async(1),
        lambda: note.perform_in(60, 1),
        lambda: note.perform_bulk([[1], [2]]),
        lambda: note.then(note, 1).perform_async(1),
        lambda: Client().push({"class": "Other", "args": []}),
        lambda: Client().push_bulk({"class": "Other", "args": [[1], [2]]}),
        lambda: asyncio.run(note.aenqueue(1)),
        lambda: asyncio.run(note.aenqueue_bulk([[1], [2]])),
        lambda: asyncio.run(await_one()),
        lambda: Batch.create("some", note, [[1], [2]]),
        wait,
        connect,
    ]

    def push_by_all():
        for verb in VERBS:
            verb()

    def status_of_child(push):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # a child that waits for ever dies of it
            push()
            os._exit(0)
        return os.waitpid(pid, 0)[1]
"""
WITH_LOCKS_HELD = """
    held, over = threading.Event(), threading.Event()
    def hold():
        for lock in list(ForkLock._all): lock.__enter__()
        held.set()
        over.wait()

    push_by_all()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    sys.exit(status_of_child(push_by_all) != 0 or not ForkLock._all)
"""
WHILE_THREADS_PUSH = """
    def repeat(verb):
        while not over.is_set(): verb()

    over = threading.Event()
    sys.setswitchinterval(1e-6)  # so that forks find threads at any place
    threads = [threading.Thread(target=repeat, args=(verb,)) for verb in VERBS]
    for thread in threads: thread.start()
    statuses = [status_of_child(VERBS[n % len(VERBS)]) for n in range(400)]
    over.set()
    for thread in threads: thread.join()
    print(len([each for each in statuses if each]), "of", len(statuses), "children did not end")
    sys.exit(any(statuses))
"""


def run(folder: Path, server: RedisServer, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(dedent(HEAD) + dedent(source))
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "REDIS_URL": server.url}
    done = forkserver.run([sys.executable, "program.py"], cwd=folder, env=environ, timeout=300)
    print(done.stdout, done.stderr)
    return done


def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    assert run(tmp_path, redis_server, WITH_LOCKS_HELD).returncode == 0


@pytest.mark.full
@pytest.mark.timeout(320)
def test_children_push_by_each_verb_while_threads_of_the_parent_do(tmp_path: Path, redis_server: RedisServer) -> None:
    assert run(tmp_path, redis_server, WHILE_THREADS_PUSH).returncode == 0
