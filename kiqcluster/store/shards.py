"""Shards: named Redis servers beside the default one.

[shards.reports]
redis = "redis://reports:6379/0"

A shard has everything of its own: queues, sets, processes, limits, locks and counters.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.errors import UsageError
from kiqcluster.store.address import masked, parse_address
from kiqcluster.store.cluster_address import is_cluster_address, parse_cluster

__all__ = [
    "DEFAULT_SHARD",
    "Shard",
    "address_of",
    "check_address",
    "check_shard",
    "parse_shards",
    "place_of",
    "same_redis",
    "shard_name",
    "shards_digest",
]

DEFAULT_SHARD = "default"  # the Redis of the setting `redis`
DEFAULT_PORT = 6379
DIGEST_CHARACTERS = 12
NAME = re.compile(r"[A-Za-z0-9_-]+")
FORM = 'a shard is written as in [shards.reports] redis = "redis://reports:6379/0"'


@dataclass(frozen=True, slots=True)
class Shard:
    """A named Redis.  redis: its address."""

    name: str
    redis: str

    def __str__(self) -> str:
        return f"{self.name}={masked(self.redis)}"


def parse_shards(raw: Any) -> tuple[Shard, ...]:
    """Return the shards of a setting: tables by name, addresses by name, or JSON of these.  Raises UsageError."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError as error:
            raise UsageError(f'it is no JSON ({error}); write it as in {{"reports": "redis://reports/0"}}') from error
    if not isinstance(raw, Mapping):
        raise UsageError(f"it takes a table for each shard; {FORM}")
    return tuple(_shard(name, table) for name, table in raw.items())


def _shard(name: str, table: Any) -> Shard:
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a shard; it takes letters, digits, - and _")
    if name == DEFAULT_SHARD:
        raise UsageError(f"the shard {name!r} is the Redis of the setting `redis`; give this one another name")
    if isinstance(table, Mapping):
        if unknown := sorted(table.keys() - {"redis"}):
            raise UsageError(f"shard {name}: there is no key {unknown[0]!r}; {FORM}")
        table = table.get("redis")
    if not isinstance(table, str) or table.startswith("embedded:"):
        raise UsageError(f"shard {name} needs the address of its Redis; {FORM}")
    try:
        check_address(table)
    except UsageError as error:
        raise UsageError(f"shard {name}: {error}") from error
    return Shard(name, table)


def check_address(address: str) -> None:
    """Raise UsageError for what is not the address of a Redis, of sentinels, or of a Redis Cluster."""
    if is_cluster_address(address):
        parse_cluster(address)
    else:
        parse_address(address)


def same_redis(default: str, shards: Sequence[Shard]) -> dict[str, str]:
    """Return name of a shard → name of an earlier one with the same address, whatever its password and options.

    default: the address of the default shard.  Two spellings of a host count as different.  In a Redis Cluster each
    name has keys of its own.
    """
    name_by_place: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, address in ((DEFAULT_SHARD, default), *((each.name, each.redis) for each in shards)):
        if is_cluster_address(address):
            continue
        first = name_by_place.setdefault(place_of(address), name)
        if first != name:
            found[name] = first
    return found


def place_of(address: str) -> str:
    """Return which server and database an address leads to, without its password and options."""
    if is_cluster_address(address):
        return f"the Redis Cluster {_listed(parse_cluster(address).hosts)}"
    node = parse_address(address)
    if isinstance(node, Mapping):
        where = node.get("path") or f"{node.get('host', 'localhost')}:{node.get('port', DEFAULT_PORT)}"
        return f"{where}/{int(node.get('db') or 0)}"
    return f"{node.name}@{_listed(node.hosts)}/{int(node.node.get('db') or 0)}"


def _listed(hosts: Sequence[tuple[str, int]]) -> str:
    return ",".join(sorted(f"{host}:{port}" for host, port in hosts))


def shards_digest(shards: Sequence[Shard]) -> str:
    """Return a short name for a map of shards, "" for none.  The same names and places have the same.

    Passwords and options do not count.
    """
    if not shards:
        return ""
    rows = sorted((each.name, place_of(each.redis)) for each in shards)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:DIGEST_CHARACTERS]


def shard_name(name: str) -> str:
    """Return the name of a shard as it is kept: "" for the default one."""
    return "" if name == DEFAULT_SHARD else name


def check_shard(name: str, shards: Sequence[Shard]) -> None:
    """Raise UsageError for a name that no shard has."""
    if shard_name(name):
        address_of(name, shards)


def address_of(name: str, shards: Sequence[Shard]) -> str:
    """Return the address of a shard.  Raises UsageError for a name that none has."""
    for shard in shards:
        if shard.name == name:
            return shard.redis
    names = [shard.name for shard in shards]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(names)}" if names else FORM
    raise UsageError(f"there is no shard {name!r}; {hint}")
