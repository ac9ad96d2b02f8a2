"""Jobs for process tests.  What they do is written to the list `ledger`, outside of any queue."""

from __future__ import annotations

import ctypes
import os
import time

from kiqcluster import Interrupted, Job, current_job, job
from kiqcluster.process.runtime import current_setup


def note(*words: object) -> None:
    current_setup().current_store().call("RPUSH", "ledger", " ".join(map(str, words)))


@job(retry=0)
def hold_interpreter(word: str) -> None:
    """Never lets go of the interpreter, as a C extension may that waits, and uses no processor time."""
    note(f"holds {word}")
    mutex = ctypes.create_string_buffer(256)  # zeros: a mutex that nobody has locked
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # no signal interrupts this


@job()
def record(word: str) -> None:
    note("ran", word)


@job()
def nap(word: str, seconds: float) -> None:
    note("began", word)
    time.sleep(seconds)
    note("ended", word)


@job()
def stubborn(word: str) -> None:
    """Runs until the list `release` has something for it, whatever the process wants."""
    note("began", word)
    while not current_setup().current_store().call("LLEN", "release"):
        time.sleep(0.01)
    note("ended", word)


@job()
def polite(word: str) -> None:
    """Runs until the process stops."""
    note("began", word)
    while True:
        running = current_job()
        if running is not None and running.stopping:
            note("gave way", word)
            raise Interrupted
        time.sleep(0.01)


@job(retry=3)
def broken(word: str) -> None:
    note("failed", word)
    raise ValueError(f"{word} is broken")


@job()
def suicide(word: str) -> None:
    """Kills its process the first time; on the second it runs."""
    note("began", word)
    if current_setup().current_store().call("INCR", f"suicide:{word}") == 1:
        os.kill(os.getpid(), 9)
    note("ended", word)


class Nightly(Job, queue_namespace="cronjob"):
    def perform(self) -> None:
        note("nightly")
