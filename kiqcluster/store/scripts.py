"""The Lua scripts: one file per operation, each with its KEYS, ARGV, returns and cost on top.

Scripts include the code that they share (`-- include unit`).

A script is called by its digest.  If the server does not know the digest (after a restart or failover), the text is
sent.  NOSCRIPT means that nothing ran, so sending the text is not a repetition.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from kiqcluster.errors import RedisUnavailable, ReplyLost
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.connection import Connection
from kiqcluster.store.replies import readable
from kiqcluster.store.rights.trials import TRIALS, forbidden_commands
from kiqcluster.store.store import Store
from kiqcluster.store.wire import ErrorReply, Reply, WrongType, about_keys, is_outage

__all__ = [
    "BEAT",
    "BEGIN",
    "BULK_ENTRIES",
    "BULK_JOBS",
    "CHANGE_BULK",
    "CLAIM_DUTIES",
    "COPIED_BATCH",
    "DUE",
    "FIND_ENTRIES",
    "FIND_HELD",
    "FIND_JOBS",
    "JOIN",
    "LEAVE_PLACE",
    "LOCK",
    "MARK_CANCELLED",
    "MOVE_ENTRIES",
    "MOVE_JOBS",
    "ONCE",
    "PROGRESS",
    "PUBLISH",
    "PUSH",
    "PUSH_BATCH",
    "RATE",
    "READ_BATCH",
    "READ_QUEUE",
    "READ_RATE",
    "RECEIVE_JOBS",
    "RECORD_JOB",
    "RECOVER",
    "REGISTER_HANDS",
    "RELEASE",
    "RESERVE",
    "RESYNC",
    "RETURN_WAKE_LISTS",
    "SAVE_ITERATION",
    "SCAN_ENTRIES",
    "SCAN_JOBS",
    "SEND",
    "SEND_PARKED",
    "SETTLE",
    "SKIP_TICKS",
    "STALE_HANDS",
    "TAKE_PLACE",
    "TRIM_DEAD",
    "WRITE_BATCH",
    "WRITE_CRON",
    "Call",
    "Script",
    "Word",
    "begin_scripts",
    "finish_scripts",
    "read_refusals",
    "read_scripts_each",
    "row_words",
    "run_script",
    "run_scripts",
    "run_scripts_each",
    "sliced",
]

T = TypeVar("T")
Word = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its SHA-1 digest."""

    name: str
    text: str
    digest: str

    @property
    def commands(self) -> frozenset[str]:
        """The Redis commands in it, in capitals."""
        return frozenset(WORD.findall(self.text)) & TRIALS.keys()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Word]

    def command(self, verb: str, script: str) -> Sequence[Word]:
        return [verb, script, len(self.keys), *self.keys, *self.arguments]


FORBIDDEN_INSIDE = ("executing the script can't", "ACL failure in script")  # words of Redis 7.0; of those after it
WORD = re.compile(r"'([A-Z]+)'")  # in the text of a script: of a command, or of an argument
INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)  # replaced by that file's text


def _read(name: str) -> str:
    return files("kiqcluster.store").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


def load(name: str) -> Script:
    """Return the script in lua/<name>.lua, with the files that it includes."""
    text = INCLUDE.sub(lambda line: _read(line[1]).rstrip("\n"), _read(name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


JOIN = load("join")
REGISTER_HANDS = load("register_hands")
STALE_HANDS = load("stale_hands")
ONCE = load("once")
BEGIN = load("begin")
RELEASE = load("release")
RESERVE = load("reserve")
SETTLE = load("settle")
RESYNC = load("resync")
RECOVER = load("recover")
BEAT = load("beat")
CLAIM_DUTIES = load("claim_duties")
LOCK = load("lock")
MOVE_ENTRIES = load("move_entries")
BULK_ENTRIES = load("bulk_entries")
BULK_JOBS = load("bulk_jobs")
CHANGE_BULK = load("change_bulk")
MOVE_JOBS = load("move_jobs")
READ_QUEUE = load("read_queue")
RECORD_JOB = load("record_job")
RECEIVE_JOBS = load("receive_jobs")
FIND_ENTRIES = load("find_entries")
FIND_JOBS = load("find_jobs")
SCAN_ENTRIES = load("scan_entries")
SCAN_JOBS = load("scan_jobs")
FIND_HELD = load("find_held")
MARK_CANCELLED = load("mark_cancelled")
DUE = load("due")
TRIM_DEAD = load("trim_dead")
RETURN_WAKE_LISTS = load("return_wake_lists")
PUBLISH = load("publish")
PUSH = load("push")
RATE = load("rate")
TAKE_PLACE = load("take_place")
LEAVE_PLACE = load("leave_place")
SAVE_ITERATION = load("save_iteration")
READ_RATE = load("read_rate")
SEND = load("send")
SEND_PARKED = load("send_parked")
WRITE_CRON = load("write_cron")
SKIP_TICKS = load("skip_ticks")
COPIED_BATCH = load("copied_batch")
PUSH_BATCH = load("push_batch")
READ_BATCH = load("read_batch")
PROGRESS = load("progress")
WRITE_BATCH = load("write_batch")


def row_words(rows: Sequence[Effect], keys: list[str], index_by_key: dict[str, int]) -> list[Word]:
    """Return rows as words for a script; add their keys to `keys`, each once."""
    words: list[Word] = []
    for row in rows:
        if row.key not in index_by_key:
            keys.append(row.key)
            index_by_key[row.key] = len(keys)
        words += (row.operation, index_by_key[row.key], len(row.arguments), *row.arguments)
    return words


def _send_text(connection: Connection, call: Call) -> Reply | ErrorReply:
    try:
        return connection.exchange_each([call.command("EVAL", call.script.text)])[0]
    except RedisUnavailable as error:  # this script was not sent, but the others of its round trip have run
        raise ReplyLost(str(error)) from error


def run_script(store: Store, call: Call) -> Reply:
    """Run one script and return its reply.  One round trip.  Raises StoreError, which names keys that it is about."""
    with store.borrowed() as connection:
        return run_scripts(connection, [call])[0]


def run_scripts(connection: Connection, calls: Sequence[Call], timeout: float | None = None) -> list[Reply]:
    """Run scripts in order and return their replies.  See run_scripts_each.

    Raises StoreError, which names keys that it is about; if Redis refused one of the scripts, the others have run.
    """
    answers = run_scripts_each(connection, calls, timeout)
    for answer, call in zip(answers, calls, strict=True):
        if isinstance(answer, ErrorReply):
            raise about_keys(answer, call.keys)
    return answers


def run_scripts_each(
    connection: Connection, calls: Sequence[Call], timeout: float | None = None
) -> list[Reply | ErrorReply]:
    """Run scripts in order and return their replies, an ErrorReply for each that Redis refused.

    timeout: seconds to wait for the replies, None for the connection's own.
    Raises RedisUnavailable, ReplyLost; also when the server refuses for now (READONLY, BUSY, …).
    One round trip; one more for each script that the server did not know.
    """
    begin_scripts(connection, calls)
    return finish_scripts(connection, calls, timeout)


def read_scripts_each(store: Store, calls: Sequence[Call], per_trip: int) -> list[Reply | WrongType]:
    """Run scripts that read, `per_trip` in a round trip; return their replies as Store.read_each does.

    The first key of a call is the one that is read.  Raises StoreError.
    """
    answers: list[Reply | WrongType] = []
    for some in sliced(calls, per_trip):
        with store.borrowed() as connection:
            replies = run_scripts_each(connection, some)
        answers += readable([("EVALSHA", *call.keys) for call in some], replies)
    return answers


def begin_scripts(connection: Connection, calls: Sequence[Call]) -> None:
    """Send scripts; call `finish_scripts` next on that connection.  Raises RedisUnavailable, ReplyLost."""
    connection.begin([call.command("EVALSHA", call.script.digest) for call in calls])


def finish_scripts(
    connection: Connection, calls: Sequence[Call], timeout: float | None = None
) -> list[Reply | ErrorReply]:
    """Return the replies to `begin_scripts`.  See run_scripts_each."""
    replies = connection.finish(timeout)
    refusals = []
    for index, reply in enumerate(replies):
        if not isinstance(reply, ErrorReply):
            continue
        if reply.code == "NOSCRIPT":
            replies[index] = reply = _send_text(connection, calls[index])
        if isinstance(reply, ErrorReply) and is_forbidden_inside(str(reply)):
            words = naming_commands(connection, calls[index].script, str(reply))
            replies[index] = reply = ErrorReply(f"NOPERM {words}")
        if isinstance(reply, ErrorReply) and is_outage(reply):
            refusals.append(reply)
    if not refusals:
        return replies
    if len(refusals) == len(replies):
        raise RedisUnavailable(f"Redis turns everybody away ({refusals[0]}); nothing ran") from refusals[0]
    # The server changed its role in between: the writes of the other scripts may be lost.
    raise ReplyLost(f"Redis turned a part of this away ({refusals[0]})") from refusals[0]


def is_forbidden_inside(said: str) -> bool:
    """Return whether words of Redis say that an ACL forbids a script a command or a key."""
    return any(words in said for words in FORBIDDEN_INSIDE)


def naming_commands(connection: Connection, script: Script, said: str) -> str:
    """Return such words with the script and the commands that the user may not run: Redis 7.0 names none.

    Two round trips.  Raises RedisUnavailable, ReplyLost.
    """
    forbidden = ", ".join(forbidden_commands(connection, script.commands))
    about = f"script {script.name}: no right to run {forbidden}" if forbidden else f"script {script.name}"
    return f"{said.removeprefix('ERR ')} ({about})"


def read_refusals(store: Store, script: Script, refusals: Sequence[bytes]) -> list[str]:
    """Return why Redis refused parts of what a script has done, with the commands that an ACL forbids."""
    words = [each.decode(errors="replace") for each in refusals]
    if not any(map(is_forbidden_inside, words)):
        return words
    with store.borrowed() as connection:
        return [
            f"NOPERM {naming_commands(connection, script, each)}" if is_forbidden_inside(each) else each
            for each in words
        ]


def sliced(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return the items in slices of at most this size."""
    return [items[at : at + size] for at in range(0, len(items), size)]
