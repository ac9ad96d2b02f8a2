"""The Redis commands that a worker runs, in scripts and by itself, and a trial of each at boot.

If an ACL forbids one of them, a script fails in the middle each time, and makes copies of jobs.  So a worker refuses to
start unless it may run all of them, and names those that are forbidden.  The trial changes only a key of its own, which
is a string and expires: commands for other types fail on it, after Redis has checked the permissions.

docs/guides/secure_redis.md shows a user with exactly these rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kiqcluster.errors import RedisRefused
from kiqcluster.store.connection import Connection
from kiqcluster.store.store import Store
from kiqcluster.store.wire import Command, ErrorReply, is_outage

__all__ = ["COMMANDS", "WORKER_COMMANDS", "check_commands", "forbidden_commands"]

PROBE_TTL_SECONDS = 10  # lifetime of the trial's key
MIN_WAIT_SECONDS = "0.01"  # Redis refuses a blocking command before it waits, because the key is not a list

# Name → arguments after the key; None for a command without a key.
WORKER_COMMANDS: dict[str, Sequence[str] | None] = {
    "BITFIELD": ("GET", "u8", "0"),
    "BLMOVE": ("{key}", "RIGHT", "LEFT", MIN_WAIT_SECONDS),
    "BLPOP": (MIN_WAIT_SECONDS,),
    "DEL": (),
    "EVAL": None,
    "EVALSHA": None,
    "EXISTS": (),
    "EXPIRE": (str(PROBE_TTL_SECONDS),),
    "GET": (),
    "HDEL": ("x",),
    "HGET": ("x",),
    "HGETALL": (),
    "HINCRBY": ("x", "0"),
    "HKEYS": (),
    "HLEN": (),
    "HMGET": ("x",),
    "HSCAN": ("0",),
    "HSET": ("x", "x"),
    "HSETNX": ("x", "x"),
    "INCRBY": ("0",),
    "LINDEX": ("0",),
    "LLEN": (),
    "LMOVE": ("{key}", "LEFT", "RIGHT"),
    "LPUSH": ("x",),
    "LRANGE": ("0", "0"),
    "LTRIM": ("0", "0"),
    "PEXPIRE": (str(PROBE_TTL_SECONDS * 1_000),),
    "RPUSH": ("x",),
    "SADD": ("x",),
    "SCARD": (),
    "SET": ("probe", "EX", str(PROBE_TTL_SECONDS)),
    "SMEMBERS": (),
    "SMISMEMBER": ("x",),
    "SRANDMEMBER": ("1",),
    "SREM": ("x",),
    "SSCAN": ("0",),
    "TIME": None,
    "TYPE": (),
    "UNLINK": (),
    "ZADD": ("1", "x"),
    "ZCARD": (),
    "ZCOUNT": ("0", "0"),
    "ZMSCORE": ("x",),
    "ZRANGE": ("0", "0"),
    "ZRANGEBYSCORE": ("0", "0"),
    "ZREM": ("x",),
    "ZREMRANGEBYRANK": ("0", "0"),
    "ZREMRANGEBYSCORE": ("0", "0"),
    "ZREVRANGE": ("0", "0"),
    "ZSCORE": ("x",),
}
# The same for what only kiqctl, the pages and the API run.
OTHER_COMMANDS: dict[str, Sequence[str] | None] = {
    "HEXISTS": ("x",),
    "HVALS": (),
    "LPOS": ("x",),
    "LREM": ("0", "x"),
    "LSET": ("0", "x"),
    "MGET": (),
    "MSET": ("x",),
    "PTTL": (),
    "SISMEMBER": ("x",),
    "ZRANK": ("x",),
    "ZREVRANK": ("x",),
    "ZSCAN": ("0",),
}
COMMANDS = WORKER_COMMANDS | OTHER_COMMANDS
COMMANDS_WITHOUT_KEY: dict[str, Sequence[str]] = {
    "EVAL": ("return 1", "0"),
    "EVALSHA": ("0" * 40, "0"),
    "TIME": (),
}
COMMANDS_THAT_DELETE = ("DEL", "UNLINK")  # these run last
FORBIDDEN, UNKNOWN = "NOPERM", "unknown command"


def check_commands(store: Store, identity: str) -> None:
    """Raise RedisRefused, naming them, if Redis forbids this user commands that a worker runs, or does not have them.

    identity: of the worker, for a key of its own.  Raises StoreError when Redis cannot be asked.  One round trip.
    """
    key = store.keys.probe(identity)
    names = [
        "SET",
        *(name for name in WORKER_COMMANDS if name not in ("SET", *COMMANDS_THAT_DELETE)),
        *COMMANDS_THAT_DELETE,
    ]
    with store.borrowed() as connection:
        replies = connection.exchange_each([trial(name, key) for name in names])
    refusals = {name: reply for name, reply in zip(names, replies, strict=True) if isinstance(reply, ErrorReply)}
    for refusal in refusals.values():
        if is_outage(refusal):
            raise refusal
    missing = [name for name, refusal in refusals.items() if is_missing(refusal)]
    if missing:
        words = " ".join(f"+{name.lower()}" for name in sorted(missing))
        raise RedisRefused(
            f"NOPERM the Redis user of this worker may not run {', '.join(sorted(missing))}; jobs would be lost or run "
            f"twice, so it does not start. Give the user {words} and the key pattern ~* (all rights: "
            "docs/guides/secure_redis.md)"
        )


def forbidden_commands(connection: Connection, names: Iterable[str]) -> list[str]:
    """Return those of some commands that Redis forbids this user; none if it forbids MULTI.

    Runs none of them: Redis checks what it queues after MULTI, and DISCARD drops the queue.  Two round trips.
    Raises RedisUnavailable, ReplyLost.
    """
    known = sorted(name for name in names if name in COMMANDS)
    if isinstance(connection.exchange_each([("MULTI",)])[0], ErrorReply):
        return []
    *answers, _ = connection.exchange_each([*(trial(name, "key") for name in known), ("DISCARD",)])
    pairs = zip(known, answers, strict=True)
    return [name for name, answer in pairs if isinstance(answer, ErrorReply) and f"'{name.lower()}'" in str(answer)]


def is_missing(refusal: RedisRefused) -> bool:
    """Return whether Redis refused the command itself, and not its key."""
    return FORBIDDEN in str(refusal) or UNKNOWN in str(refusal)


def trial(name: str, key: str) -> Command:
    """Return a command that changes nothing but the key."""
    behind = COMMANDS[name]
    if behind is None:
        return (name, *COMMANDS_WITHOUT_KEY[name])
    return (name, key, *(word.format(key=key) for word in behind))
