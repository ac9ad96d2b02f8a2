"""Replies: an error of Redis is never taken for a value.

Reply        the reply to a command that has run: bytes, int, None, or a list of these
ErrorReply   the answer to a command that Redis has refused, in place of a reply
unwrapped    answers → replies; raises the first error
readable     answers to reads → replies; a key of another type keeps its WrongType, and is noted; raises other errors
broken_keys  the keys of another type that the reads within a block have met, for the surface that shows the result

`Connection.exchange`, `Store.pipeline` and `run_scripts` return replies.  Only code that handles the error of each
command by itself calls `exchange_each` or `run_scripts_each`, whose type `Reply | ErrorReply` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from kiqcluster.store.wire import Command, ErrorReply, Reply, WrongType, about_keys

__all__ = ["broken_keys", "note", "readable", "unwrapped"]

Broken = dict[str, WrongType]  # key → what Redis says of it

_NOTED: ContextVar[tuple[Broken, ...]] = ContextVar("kiq_broken_keys", default=())


def unwrapped(commands: Sequence[Command], answers: Sequence[Reply | ErrorReply]) -> list[Reply]:
    """Return the answers if all are replies.  Raises the first error, with the keys that it is about."""
    for command, answer in zip(commands, answers, strict=True):
        if isinstance(answer, ErrorReply):
            raise about_keys(answer, command[1:2])
    return list(answers)


def readable(commands: Sequence[Command], answers: Sequence[Reply | ErrorReply]) -> list[Reply | WrongType]:
    """Return the answers to reads, a WrongType for each key of another type: one broken key hides no other.

    Such a key is noted for `broken_keys`.  Raises each other error.
    """
    read: list[Reply | WrongType] = []
    for command, answer in zip(commands, answers, strict=True):
        if isinstance(answer, ErrorReply):
            answer = about_keys(answer, command[1:2])
            if not isinstance(answer, WrongType):
                raise answer
            note(answer)
        read.append(answer)
    return read


def note(error: WrongType) -> None:
    """Note a key of another type, for the blocks of `broken_keys` around the caller."""
    for found in _NOTED.get():
        found.setdefault(error.key, error)


@contextmanager
def broken_keys() -> Iterator[Broken]:
    """Collect the keys of another type that reads within this block meet, in this thread."""
    found: Broken = {}
    token = _NOTED.set((*_NOTED.get(), found))
    try:
        yield found
    finally:
        _NOTED.reset(token)
