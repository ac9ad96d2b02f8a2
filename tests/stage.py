"""Stage: what a test with real processes has: an empty Redis, its clusters, and the steps that many tests take.

Jobs    pushes jobs to a store, and reads what became of them
Stage   Jobs on the test's Redis server, with clusters that end with the test

`def test_…(stage: Stage)` gets one by the fixture `stage`.  The jobs are those of tests/apps/basic.py.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from kiqcluster import Client
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.control import process_registry
from kiqcluster.errors import StoreError
from kiqcluster.job import JobFunction
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, wait_until

ENDS = ("job_done", "job_dropped")  # events of a job that is not in Redis any more
READS: Mapping[bytes, tuple[Any, ...]] = {
    b"list": ("LRANGE", 0, -1),
    b"hash": ("HVALS",),
    b"zset": ("ZRANGE", 0, -1),
}
PUSHING = threading.Lock()  # some tests push in threads: guards the registry of this process, which a push replaces
JOB_KEYS = ("retry", "schedule", "dead", "kiq:suspects")
JOB_KEY_PREFIXES = ("queue:", "kiq:wake:", "kiq:inflight:", "kiq:hand:")
HAND_LIST = re.compile(r"kiq:hand:(.*?):\d{8}\.h\d{9}:")  # of an identity


class Jobs:
    """Pushes jobs to a store, and reads what became of them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pushed: list[str] = []  # jids

    # jobs that wait

    def push(self, job: str | JobFunction[..., Any], *args: Any, **options: Any) -> str:
        """Enqueue a job and return its jid.  options: queue, and any payload key.

        A name means no class that a test has imported, for which tests share a process is chance: what the client half
        of a feature is to see is pushed by the job itself.
        """
        with PUSHING, using_registry(Registry()):
            jid = Client(self.store, Setup(config=Config())).push({"class": job, "args": list(args), **options})
        assert jid is not None
        self.pushed.append(jid)
        return jid

    def push_many(self, job: str | JobFunction[..., Any], arguments: list[list[Any]], **options: Any) -> list[str]:
        """Enqueue a job for each list of arguments and return their jids."""
        with PUSHING, using_registry(Registry()):
            jids = Client(self.store, Setup(config=Config())).push_bulk({"class": job, "args": arguments, **options})
        found: list[str] = [jid for jid in jids if jid is not None]
        self.pushed += found
        return found

    def queued(self, queue: str = "default") -> list[Any]:
        """Return the payloads that wait in a queue and its wake list, the next one to be fetched first."""
        lists = self.store.pipeline([("LRANGE", key, 0, -1) for key in (f"queue:{queue}", f"kiq:wake:{queue}")])
        return [ruby_json.decode(raw) for each in reversed(lists) for raw in reversed(each)]

    def queued_args(self, queue: str = "default") -> list[Any]:
        """Return the first argument of each job that waits in a queue."""
        return [payload["args"][0] for payload in self.queued(queue)]

    # jobs that ran

    def notes(self) -> list[str]:
        """Return the lines that jobs have noted, in order."""
        return [line.decode() for line in self.store.call("LRANGE", "ledger", 0, -1)]

    def wait_noted(self, *lines: str) -> None:
        """Wait until jobs have noted these lines, among others."""
        wait_until(lambda: set(lines) <= set(self.notes()), f"the jobs to note {lines}")

    def release(self) -> None:
        """Let the jobs `stubborn` end."""
        self.store.call("RPUSH", "release", "now")

    def dead(self) -> list[Any]:
        """Return the payloads of the dead set, the oldest first."""
        return [ruby_json.decode(raw) for raw in self.store.call("ZRANGE", "dead", 0, -1)]

    def dead_args(self) -> list[Any]:
        """Return the first argument of each job in the dead set."""
        return [payload["args"][0] for payload in self.dead()]

    def remaining(self) -> dict[str, int]:
        """Return key → length of all keys that hold jobs: queues, wake lists, units in flight, sets, suspects."""
        length_of = {b"list": "LLEN", b"hash": "HLEN", b"zset": "ZCARD"}
        keys = [key.decode() for key in self.store.call("KEYS", "*")]  # in one call, because units move between keys
        held = [key for key in sorted(keys) if key in JOB_KEYS or key.startswith(JOB_KEY_PREFIXES)]
        return {key: self.store.call(length_of.get(self.store.call("TYPE", key), "EXISTS"), key) for key in held}

    # worker processes

    def members(self) -> set[str]:
        """Return the identities of the processes that may reserve units."""
        return {name.decode() for name in self.store.call("HKEYS", "kiq:members")}

    def holders(self) -> set[str]:
        """Return the identities of the processes that hold units."""
        inflight, hands = self.store.pipeline([("KEYS", "kiq:inflight:*"), ("KEYS", "kiq:hand:*")])
        names = {key.decode().removeprefix("kiq:inflight:") for key in inflight}
        return names | {found[1] for key in hands if (found := HAND_LIST.match(key.decode()))}

    def held(self, identity: str) -> list[bytes]:
        """Return the payloads of the units that a process holds."""
        (hands,) = self.store.pipeline([("KEYS", f"kiq:hand:{identity}:*")])
        lists = self.store.pipeline([("HVALS", f"kiq:inflight:{identity}"), *(("LRANGE", key, 0, -1) for key in hands)])
        return [payload for each in lists for payload in each]

    def wait_settled(self) -> None:
        """Wait until no process holds a unit."""
        wait_until(lambda: not self.holders(), "every unit to be settled")

    def wait_members(self, *pids: int) -> None:
        """Wait until exactly these processes are members, and no other process holds units."""

        def are_alone() -> bool:
            members = self.members()
            return {pid_of(name) for name in members} == set(pids) and self.holders() <= members

        wait_until(are_alone, f"kiq:members and kiq:inflight to name only the processes {pids}")

    def ask_for_beats(self) -> None:
        """Have each member publish its running jobs now, not at its next beat, which is up to 10 s away."""
        for identity in self.members():
            self.store.call("LPUSH", f"{identity}-signals", "TTIN")

    # supervisors

    def cluster_documents(self) -> list[Mapping[str, Any]]:
        """Return the documents in which supervisors publish their state, one for each of their processes."""
        return [
            process.cluster for process in process_registry.list_processes(self.store) if process.cluster is not None
        ]

    def wait_document(self, what: str, condition: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
        """Wait until a cluster document meets a condition, and return it."""
        found = wait_until(lambda: [each for each in self.cluster_documents() if condition(each)], what)
        return found[0]

    def wait_roll(self, state: str) -> Mapping[str, Any]:
        """Wait until the latest rolling restart shows as rolling, done or failed, and return its report."""
        document = self.wait_document(f"a roll to be {state}", lambda each: (each["roll"] or {}).get("state") == state)
        report: Mapping[str, Any] = document["roll"]
        return report


class Stage(Jobs):
    """Jobs on an empty Redis server, and the clusters of a test.  folder: the test's own."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        super().__init__(redis.store())
        self.redis = redis
        self.folder = folder
        self._clusters: list[Cluster] = []

    def run_cluster(
        self, *arguments: str, app: str = "tests.apps.basic", through: Sequence[str] = (), **environ: str
    ) -> Cluster:
        """Start a cluster on this Redis: `stage.run_cluster("default", "-c", "2")`; it ends with the test.

        through: a program that runs the command.
        """
        require = ["-r", app] if app else []
        has_redis = any(word.startswith(("--redis", "--embedded")) for word in arguments)
        redis = [] if has_redis else ["--redis", self.redis.url]
        cluster = Cluster([*require, *redis, *arguments], environ, through=through)
        self._clusters.append(cluster)
        return cluster

    def occupy(self, cluster: Cluster, slots: int = 1) -> dict[int, int]:
        """Have slot 0 run the job a until `release`; return slot → pid once that many slots are ready."""
        self.push("stubborn", "a")
        self.wait_noted("began a")
        return cluster.wait_ready(slots)

    def write_application(self, source: str) -> str:
        """Write an application of the test's own, and return the argument of -r.

        It imports one job, because kiqcluster refuses an application without jobs.
        """
        path = self.folder / "application.py"
        path.write_text(f"from tests.apps.basic import record\n{dedent(source)}")
        return str(path)

    def miscount(self) -> str:
        """Return what is wrong with the number of the jobs that were pushed here; "" if all are accounted for.

        Asked after a failure.  A job is accounted for if Redis has it, or if a log says once that it is done.
        """
        ends = self._ends()
        try:
            stored = self._everything()
        except StoreError as error:
            return f"Redis cannot say which jobs it has: {error}"
        twice = [jid for jid, count in ends.items() if count > 1]
        lost = [jid for jid in self.pushed if jid not in ends and jid.encode() not in stored]
        said = [f"{name}: {', '.join(jids)}" for name, jids in (("lost", lost), ("done twice", twice)) if jids]
        return "; ".join(said)

    def _ends(self) -> Counter[str]:
        """Return jid → how often a log says that the job is done."""
        events = [event for cluster in self._clusters for name in ENDS for event in cluster.seen(name)]
        return Counter(event["ctx"]["jid"] for event in events)

    def _everything(self) -> bytes:
        """Return all that the lists, sets and hashes in Redis hold, for a search."""
        keys = self.store.call("KEYS", "*")
        kinds = self.store.pipeline([("TYPE", key) for key in keys])
        reads = [READS[kind] for kind in kinds if kind in READS]
        found = [key for key, kind in zip(keys, kinds, strict=True) if kind in READS]
        replies = self.store.pipeline([(name, key, *rest) for key, (name, *rest) in zip(found, reads, strict=True)])
        return b"\n".join(value for reply in replies for value in reply)

    def close(self) -> None:
        """Kill the clusters that still run."""
        for cluster in self._clusters:
            cluster.close()
        self.store.close()


def pid_of(identity: str) -> int:
    """Return the pid that is part of an identity."""
    return int(identity.rsplit(":", 2)[1])
