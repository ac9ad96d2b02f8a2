"""Cancels jobs: a process of tests/chaos/test_cancel.py with a few threads, as requests of a web process would.

python -m tests.apps.canceller URL SEED RESULTS      jids come in as lines of standard input; it ends with them

A caller that is told of an outage tries again.  Each result is a line of JSON in the file RESULTS:
jid, removed and running of the last answer, errors before it, and when the last call began and ended (monotonic).
"""

from __future__ import annotations

import json
import os
import sys
import time
from queue import SimpleQueue
from random import Random
from threading import Thread

from kiqcluster.control.cancellation import cancel_in
from kiqcluster.errors import StoreError
from kiqcluster.store import Store

THREADS = 2
MAX_PAUSE_SECONDS = 0.03  # before a cancel
ERROR_PAUSE_SECONDS = 0.02
MAX_TRIES = 200


def cancelled(store: Store, jid: str) -> dict[str, object]:
    """Cancel a job; try again while Redis cannot be reached."""
    for errors in range(MAX_TRIES):
        began = time.monotonic()
        try:
            found = cancel_in(store, jid)
        except StoreError:
            time.sleep(ERROR_PAUSE_SECONDS)
            continue
        times = {"began": began, "ended": time.monotonic()}
        return {"jid": jid, "removed": found.removed, "running": found.running, "errors": errors, **times}
    raise SystemExit(f"{jid} could not be cancelled in {MAX_TRIES} tries")


def work(store: Store, jids: SimpleQueue[str], rng: Random, results: int) -> None:
    while jid := jids.get():
        time.sleep(rng.uniform(0, MAX_PAUSE_SECONDS))
        os.write(results, json.dumps(cancelled(store, jid)).encode() + b"\n")


def main(url: str, seed: str, path: str) -> None:
    results = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    store, jids = Store(url), SimpleQueue[str]()
    threads = [Thread(target=work, args=(store, jids, Random(f"{seed} {each}"), results)) for each in range(THREADS)]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        jids.put(line.strip())
    for _ in threads:
        jids.put("")
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
