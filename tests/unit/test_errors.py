"""Errors: each is copied and pickled with all that it says, whatever its `__init__` takes."""

from __future__ import annotations

import copy
import pickle

import pytest

from kiqcluster import errors
from kiqcluster.errors import (
    BatchEnded,
    ExitCode,
    JobCancelled,
    JobFailed,
    JobTimedOut,
    KiqError,
    NotReplicated,
    ReplyLost,
    UsageError,
)

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, KiqError)]


def said(error: BaseException) -> object:
    return type(error), str(error), error.args, vars(error)


@pytest.mark.parametrize("error_class", CLASSES)
def test_every_class_can_be_copied_and_pickled(error_class: type[KiqError]) -> None:
    error = error_class.__new__(error_class)
    error.args, vars(error)["more"] = ("a message",), 1

    assert said(copy.copy(error)) == said(pickle.loads(pickle.dumps(error))) == said(error)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("wrong", ExitCode.REDIS_REFUSED),
        NotReplicated("stored", ("a", "b"), 2, 1),
        ReplyLost("lost", ("a",)),
        JobFailed("Name", "jid", "E", "message"),
        JobCancelled("Name", "jid"),
        JobTimedOut("Name", "timeout", 1.5),
        BatchEnded("batch", "COMPLETE"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_facts_are_kept(error: KiqError) -> None:
    assert said(copy.copy(error)) == said(pickle.loads(pickle.dumps(error))) == said(error)
