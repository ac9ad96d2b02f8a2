"""Process registry: the processes that are registered in Redis, and the clusters that they belong to.

list_processes     all processes in Sidekiq's registry, Ruby's too; the state of a cluster is read from one of them
group_by_cluster   ours by supervisor; each process publishes the state of its cluster (field `kiq_cluster`)
drop_expired       removes processes whose heartbeat has expired; prune: at most once a minute
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from kiqcluster.control.slot_state import SlotState
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import HEARTBEAT_TTL_SECONDS, Keys
from kiqcluster.store import Store
from kiqcluster.store.store import scan
from kiqcluster.store.wire import Command

__all__ = [
    "CLUSTER_FIELD",
    "LATE_SECONDS",
    "MAX_PER_ROUND_TRIP",
    "SUPERVISOR_FIELD",
    "Capsule",
    "Cluster",
    "RegisteredProcess",
    "drop_expired",
    "field_commands",
    "group_by_cluster",
    "list_processes",
    "live_fields",
    "natural_sort_key",
    "prune",
    "read_commands",
    "read_count",
    "read_number",
    "read_object",
    "read_process",
    "read_processes",
    "served_queues",
]

CLUSTER_FIELD = "kiq_cluster"  # in the hash of a process: the state of its cluster, as JSON
SUPERVISOR_FIELD = "kiq_supervisor"  # in the same: `at` of that state, a space, the name of the supervisor
LATE_SECONDS = 20.0  # since the last heartbeat; they come every ten seconds
MAX_SORTED_DIGITS = 18  # of a number in a name
MAX_PER_ROUND_TRIP = 500  # processes
MAX_COUNT = 2**40  # of threads, bytes, microseconds: sums of many fit the result of len()
FIELDS = ("info", "busy", "quiet", "rss", "beat", "concurrency", "rtt_us", SUPERVISOR_FIELD)
BEAT_INDEX = FIELDS.index("beat")
PRUNE_SECONDS = 60  # in which `prune` runs once over the whole fleet (sidekiq api.rb)

Replies = tuple[str, Any, Any]  # identity, and the replies to its `read_commands`
State = Mapping[str, Any]  # of a cluster, see docs/reference/status.md


@dataclass(frozen=True, slots=True)
class Capsule:
    """Queues with threads of their own.

    threads: 0 if unknown (Sidekiq 7 with several capsules).  mode: strict, weighted or random; "" if unknown
    (Sidekiq 6).  is_named: whether the name is what its process says (8.0.9 and later).
    """

    name: str
    threads: int
    mode: str
    weights: Mapping[str, int]
    is_named: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class RegisteredProcess:
    """A process in the registry whose heartbeat has not expired.

    age: seconds since its last heartbeat, by Redis' clock.  beat: time of that heartbeat by its own clock, epoch
    seconds.  rss: bytes.  is_ours: kiqcluster's, not Ruby's.  cluster: the state of its cluster; None if it is not
    known yet, or there is no supervisor.  queues: names; a process with very many leaves out `omitted_queues` of them.
    started_at: epoch seconds.  rtt_us: microseconds that Redis took for its last heartbeat.
    is_embedded: it runs inside another program, and only that can quiet or stop it.
    application: whose declarations it has, "" if it is not ours.  routing: digest of its routing rules, "" without any.
    shard: "" for the default one.  shards: digest of its map of shards, "" without any.
    """

    identity: str
    host: str
    pid: int
    tag: str
    version: str
    queues: tuple[str, ...]
    concurrency: int
    busy: int
    is_quiet: bool
    rss: int
    beat: float
    age: float
    is_ours: bool
    cluster: Mapping[str, Any] | None = None
    started_at: float = 0.0
    rtt_us: int = 0
    is_embedded: bool = False
    labels: tuple[str, ...] = ()
    capsules: tuple[Capsule, ...] = ()
    omitted_queues: int = 0
    application: str = ""
    routing: str = ""
    shard: str = ""
    shards: str = ""

    def may_listen_to(self, queue: str) -> bool:
        """Return whether it serves the queue, or may be serving it among its omitted queues."""
        return queue in self.queues or self.omitted_queues > 0

    @property
    def is_unresponsive(self) -> bool:
        """Whether it reads no messages: its supervisor says so, or its heartbeat is late."""
        rows = (self.cluster or {}).get("children")
        known = rows if isinstance(rows, list) else []
        states = [row.get("state") for row in known if isinstance(row, dict) and row.get("pid") == self.pid]
        return self.age >= LATE_SECONDS or SlotState.UNRESPONSIVE in states

    @property
    def uptime(self) -> float | None:
        """Seconds since its start: until its last heartbeat by its own clock, since then by Redis' clock."""
        return max(0.0, self.beat - self.started_at) + self.age if self.started_at else None

    @property
    def supervisor(self) -> str | None:
        """The identity of its supervisor, `host:pid:nonce`."""
        return None if self.cluster is None else str(self.cluster["supervisor"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A supervisor and its registered processes, at least one."""

    supervisor: str
    processes: tuple[RegisteredProcess, ...]

    @property
    def host(self) -> str:
        return self.supervisor.rsplit(":", 2)[0]

    @property
    def latest(self) -> RegisteredProcess:
        """The process with the newest cluster state, else the newest heartbeat.  All share a host, and so a clock."""
        return max(self.processes, key=lambda process: (read_number((process.cluster or {}).get("at")), process.beat))

    @property
    def state(self) -> Mapping[str, Any]:
        """The newest state of the cluster."""
        return self.latest.cluster or {}


def list_processes(store: Store) -> list[RegisteredProcess]:
    """Return the processes with a heartbeat in the last minute, sorted by identity.

    Three round trips, one more per 500 processes and per 500 clusters.
    """
    identities = sorted(name.decode(errors="replace") for name in store.call("SMEMBERS", store.keys.processes))
    commands = [command for each in identities for command in read_commands(store.keys, each)]
    replies = store.read_each(commands, 2 * MAX_PER_ROUND_TRIP)
    return read_processes(store, list(zip(identities, replies[::2], replies[1::2], strict=True)))


def read_processes(store: Store, replies: Sequence[Replies]) -> list[RegisteredProcess]:
    """Return the processes in these replies, with the states of their clusters.  One round trip per 500 clusters."""
    states = _states_by_identity(store, replies)
    read = (read_process(*each, states.get(each[0])) for each in replies)
    return [process for process in read if process is not None]


def _states_by_identity(store: Store, replies: Sequence[Replies]) -> dict[str, State]:
    """Return identity → state of its cluster, which is read once per cluster, from the process with the newest.

    A process that names no supervisor, as each of Ruby's, has none.
    """
    groups: dict[bytes, list[tuple[float, float, str]]] = {}
    for identity, fields, _ in replies:
        if isinstance(fields, list) and fields[0] is not None and fields[-1]:
            at, _, name = fields[-1].partition(b" ")
            groups.setdefault(name, []).append((read_number(at), read_number(fields[BEAT_INDEX]), identity))
    newest = {max(group)[-1]: group for group in groups.values()}
    found = _read_states(store, list(newest))
    # The process may have ended since, or hold an invalid state; then all others of its cluster are read at once.
    lacking = ((one, each[-1]) for one, group in newest.items() if one not in found for each in group)
    found |= _read_states(store, [other for one, other in lacking if other != one])
    shared: dict[str, State] = {}
    for group in groups.values():
        state = next((found[each[-1]] for each in sorted(group, reverse=True) if each[-1] in found), None)
        if state is not None:
            shared |= dict.fromkeys((each[-1] for each in group), state)
    return shared


def _read_states(store: Store, identities: Sequence[str]) -> dict[str, State]:
    commands = [("HGET", store.keys.process(each), CLUSTER_FIELD) for each in identities]
    raws = store.read_each(commands, MAX_PER_ROUND_TRIP)
    pairs = ((each, read_object(raw)) for each, raw in zip(identities, raws, strict=True) if isinstance(raw, bytes))
    return {each: state for each, state in pairs if isinstance(state.get("supervisor"), str)}


def natural_sort_key(text: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts web-2 before web-10."""
    parts = [each for each in re.split(r"(\d+)", text) if each]
    return [(not each.isdecimal(), int(each[:MAX_SORTED_DIGITS]) if each.isdecimal() else 0, each) for each in parts]


def group_by_cluster(processes: Iterable[RegisteredProcess]) -> list[Cluster]:
    """Return the clusters by supervisor name; in each, the process with the newest heartbeat comes first."""
    by_supervisor: dict[str, list[RegisteredProcess]] = {}
    for process in sorted(processes, key=lambda process: process.age):
        if process.supervisor is not None:
            by_supervisor.setdefault(process.supervisor, []).append(process)
    return [Cluster(name, tuple(by_supervisor[name])) for name in sorted(by_supervisor)]


def prune(store: Store) -> int:
    """Remove identities whose heartbeat has expired, at most once a minute, as Ruby's processes do; return how many.

    One round trip; when it runs, two more per 500 processes.  Raises StoreError.
    """
    if not store.call("SET", store.keys.process_cleanup, "1", "NX", "EX", PRUNE_SECONDS):
        return 0
    return drop_expired(store)


def drop_expired(store: Store) -> int:
    """Remove identities whose heartbeat has expired; return how many.

    A hash without an expiry is no process (`live_fields`), and gets one, so that it does not stay for ever.
    Two round trips per 500 processes, one more where any has expired.  Raises StoreError.
    """
    keys, dropped = store.keys, 0
    for members in scan(store, "SSCAN", keys.processes, "COUNT", MAX_PER_ROUND_TRIP):
        names = [member.decode(errors="replace") for member in members]
        replies = store.read_each(field_commands(keys, names, "info"))
        gone = [member for member, info in zip(members, live_fields(replies), strict=True) if info is None]
        if gone:
            copied = [name for name, info in zip(names, replies[::2], strict=True) if isinstance(info, bytes)]
            expiries = [("EXPIRE", keys.process(name), HEARTBEAT_TTL_SECONDS, "NX") for name in copied]
            dropped += int(store.pipeline([("SREM", keys.processes, *gone), *expiries])[0])
    return dropped


def field_commands(keys: Keys, identities: Iterable[str], field: str) -> list[Command]:
    """Return the commands that read a field of processes; `live_fields` takes their replies."""
    return [each for name in identities for each in (("HGET", keys.process(name), field), ("PTTL", keys.process(name)))]


def live_fields(replies: Sequence[Any]) -> list[bytes | None]:
    """Return the field of each process, None where it has expired, or is no process (`read_process`)."""
    return [
        value if isinstance(value, bytes) and isinstance(left, int) and left >= 0 else None
        for value, left in zip(replies[::2], replies[1::2], strict=True)
    ]


def read_commands(keys: Keys, identity: str) -> list[tuple[str, ...]]:
    """Return the two commands whose replies `read_process` takes, so that a caller can add them to its pipeline."""
    key = keys.process(identity)
    return [("HMGET", key, *FIELDS), ("PTTL", key)]


def read_process(identity: str, fields: Any, left: Any, state: State | None = None) -> RegisteredProcess | None:
    """Return a process from its hash and the milliseconds until that expires.  Malformed fields read as missing.

    state: of its cluster, if the caller has read it.
    Returns None if there is no such process: others write to the set, so its key may be missing or not a hash.  A hash
    without an expiry is that of data which was copied: each beat of a process sets one.
    """
    if not isinstance(fields, list) or fields[0] is None or not isinstance(left, int) or left < 0:
        return None
    info, busy, quiet, rss, beat, concurrency, rtt_us, _ = fields
    about = read_object(info)
    host, pid, _ = (*identity.rsplit(":", 2), "", "")[:3]
    labels = about.get("labels")
    threads = read_count(concurrency) or read_count(about.get("concurrency"))
    return RegisteredProcess(
        identity=identity,
        host=_read_text(about.get("hostname")) or host,
        pid=read_count(about.get("pid", pid)),
        tag=_read_text(about.get("tag")),
        version=_read_text(about.get("version")),
        queues=_queues(about),
        concurrency=threads,
        busy=read_count(busy),
        is_quiet=quiet == b"true",
        rss=read_count(rss) * 1_024,
        beat=read_number(beat),
        age=max(0.0, HEARTBEAT_TTL_SECONDS - left / 1_000),
        is_ours=isinstance(labels, list) and "kiqcluster" in labels,
        cluster=state,
        started_at=read_number(about.get("started_at")),
        rtt_us=read_count(rtt_us),
        is_embedded=about.get("embedded") is True,
        labels=_read_texts(labels),
        capsules=tuple(_capsules(about, threads)),
        omitted_queues=read_count(about.get("omitted_queues")),
        application=_read_text(about.get("application")),
        routing=_read_text(about.get("routing")),
        shard=_read_text(about.get("shard")),
        shards=_read_text(about.get("shards")),
    )


def served_queues(info: bytes | None) -> tuple[str, ...]:
    """Return the queues that a process fetches from, read from the field `info` of its hash."""
    return _queues(read_object(info))


def _queues(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the queues, from the form of any version of Sidekiq."""
    queues, capsules = about.get("queues"), about.get("capsules")
    if not isinstance(queues, list) and isinstance(capsules, dict):
        queues = [
            name for each in capsules.values() if isinstance(each, dict) for name in _weights(each.get("weights"))
        ]
    return tuple(dict.fromkeys(_read_texts(queues)))


def _capsules(about: Mapping[str, Any], threads: int) -> Iterator[Capsule]:
    """Yield the capsules; before 8.0.9 there are weights without names, before 7.0.2 queues without weights."""
    capsules = about.get("capsules")
    if isinstance(capsules, dict):
        for name, each in capsules.items():
            capsule = each if isinstance(each, dict) else {}
            weights = _weights(capsule.get("weights"))
            yield Capsule(
                name,
                read_count(capsule.get("concurrency")),
                _read_text(capsule.get("mode")) or _mode(weights),
                weights,
                is_named=True,
            )
        return
    weights_by_capsule = about.get("weights")
    if not isinstance(weights_by_capsule, list | dict):
        yield Capsule("default", threads, "", dict.fromkeys(_queues(about), 1))
        return
    several = weights_by_capsule if isinstance(weights_by_capsule, list) else [weights_by_capsule]
    for number, each in enumerate(several, 1):
        weights = _weights(each)
        name = "default" if number == 1 else str(number)
        yield Capsule(name, threads if len(several) == 1 else 0, _mode(weights), weights)


def _weights(value: object) -> dict[str, int]:
    return {str(name): read_count(weight) for name, weight in value.items()} if isinstance(value, dict) else {}


def _mode(weights: Mapping[str, int]) -> str:
    """Return the mode that weights imply (sidekiq capsule.rb)."""
    if not any(weights.values()):
        return "strict"
    return "random" if all(weight == 1 for weight in weights.values()) else "weighted"


def _read_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _read_texts(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def read_object(raw: bytes | None) -> dict[str, Any]:
    """Return the members of a JSON object, such as the field `info` of a process; none for other bytes."""
    try:
        value = ruby_json.decode(raw or b"{}")
    except ruby_json.Undecodable:
        return {}
    return value if isinstance(value, dict) else {}


def read_count(value: object) -> int:
    """Return the value as a whole number from 0 to MAX_COUNT; 0 if it is none, such as -1 or 10²³."""
    number = read_number(value)
    return int(number) if 0 <= number <= MAX_COUNT else 0


def read_number(value: object) -> float:
    """Return the value as a finite number; 0 if it is not one."""
    try:
        number = float(value)  # type: ignore[arg-type]  # other types are caught
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if isfinite(number) else 0.0
