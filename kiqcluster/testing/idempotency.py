"""Idempotency: checks that a job may run twice, because any job may (docs/reliability.md)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from pprint import pformat
from typing import Any

from kiqcluster.client.client import Client
from kiqcluster.job import Enqueuer, Job
from kiqcluster.process.runtime import current_setup
from kiqcluster.process.service import beside_loops
from kiqcluster.testing.memory import Fake
from kiqcluster.testing.running import perform

__all__ = ["run_twice"]

MAX_DIFF_LINES = 40  # of the difference that a message shows


def run_twice(job: Enqueuer[Any, Any] | type[Job], *args: Any, state: Callable[[], object]) -> None:
    """Run a job twice under one jid, as after a crash; raise AssertionError when the second run changes the state.

    Both runs go through client middleware (once), JSON and server middleware, and raise the job's errors.
    state: returns the state that the second run must not change, in a comparable form: rows, files, mails, enqueued
    jobs.  It is called after each run, and its result is copied.
    """
    __tracebackhide__ = True
    caught = Fake()
    options = job.options if isinstance(job, Enqueuer) else {}
    setup = copy(current_setup())
    setup.delivery = caught
    Client(setup=setup).push({**options, "class": job, "args": list(args)})
    shown = f"{job.definition.name}({', '.join(map(repr, args))})"
    if not (pushed := caught.enqueued()):
        raise AssertionError(f"{shown} did not run: client middleware has stopped it")
    states = []
    for which in ("first", "second"):
        with _told_which(shown, which):
            error = beside_loops(partial(perform, pushed[0].raw, pushed[0].queue))[1]
            if error is not None:
                raise error
        states.append(deepcopy(state()))
    if states[0] != states[1]:
        difference = "\n".join(_difference(*states))
        raise AssertionError(f"{shown} is not idempotent: its second run has changed the state\n{difference}")


@contextmanager
def _told_which(shown: str, which: str) -> Iterator[None]:
    """Add to an error in which of the runs it was raised."""
    __tracebackhide__ = True
    try:
        yield
    except BaseException as error:
        error.add_note(f"raised by the {which} run of {shown}")
        raise


def _difference(first: object, second: object) -> Iterator[str]:
    lines = list(
        difflib.unified_diff(
            pformat(first).splitlines(), pformat(second).splitlines(), "after the first run", "after the second run",
            lineterm="",
        )
    )  # fmt: skip
    yield from lines[:MAX_DIFF_LINES]
    if not lines:
        yield "(the two look alike and are not equal: do their types compare by value?)"
    elif len(lines) > MAX_DIFF_LINES:
        yield f"… and {len(lines) - MAX_DIFF_LINES} lines more"
