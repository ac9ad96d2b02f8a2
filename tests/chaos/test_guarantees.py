"""All guarantees (docs/concepts/limits.md) at once: two shards, while processes are killed and stand still, Redis is
killed, strikes come, limits change and a part is paused.

Every job ends, or lies where its option puts it; no law of tests/chaos/guarantee_laws.py breaks; nothing is held at the
end.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import pytest

import tests.apps.guarantees as app
from kiqcluster.api import LockSet, StrikeSet, concurrency_limits, end_override, override_limit
from kiqcluster.features.strikes import Strike
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.store import Store
from kiqcluster.store.shards import parse_shards
from tests.chaos import guarantee_laws as laws
from tests.chaos.guarantee_load import LETTERS, SECRET, Load
from tests.chaos.ledger import Entry
from tests.chaos.places import Place, jobs_in, twice
from tests.chaos.runs import Runs
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, RedisServer, freeze, wait_until
from tests.stage import pid_of

ROUNDS = sized(1, 10)  # each with all faults
PUSHES = sized(40, 120)  # before each fault
BURST = 30  # of starts over their rate, in each round
PIECES = 8  # of work in each round, for the job of limited capacity
LONG_MS = 400  # of a job that still runs when its page is pushed again
MAX_PAUSE_SECONDS = 0.004  # between pushes
SHORT_FREEZE_SECONDS = 0.3  # much less than after what others recover a process
# health.silence_timeout is off: a supervisor kills what is frozen.  A busy machine starves a worker for two seconds.
RECOVER_AFTER_SECONDS = 4.0
OUTAGE_SECONDS = 1.2 * RECOVER_AFTER_SECONDS
OVERRIDE_SECONDS = 1.0
THREADS = 4  # of each of four workers
MAX_PLAIN_BYTES = 1_000
KEYS = f"1:{base64.b64encode(b'k' * 32).decode()}"  # of encrypted arguments
RULES = [["tags=far", "reports", "eu"], ["urgency=high", "urgent"], ["*", ""]]
CONFIGURATION = f"""
routing = {json.dumps(RULES)}
strict_routing = true

[shards.eu]
redis = "{{eu}}"

[[groups]]
queues = "urgent,default"

[[groups]]
queues = "urgent,default"

[[groups]]
queues = "reports"
shard = "eu"

[[groups]]
queues = "reports"
shard = "eu"
"""
ENVIRON = {
    "KIQ_SIZE_LIMITER_MODE": "compress",
    "KIQ_SIZE_LIMITER_COMPRESSION_THRESHOLD": f"{MAX_PLAIN_BYTES}B",
    "KIQ_ENCRYPTION_KEYS": KEYS,
    "KIQ_LOG_JOBS": "full",
    "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.5",
    "KIQ_HEALTH_RESPAWN_BURST": "100000",
    "KIQ_HEALTH_RECOVER_AFTER": str(RECOVER_AFTER_SECONDS),
    "KIQ_HEALTH_SILENCE_TIMEOUT": "0",
    "KIQ_MAX_RETRIES_AFTER_INTERRUPTION": "50",  # the class that kills its process has its own
}
JOB_STATES = {"start", "done", "fail", "deferred", "dropped", "concurrency_limit"}
REASONS = {"expiry", "version", "strike", "policy", "rate_limit"}  # for which jobs are skipped


@pytest.fixture
def eu() -> Iterator[RedisServer]:
    with RedisServer(durable=True) as server:
        yield server


@dataclass
class Fleet:
    """The cluster with its two Redis servers, what was pushed, and what was done to it.

    paused: spans in which Sweep's limit was negative.  threads: the most that the default shard has told of.
    excess: equal jobs that waited beside one another, at most.
    """

    stage: ChaosStage
    eu: RedisServer
    cluster: Cluster
    load: Load
    runs: Runs
    stores: tuple[Store, Store]
    paused: list[tuple[float, float]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    threads: int = 0
    excess: int = 0

    def push_some(self) -> None:
        """Push jobs of all kinds, then look where all jobs are."""
        for _ in range(PUSHES):
            self.load.push_any()
            PAUSE.wait(self.stage.rng.uniform(0, MAX_PAUSE_SECONDS))
        self.look()

    def push_burst(self, number: int) -> None:
        """Push more starts than rates allow, one job of each kind that costs a process, and work in files."""
        self.push_while_it_runs(f"page of round {number}")
        for name in ("Sync", "Count", "Call"):
            for each in range(BURST):
                self.load.push(name, f"{number} {each}")
        for name in ("Hang", "Poison", "Slow"):
            self.load.push(name, f"{name} {number}")
        for each in range(PIECES):
            (self.stage.folder / app.WORK / f"{number} {each}").touch()
        self.start_cleaning()

    def push_while_it_runs(self, page: str) -> None:
        """Push a page, and again while its job runs: it has to run once more."""
        self.load.push("Refresh", page, LONG_MS)
        wait_until(lambda: any(run.subject == page for run in self.runs.all()), "the page to begin")
        self.load.push("Refresh", page, LONG_MS)

    def start_cleaning(self) -> None:
        with using_setup(self.load.setup):
            app.CleanUp.perform_with_capacity()

    def look(self) -> None:
        """Assert that each job is in one place now, or has ended, and that no equal jobs exist that may not."""
        for store in self.stores:
            places = jobs_in(store)
            begun = self.stage.ledger.begun().keys()  # after that moment: a job that has begun meanwhile is excused
            pages, excess = laws.twice_existing(places, begun)
            assert (twice(places), pages) == ({}, [])
            self.excess = max(self.excess, excess)
        everywhere = {place.jid for store in self.stores for place in jobs_in(store)}
        missing = self.load.jobs.keys() - everywhere - self.stage.ledger.ended().keys()
        assert {jid: self.load.jobs[jid] for jid in missing} == {}
        names = self.stage.store.call("SMEMBERS", "processes")
        told = self.stage.store.pipeline([("HGET", name, "info") for name in names])
        self.threads = max(self.threads, sum(json.loads(each)["concurrency"] for each in told if each))

    # faults

    def kill(self, slot: int) -> None:
        """Kill a worker, and wait for the next one."""
        pid = self.signal(slot, signal.SIGKILL)
        self.stage.ledger.died(pid)
        self.faults["kills"] += 1
        wait_until(lambda: self.cluster.pids().get(slot, pid) != pid, "the next process")

    def signal(self, slot: int, number: signal.Signals) -> int:
        """Send a signal to the process of a slot, or to the next one where it is being replaced; return its pid."""

        def send() -> int:
            pid = self.cluster.pids()[slot]
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                return pid
            return 0

        return wait_until(send, "a process in the slot")

    def stop_for_long(self, slot: int) -> None:
        """Freeze a worker until others have recovered it, while they go on, and let it wake."""
        store = self.stores[slot // 2]
        at, pid = time.monotonic(), self.signal(slot, signal.SIGSTOP)
        with suppress(ProcessLookupError, FileNotFoundError):  # a job has killed it
            freeze(pid)  # and wait until all of its threads have stopped
        identities = [name.decode() for name in store.call("HKEYS", "kiq:members") if pid_of(name.decode()) == pid]
        self.runs.frozen |= dict.fromkeys(identities, at)
        self.push_some()
        wait_until(
            lambda: not set(identities) & {n.decode() for n in store.call("HKEYS", "kiq:members")}, "its recovery"
        )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.faults["freezes"] += 1

    def stop_shortly(self, slot: int) -> None:
        pid = self.signal(slot, signal.SIGSTOP)
        PAUSE.wait(SHORT_FREEZE_SECONDS)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.faults["short freezes"] += 1

    def restart(self, server: RedisServer, seconds: float) -> None:
        """Kill a Redis, and start it again with what it has on disk."""
        server.kill()
        PAUSE.wait(seconds)
        server.start()
        self.faults["restarts"] += 1

    def pause_sweeps(self) -> None:
        (self.stage.folder / app.PAUSED).touch()
        began = time.monotonic()
        self.push_some()
        self.paused.append((began, time.monotonic()))
        (self.stage.folder / app.PAUSED).unlink()
        self.load.push("Sweep", "after the pause")  # its begin sends on those that wait

    def override(self) -> None:
        """Have another limit for a while, and end one before its time."""
        override_limit("Export", 1, OVERRIDE_SECONDS, store=self.stage.store)
        self.push_some()
        end_override("Export", store=self.stage.store)
        override_limit("Refresh", 1, OVERRIDE_SECONDS, store=self.stage.store)


def faults_of(fleet: Fleet, number: int) -> list[Callable[[], None]]:
    """Return what happens in a round."""
    rng, slot = fleet.stage.rng, number % 2
    server = (fleet.stage.redis, fleet.eu)[slot]
    faults = [
        lambda: fleet.kill(slot),
        lambda: fleet.stop_for_long(slot),
        lambda: fleet.restart(server, rng.uniform(0, 0.3)),
        fleet.pause_sweeps,
    ]
    if ROUNDS > 1:
        faults += [
            lambda: fleet.kill(2 + slot),
            lambda: fleet.stop_for_long(2 + slot),
            lambda: fleet.stop_shortly(rng.randrange(4)),
            lambda: fleet.restart(server, OUTAGE_SECONDS),
            fleet.override,
        ]
    return faults


def strike(stage: ChaosStage) -> tuple[Strike, Strike]:
    """Have jobs of one customer dropped, and those of another put off, before any worker runs."""
    strikes = StrikeSet(store=stage.store)
    return (
        strikes.add("drop", 3_600, name="Mail", arguments={"customer": "struck"}),
        strikes.add("defer", 3_600, name="Mail", arguments={"customer": "put off"}, delay=0.5),
    )


def counts(stage: ChaosStage) -> dict[str, int]:
    """Return id → how many jobs each strike has been about."""
    return {each.id: count for each, count in StrikeSet(store=stage.store).list()}


def is_over(fleet: Fleet) -> bool:
    """Return whether no job waits anywhere, but for those of a newer release, and no place is taken."""
    for store in fleet.stores:
        for place in jobs_in(store):
            if place.key not in laws.ENDS and place.payload.get("deferred_by") != "version":
                return False
        if any(each.holders or each.parked for each in concurrency_limits(store=store)):
            return False
    return not any((fleet.stage.folder / app.WORK).iterdir())


def wait_over(fleet: Fleet) -> None:
    def look() -> bool:
        fleet.start_cleaning()  # as a cron job would: a failed one does not go on
        return is_over(fleet)

    wait_until(look, "all jobs to end", sized(60, 600))


@pytest.mark.durable_redis
@pytest.mark.timeout(sized(180, 3_600))
def test_all_guarantees_hold_together(stage: ChaosStage, eu: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.folder / app.WORK).mkdir()
    configuration = stage.folder / "kiq.toml"
    configuration.write_text(CONFIGURATION.format(eu=eu.url))
    dropping, deferring = strike(stage)
    config = Config(
        routing=parse_rules(RULES), shards=parse_shards({"eu": eu.url}), strict_routing=True, encryption_keys=KEYS,
        size_limiter_mode="compress", size_limiter_compression_threshold=MAX_PLAIN_BYTES,
    )  # fmt: skip
    monkeypatch.setenv("CHAOS_LEDGER", str(stage.ledger.path))
    cluster = stage.run_cluster("-C", str(configuration), "-c", str(THREADS), app="tests.apps.guarantees", **ENVIRON)
    cluster.wait_ready(4)
    load = Load(Setup(store=stage.store, config=config), stage.rng)
    fleet = Fleet(stage, eu, cluster, load, Runs(stage.ledger.path), (stage.store, eu.store()))
    began_at = time.monotonic()

    for number in range(ROUNDS):
        fleet.push_burst(number)
        for fault in faults_of(fleet, number):
            fleet.push_some()
            fault()
    fleet.load.push_skipped()
    fleet.push_some()
    put_off = counts(stage)[deferring.id]
    struck_until = time.monotonic()
    StrikeSet(store=stage.store).remove(deferring.id)
    stage.ask_for_beats()
    wait_over(fleet)
    seconds = time.monotonic() - began_at

    check(fleet, struck_until, seconds)
    assert put_off > 0
    dropped = [each for each in jobs_in(stage.store) if each.payload.get("dropped_by") == f"strike:{dropping.id}"]
    assert counts(stage) == {dropping.id: len(dropped)}
    assert cluster.stop() == 0


def check(fleet: Fleet, struck_until: float, seconds: float) -> None:
    """Assert all laws, once all is over."""
    stage, load, runs = fleet.stage, fleet.load, fleet.runs.all()
    places = list(chain.from_iterable(map(jobs_in, fleet.stores)))
    ended, deaths = stage.ledger.ended(), {**deaths_of(fleet), **stage.ledger.deaths}
    taken_from = fleet.runs.frozen.keys() | {each["old"] for each in fleet.cluster.seen("worker_fenced")}
    recovered = {run.jid for run in runs if run.facts["identity"] in taken_from}
    ends: dict[str, list[Entry]] = defaultdict(list)
    for entry in stage.ledger.entries():
        if entry.word == "end":
            ends[entry.jid].append(entry)
    dropped = Counter(str(each.payload["dropped_by"]) for each in places if each.key == "kiq:dropped")
    awake = [run for run in runs if run.begin < fleet.runs.frozen.get(run.facts["identity"], float("inf"))]
    kept = Counter(each.key for each in places)
    stage.report({"seconds": round(seconds), **fleet.faults, "deaths": len(deaths), "pushes": load.count})
    stage.report({"jobs": len(load.jobs), "refused": load.refused, "runs": len(runs), "ended": len(ended), **kept})
    stage.report({"dropped by": dict(dropped), "excess": fleet.excess})
    unsettled = {jid for jid, each in ends.items() if any(entry.pid in deaths for entry in each)}
    assert laws.misplaced(load.jobs, places, ended.keys(), recovered | unsettled) == {}
    assert twice(places) == {}
    assert laws.crowds(fleet.runs, laws.allowed_at_once(fleet.threads)) == {}
    assert laws.exceeded_rates(awake) == []
    assert laws.vain_pushes(load, runs) == []
    assert laws.wrong_facts(load.jobs, runs) == []
    assert laws.wrong_starts(awake, fleet.paused, struck_until) == {}
    if unexplained := laws.unexplained(ends, deaths, recovered):
        pytest.fail("\n\n".join(f"ended twice: {each}\n{story(fleet, jid)}" for jid, each in unexplained.items()))
    assert fleet.excess <= THREADS * len(deaths)

    # what is given up, dropped or put off is told and counted
    assert {each["jid"] for each in fleet.runs.lines("exhausted")} == load.of("Poison").keys()
    buried = {each.jid: each.payload["interrupted_count"] for each in places if each.name == "Poison"}
    # More, if a process that had it only to bury it has died, or was recovered while it stood still.
    if early := {jid: count for jid, count in buried.items() if count < app.MAX_DEATHS}:
        pytest.fail("\n\n".join(f"buried after {count}\n{story(fleet, jid)}" for jid, count in early.items()))
    assert "RetryError" not in {each["error"] for each in fleet.runs.lines("told")}
    children = {run.subject for run in runs if run.name == "Child" and run.jid in ended}
    assert children >= {jid for jid in load.of("Report") if jid in ended}
    check_log(fleet, places, ends, deaths)
    check_redis(fleet)


def story(fleet: Fleet, jid: str) -> str:
    """Return in lines all that is known of a job: its push, its runs, each event of it or of a process that ran it."""
    runs = [run for run in fleet.runs.all() if run.jid == jid]
    pids, identities = {run.facts["pid"] for run in runs}, {run.facts["identity"] for run in runs}
    events = [
        each
        for each in fleet.cluster.events
        if jid in str(each) or each.get("child") in pids or {each.get("old"), each.get("identity")} & identities
    ]
    entries = [entry for entry in fleet.stage.ledger.entries() if entry.jid == jid]
    found = [fleet.load.jobs.get(jid), *runs, *entries, *sorted(events, key=lambda each: each["ts"])]
    return "\n".join(map(str, found))


def deaths_of(fleet: Fleet) -> dict[int, float]:
    """Return pid → when it died, of processes that a job has ended: by the last line that they have written."""
    last = {entry.pid: entry.at for entry in fleet.stage.ledger.entries()}
    return {each["child"]: last.get(each["child"], 0.0) for each in fleet.cluster.seen("child_died")}


def check_log(fleet: Fleet, places: list[Place], ends: dict[str, list[Entry]], deaths: dict[int, float]) -> None:
    """Assert that the log has a line for the end of each job, and /metrics each reason for which one was skipped."""
    events = fleet.cluster.events
    done = {each["ctx"]["jid"] for each in events if each["event"] == "job_done"}
    assert {jid for jid, each in ends.items() if all(entry.pid not in deaths for entry in each)} <= done
    assert {each.get("job_status") for each in events} >= JOB_STATES
    assert not [line for line in fleet.cluster.lines if SECRET in line]
    family = fleet.cluster.metric_families()["sidekiq_jobs_skipped_by_reason_total"]
    assert {sample.labels["reason"] for sample in family.samples if sample.value} >= REASONS


def check_redis(fleet: Fleet) -> None:
    """Assert that nothing is held, and that no secret and no long text was ever written."""
    for store, server, slots in zip(fleet.stores, (fleet.stage.redis, fleet.eu), ((0, 1), (2, 3)), strict=True):
        assert list(LockSet(store=store)) == []
        assert [key for name in ("held", "slots", "rate:*:running") for key in store.call("KEYS", f"kiq:{name}*")
                if store.call("TYPE", key) in (b"set", b"hash") or b":parked" in key] == []  # fmt: skip
        members = {pid_of(name.decode()) for name in store.call("HKEYS", "kiq:members")}
        assert members == {fleet.cluster.pids()[slot] for slot in slots}
        written = b"".join(path.read_bytes() for path in server.directory.rglob("*.aof"))
        assert len(written) > LETTERS
        assert SECRET.encode() not in written
        assert b"x" * LETTERS not in written
