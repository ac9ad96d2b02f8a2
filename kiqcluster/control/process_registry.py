"""Process registry: the processes that show in Redis, and the clusters that they belong to.

processes   all processes in Sidekiq's registry, Ruby's too; the state of a cluster is read from one of them
prune       drop processes from the registry whose heartbeat has expired
clusters    ours by their supervisor; each of its processes publishes the cluster's state (field `kiq_cluster`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import HEARTBEAT_TTL, Keys
from kiqcluster.store import Store
from kiqcluster.store.wire import Command, Reply

__all__ = [
    "CLUSTER_FIELD",
    "LATE_SECONDS",
    "SUPERVISOR_FIELD",
    "Capsule",
    "Cluster",
    "Process",
    "clusters",
    "natural",
    "processes",
    "prune",
    "questions",
    "read_process",
    "read_processes",
    "served_queues",
]

CLUSTER_FIELD = "kiq_cluster"  # of a process' hash: JSON of what its supervisor is doing
SUPERVISOR_FIELD = "kiq_supervisor"  # of the same: `at` of that state, a space, its supervisor's name
LATE_SECONDS = 20.0  # since the last beat, which comes every ten
DIGITS = 18  # of a number in a name, by which names are sorted
BATCH = 500  # processes asked for in one round trip
PRUNE_PERIOD = 60  # seconds between two prunings, over the whole fleet (sidekiq api.rb)

Told = tuple[str, Any, Any]  # identity, and the replies to its `questions`
State = Mapping[str, Any]  # what a supervisor is doing, see docs/metrics.md


@dataclass(frozen=True, slots=True)
class Capsule:
    """Queues with threads of their own.

    threads: 0 where the process does not say (Sidekiq 7 with several capsules).  mode: strict, weighted or random; ""
    where it does not say (Sidekiq 6).
    """

    name: str
    threads: int
    mode: str
    weights: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Process:
    """A live process.

    age: seconds since its last beat, by Redis' clock.  beat: the same by its own, epoch seconds.  rss: bytes.
    is_ours: kiqcluster's, not Ruby's.  cluster: what its supervisor is doing; None while it has not been told, or has
    none.  queues: by name only, without `omitted_queues` others, where a process has very many.
    started_at: epoch seconds.  rtt_us: microseconds that Redis took for its last beat.
    is_embedded: it runs inside of another program, which alone can quiet and stop it.
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

    def may_listen_to(self, queue: str) -> bool:
        """Return whether it serves the queue, or may, for all that it tells."""
        return queue in self.queues or self.omitted_queues > 0

    @property
    def is_unresponsive(self) -> bool:
        """Whether it reads no message: its supervisor says so, or it has not beaten for long."""
        rows = (self.cluster or {}).get("children")
        known = rows if isinstance(rows, list) else []
        states = [row.get("state") for row in known if isinstance(row, dict) and row.get("pid") == self.pid]
        return self.age >= LATE_SECONDS or "unresponsive" in states

    @property
    def uptime(self) -> float | None:
        """For how many seconds it has run: until its last beat by its own clock, and since then by Redis'."""
        return max(0.0, self.beat - self.started_at) + self.age if self.started_at else None

    @property
    def supervisor(self) -> str | None:
        """Who it belongs to, as `host:pid:nonce`."""
        return None if self.cluster is None else str(self.cluster["supervisor"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A supervisor, seen through its processes, of which there is at least one."""

    supervisor: str
    processes: tuple[Process, ...]

    @property
    def host(self) -> str:
        return self.supervisor.rsplit(":", 2)[0]

    @property
    def latest(self) -> Process:
        """The process that knows best: its news is the newest, or else its beat.  They share a host, and so a clock."""
        return max(self.processes, key=lambda process: (_number((process.cluster or {}).get("at")), process.beat))

    @property
    def state(self) -> Mapping[str, Any]:
        """What the supervisor is doing, by the latest news."""
        return self.latest.cluster or {}


def processes(store: Store) -> list[Process]:
    """Return everybody who has beaten within a minute, by identity.

    Three round trips, one more per BATCH processes and per BATCH clusters.
    """
    identities = sorted(name.decode(errors="replace") for name in store.call("SMEMBERS", store.keys.processes))
    replies = _ask(store, [command for each in identities for command in questions(store.keys, each)], 2 * BATCH)
    return read_processes(store, list(zip(identities, replies[::2], replies[1::2], strict=True)))


def read_processes(store: Store, told: Sequence[Told]) -> list[Process]:
    """Return the processes of which this was told, with their clusters' states.  One round trip per BATCH clusters."""
    states = _states(store, told)
    read = (read_process(*each, states.get(each[0])) for each in told)
    return [process for process in read if process is not None]


def _states(store: Store, told: Sequence[Told]) -> dict[str, State]:
    """Return identity → its cluster's state, which is read once for each cluster: from the process with the newest.

    A process that names no supervisor is asked itself: it may be of a release before SUPERVISOR_FIELD.
    """
    groups: dict[bytes | str, list[tuple[float, float, str]]] = {}
    for identity, fields, _ in told:
        if isinstance(fields, list) and fields[0] is not None:
            at, _, name = (fields[-1] or b"").partition(b" ")
            groups.setdefault(name or identity, []).append((_number(at), _number(fields[BEAT]), identity))
    newest = {max(group)[-1]: group for group in groups.values()}
    found = _read_states(store, list(newest))
    # The process may have ended since, or hold junk; then all the others of its cluster are asked at once.
    lacking = ((one, each[-1]) for one, group in newest.items() if one not in found for each in group)
    found |= _read_states(store, [other for one, other in lacking if other != one])
    shared: dict[str, State] = {}
    for group in groups.values():
        state = next((found[each[-1]] for each in sorted(group, reverse=True) if each[-1] in found), None)
        if state is not None:
            shared |= dict.fromkeys((each[-1] for each in group), state)
    return shared


def _read_states(store: Store, identities: Sequence[str]) -> dict[str, State]:
    raws = _ask(store, [("HGET", store.keys.process(each), CLUSTER_FIELD) for each in identities], BATCH)
    pairs = ((each, _object(raw)) for each, raw in zip(identities, raws, strict=True) if isinstance(raw, bytes))
    return {each: state for each, state in pairs if isinstance(state.get("supervisor"), str)}


def _ask(store: Store, commands: Sequence[Command], size: int) -> list[Reply]:
    """Return the replies to commands, of which `size` go in one round trip."""
    replies: list[Reply] = []
    for at in range(0, len(commands), size):
        with store.borrowed() as link:
            replies += link.exchange(commands[at : at + size])
    return replies


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts web-2 before web-10: digits count as the number that they make."""
    parts = [each for each in re.split(r"(\d+)", text) if each]
    return [(not each.isdecimal(), int(each[:DIGITS]) if each.isdecimal() else 0, each) for each in parts]


def clusters(everybody: Iterable[Process]) -> list[Cluster]:
    """Return the supervisors by name, those of their processes that have beaten most lately first."""
    by_supervisor: dict[str, list[Process]] = {}
    for process in sorted(everybody, key=lambda process: process.age):
        if process.supervisor is not None:
            by_supervisor.setdefault(process.supervisor, []).append(process)
    return [Cluster(name, tuple(by_supervisor[name])) for name in sorted(by_supervisor)]


def prune(store: Store) -> int:
    """Drop identities whose heartbeat has expired; return how many.  About once a minute over the whole fleet.

    One round trip; when it is time, two more per BATCH processes.  Raises StoreError.
    """
    keys = store.keys
    if not store.call("SET", keys.process_cleanup, "1", "NX", "EX", PRUNE_PERIOD):
        return 0
    dropped, cursor = 0, b"0"
    while True:
        cursor, names = store.call("SSCAN", keys.processes, cursor, "COUNT", BATCH)
        with store.borrowed() as link:
            infos = link.exchange([("HGET", keys.process(name.decode(errors="replace")), "info") for name in names])
        gone = [name for name, info in zip(names, infos, strict=True) if not isinstance(info, bytes)]
        dropped += int(store.call("SREM", keys.processes, *gone)) if gone else 0
        if cursor == b"0":
            return dropped


FIELDS = ("info", "busy", "quiet", "rss", "beat", "concurrency", "rtt_us", SUPERVISOR_FIELD)
BEAT = FIELDS.index("beat")


def questions(keys: Keys, identity: str) -> list[tuple[str, ...]]:
    """Return the two commands whose replies `read_process` reads, for whoever asks for more in one round trip."""
    key = keys.process(identity)
    return [("HMGET", key, *FIELDS), ("PTTL", key)]


def read_process(identity: str, fields: Any, left: Any, state: State | None = None) -> Process | None:
    """Return a process from its hash and the milliseconds until that expires; whatever is odd in it reads as nothing.

    state: of its cluster, for whoever has asked for that too.
    None for nobody: anything may be in a set that others write to, also a name whose key is no hash.
    """
    if not isinstance(fields, list) or fields[0] is None or not isinstance(left, int):
        return None
    info, busy, quiet, rss, beat, concurrency, rtt_us, _ = fields
    about = _object(info)
    host, pid, _ = (*identity.rsplit(":", 2), "", "")[:3]
    labels = about.get("labels")
    threads = int(_number(concurrency) or _number(about.get("concurrency")))
    return Process(
        identity=identity,
        host=_name(about.get("hostname")) or host,
        pid=int(_number(about.get("pid", pid))),
        tag=_name(about.get("tag")),
        version=_name(about.get("version")),
        queues=_queues(about),
        concurrency=threads,
        busy=int(_number(busy)),
        is_quiet=quiet == b"true",
        rss=int(_number(rss)) * 1_024,
        beat=_number(beat),
        age=max(0.0, HEARTBEAT_TTL - left / 1_000) if left >= 0 else 0.0,
        is_ours=isinstance(labels, list) and "kiqcluster" in labels,
        cluster=state,
        started_at=_number(about.get("started_at")),
        rtt_us=int(_number(rtt_us)),
        is_embedded=about.get("embedded") is True,
        labels=_names(labels),
        capsules=tuple(_capsules(about, threads)),
        omitted_queues=int(_number(about.get("omitted_queues"))),
    )


def served_queues(info: bytes | None) -> tuple[str, ...]:
    """Return the queues that a process fetches from, by what it says about itself (field `info` of its hash)."""
    return _queues(_object(info))


def _queues(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the queues by name, in whichever form this version of Sidekiq has them."""
    queues, capsules = about.get("queues"), about.get("capsules")
    if not isinstance(queues, list) and isinstance(capsules, dict):
        queues = [
            name for each in capsules.values() if isinstance(each, dict) for name in _weights(each.get("weights"))
        ]
    return tuple(dict.fromkeys(_names(queues)))


def _capsules(about: Mapping[str, Any], threads: int) -> Iterator[Capsule]:
    """Yield the capsules; before 8.0.9 there are weights without names, before 7.0.2 queues without weights."""
    capsules = about.get("capsules")
    if isinstance(capsules, dict):
        for name, each in capsules.items():
            told = each if isinstance(each, dict) else {}
            weights = _weights(told.get("weights"))
            yield Capsule(
                name, int(_number(told.get("concurrency"))), _name(told.get("mode")) or _mode(weights), weights
            )
        return
    told_weights = about.get("weights")
    if not isinstance(told_weights, list | dict):
        yield Capsule("default", threads, "", dict.fromkeys(_queues(about), 1))
        return
    several = told_weights if isinstance(told_weights, list) else [told_weights]
    for number, each in enumerate(several, 1):
        weights = _weights(each)
        name = "default" if number == 1 else str(number)
        yield Capsule(name, threads if len(several) == 1 else 0, _mode(weights), weights)


def _weights(told: object) -> dict[str, int]:
    return {str(name): int(_number(weight)) for name, weight in told.items()} if isinstance(told, dict) else {}


def _mode(weights: Mapping[str, int]) -> str:
    """Return what weights mean (sidekiq capsule.rb)."""
    if not any(weights.values()):
        return "strict"
    return "random" if all(weight == 1 for weight in weights.values()) else "weighted"


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _object(raw: bytes | None) -> dict[str, Any]:
    try:
        value = ruby_json.decode(raw or b"{}")
    except ruby_json.Undecodable:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number is caught
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if isfinite(number) else 0.0
