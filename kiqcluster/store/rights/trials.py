"""Trials: whether the user of a connection may run a command of Redis.

check_worker         at a worker's boot: names what an ACL forbids, by feature
forbidden_commands   which commands an ACL forbids, without running them: to name what has stopped a script

If an ACL forbids a command of a script, that fails in the middle each time, and makes copies of jobs.  So a worker
refuses to start unless it may run all that it needs.  The trial of the boot changes only a key of its own, which is a
string and expires: commands for other types fail on it, after Redis has checked the permissions.  Other keys are tried
by a trim that takes nothing away, from lists either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kiqcluster.errors import RedisRefused
from kiqcluster.store.connection import Connection
from kiqcluster.store.rights.lists import FEATURES, WORKER
from kiqcluster.store.store import Store
from kiqcluster.store.wire import Command, ErrorReply, is_outage
from kiqcluster.words import page

__all__ = ["TRIALS", "UNTRIED", "check_worker", "forbidden_commands", "needed"]

PROBE_TTL_SECONDS = 10  # lifetime of the trial's key
MIN_WAIT_SECONDS = "0.01"  # Redis refuses a blocking command before it waits, because the key is not a list

# Command → arguments after the key; None for a command without a key.
TRIALS: dict[str, Sequence[str] | None] = {
    "BITFIELD": ("GET", "u8", "0"),
    "BLMOVE": ("{key}", "RIGHT", "LEFT", MIN_WAIT_SECONDS),
    "BLPOP": (MIN_WAIT_SECONDS,),
    "DBSIZE": None,
    "DEL": (),
    "EVAL": None,
    "EVALSHA": None,
    "EXISTS": (),
    "EXPIRE": (str(PROBE_TTL_SECONDS),),
    "GET": (),
    "HDEL": ("x",),
    "HEXISTS": ("x",),
    "HGET": ("x",),
    "HGETALL": (),
    "HINCRBY": ("x", "0"),
    "HKEYS": (),
    "HLEN": (),
    "HMGET": ("x",),
    "HSCAN": ("0",),
    "HSET": ("x", "x"),
    "HSETNX": ("x", "x"),
    "HVALS": (),
    "INCRBY": ("0",),
    "LINDEX": ("0",),
    "LLEN": (),
    "LMOVE": ("{key}", "LEFT", "RIGHT"),
    "LPOS": ("x",),
    "LPUSH": ("x",),
    "LRANGE": ("0", "0"),
    "LREM": ("0", "x"),
    "LSET": ("0", "x"),
    "LTRIM": ("0", "0"),
    "MGET": (),
    "MSET": ("x",),
    "PEXPIRE": (str(PROBE_TTL_SECONDS * 1_000),),
    "PTTL": (),
    "RPUSH": ("x",),
    "SADD": ("x",),
    "SCAN": None,
    "SCARD": (),
    "SET": ("probe", "EX", str(PROBE_TTL_SECONDS)),
    "SISMEMBER": ("x",),
    "SMEMBERS": (),
    "SMISMEMBER": ("x",),
    "SRANDMEMBER": ("1",),
    "SREM": ("x",),
    "SSCAN": ("0",),
    "TIME": None,
    "TTL": (),
    "TYPE": (),
    "UNLINK": (),
    "ZADD": ("1", "x"),
    "ZCARD": (),
    "ZCOUNT": ("0", "0"),
    "ZMSCORE": ("x",),
    "ZRANGE": ("0", "0"),
    "ZRANGEBYSCORE": ("0", "0"),
    "ZRANK": ("x",),
    "ZREM": ("x",),
    "ZREMRANGEBYRANK": ("0", "0"),
    "ZREMRANGEBYSCORE": ("0", "0"),
    "ZREVRANGE": ("0", "0"),
    "ZREVRANK": ("x",),
    "ZSCAN": ("0",),
    "ZSCORE": ("x",),
}
COMMANDS_WITHOUT_KEY: dict[str, Sequence[str]] = {
    "DBSIZE": (),
    "EVAL": ("return 1", "0"),
    "EVALSHA": ("0" * 40, "0"),
    "SCAN": ("0",),
    "TIME": (),
}
# Commands of the package that are not tried.  No worker needs transactions for itself.
TRANSACTIONS = ("EXEC", "MULTI")
# Without them a worker runs all the same: see docs/guides/secure_redis.md.
OPTIONAL = ("CLIENT|ID", "CLIENT|KILL", "CLIENT|LIST", "COMMAND|INFO", "INFO", "PING", "WAIT")
OF_TOPOLOGIES = ("CLUSTER|SLOTS", "ROLE", "SENTINEL|GET-MASTER-ADDR-BY-NAME")  # of a Redis Cluster, of Sentinel
UNTRIED = (*TRANSACTIONS, *OPTIONAL, *OF_TOPOLOGIES)
COMMANDS_THAT_DELETE = ("DEL", "UNLINK")  # these run last
FORBIDDEN, UNKNOWN = "NOPERM", "unknown command"


def needed(features: Collection[str]) -> list[str]:
    """Return the commands that a worker needs whose jobs use these features, by name.  features: keys of FEATURES."""
    names = {*WORKER, *(name for feature in features for name in FEATURES[feature])}
    return sorted(names & TRIALS.keys())


def check_worker(store: Store, identity: str, features: Collection[str]) -> None:
    """Raise RedisRefused, naming them, if Redis forbids this user commands or keys that a worker needs.

    identity: of the form of the worker's, for keys of its own.  features: that its jobs use, keys of FEATURES.
    Raises StoreError when Redis cannot be asked.  One round trip.
    """
    key, wanted = store.keys.probe(identity), needed(features)
    names = ["SET", *(name for name in wanted if name not in ("SET", *COMMANDS_THAT_DELETE)), *COMMANDS_THAT_DELETE]
    keys = [each for each in store.keys.shared() if each != store.keys.leader]  # which pages alone read
    keys += [store.keys.process(identity), store.keys.work(identity)]
    with store.borrowed() as connection:
        replies = connection.exchange_each(
            [*(trial(name, key) for name in names), *(("LTRIM", each, "0", "-1") for each in keys)]
        )
    refusals = {
        name: reply for name, reply in zip([*names, *keys], replies, strict=True) if isinstance(reply, ErrorReply)
    }
    for refusal in refusals.values():
        if is_outage(refusal):
            raise refusal
    refused = {name for name, refusal in refusals.items() if is_missing(refusal)}
    missing = sorted(refused.intersection(names))
    if missing:
        told = ", ".join(_with_features(name, features) for name in missing)
        words = " ".join(f"+{name.lower()}" for name in missing)
        raise RedisRefused(
            f"NOPERM the Redis user of this worker may not run {told}; jobs would be lost or run twice, so it does not "
            f"start. Give the user {words} and the key pattern ~* (all rights: {page('guides/secure_redis')})"
        )
    if refused:
        raise RedisRefused(
            f"NOPERM the Redis user of this worker may not access the keys {', '.join(sorted(refused))}; jobs would be "
            f"lost, run twice or not run at all, so it does not start. Give the user the key pattern ~* "
            f"({page('guides/secure_redis')})"
        )


def _with_features(name: str, features: Collection[str]) -> str:
    """Return the name of a command, with the features that need it if other workers do not."""
    found = [each for each in FEATURES if each in features and name in FEATURES[each]]
    return name if name in WORKER or not found else f"{name} ({', '.join(found)})"


def forbidden_commands(connection: Connection, names: Iterable[str]) -> list[str]:
    """Return those of some commands that Redis forbids this user; none if it forbids MULTI.

    Runs none of them: Redis checks what it queues after MULTI, and DISCARD drops the queue.  Two round trips.
    Raises RedisUnavailable, ReplyLost.
    """
    known = sorted(name for name in names if name in TRIALS)
    if isinstance(connection.exchange_each([("MULTI",)])[0], ErrorReply):
        return []
    *answers, dropped = connection.exchange_each([*(trial(name, "key") for name in known), ("DISCARD",)])
    if isinstance(dropped, ErrorReply):
        connection.close()  # the transaction is still open
    pairs = zip(known, answers, strict=True)
    return [name for name, answer in pairs if isinstance(answer, ErrorReply) and f"'{name.lower()}'" in str(answer)]


def is_missing(refusal: RedisRefused) -> bool:
    """Return whether Redis refused the command itself, and not its key."""
    return FORBIDDEN in str(refusal) or UNKNOWN in str(refusal)


def trial(name: str, key: str) -> Command:
    """Return a command that changes nothing but the key."""
    behind = TRIALS[name]
    if behind is None:
        return (name, *COMMANDS_WITHOUT_KEY[name])
    return (name, key, *(word.format(key=key) for word in behind))
