"""ProcessEntry: this process as Sidekiq's process registry shows it, in every spelling that 6.4, 7 and 8 read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import psutil

from kiqcluster.application.shared_names import digest_of
from kiqcluster.control.process_registry import CLUSTER_FIELD, SUPERVISOR_FIELD
from kiqcluster.errors import MalformedPayload
from kiqcluster.process.clock import Clock
from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import peek, wrap
from kiqcluster.sidekiq.queue_groups import Mode
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.store.wire import Command
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["MAX_SHOWN_BYTES", "MAX_SHOWN_QUEUES", "ProcessEntry", "Status", "withdrawal"]

MAX_SHOWN_BYTES = 100_000  # of a running job; a beat sends it twice every ten seconds
MAX_SHOWN_QUEUES = 1_000  # that a process names in Redis; those who look know how many it omits
COUNTDOWN_MEMBER = "lease_remaining"  # member of a cluster's state that changes by itself


def withdrawal(keys: Keys, identity: str) -> list[Command]:
    """Return the commands that take a process off Sidekiq's registry."""
    return [
        ("SREM", keys.processes, identity),
        ("UNLINK", keys.work(identity), keys.workers(identity), keys.process(identity)),
        ("ZREM", keys.beats, identity),
    ]


@dataclass(frozen=True, slots=True)
class Status:
    """Functions of the launcher that each beat calls.  running: returns runs by the ids of their threads.

    application: whose declarations it has.  names: what it declares under names that all applications share.
    cron: digest of the cron entries that it declares.  routing: digest of the routing rules, "" without any.
    shard: "" for the default one.  shards: digest of the map of shards, "" without any.
    """

    identity: Callable[[], str]
    running: Callable[[], Mapping[str, JobRun]]
    busy: Callable[[], int]
    is_quiet: Callable[[], bool]
    queues: Callable[[], tuple[dict[str, int], Mode]]
    concurrency: int
    tag: str
    application: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    cron: str = ""
    routing: str = ""
    shard: str = ""
    shards: str = ""


class ProcessEntry:
    """rtt_us: microseconds that the latest publication took.  stacks: to be published, by the identity of a process."""

    def __init__(self, status: Status, clock: Clock) -> None:
        self.rtt_us = 0
        self.stacks: dict[str, bytes] = {}
        self._status = status
        self._declared = digest_of(status.names)
        self._clock = clock
        self._started_at = clock.now()
        self._process = psutil.Process()
        self._rss = 0  # kilobytes, at the last beat
        self._cluster: tuple[Mapping[str, Any], float] | None = None  # its state, and when it came, monotonic seconds

    def set_cluster(self, state: Mapping[str, Any]) -> bool:
        """Take over the supervisor's state; return whether it has changed.  From any thread."""
        before, self._cluster = self._cluster, (state, self._clock.monotonic())
        return before is None or {**before[0], COUNTDOWN_MEMBER: None} != {**state, COUNTDOWN_MEMBER: None}

    def work(self, run: JobRun) -> bytes:
        """Return a running job so that no busy page breaks on it, whatever is in its payload."""
        unit = run.unit
        raw = unit.payload
        if len(raw) > MAX_SHOWN_BYTES:
            name, jid = peek(raw)
            raw = ruby_json.encode({"class": name, "jid": jid, "args": [f"({len(raw)} bytes, not shown)"]})
        try:
            payload = entry_for_ruby(raw, {}, unit.queue)
        except MalformedPayload as error:
            payload = wrap(raw, unit.queue, error, run.since)
        return ruby_json.encode({"queue": unit.queue, "payload": payload.decode(), "run_at": int(run.since)})

    def describe(self, identity: str) -> bytes:
        """Return the field `info`, each member of which is read by some version of Sidekiq (reference §2.5).

        `application`, `declared`, `cron`, `omitted_queues`, `routing`, `shard` and `shards` are ours: whose
        declarations it has; the digests of those under shared names, and of its cron entries; how many queues it does
        not name; the digest of its routing rules; the name of its shard, where that is not the default one; the digest
        of its map of shards.
        """
        all_weights, mode = self._status.queues()
        weights = dict(islice(all_weights.items(), MAX_SHOWN_QUEUES))
        omitted = len(all_weights) - len(weights)
        concurrency = self._status.concurrency
        shown = dict.fromkeys(weights, 0) if mode == "strict" else weights
        info = {
            "hostname": os.environ.get("DYNO") or socket.gethostname(),
            "started_at": self._started_at,
            "pid": os.getpid(),
            "tag": self._status.tag,
            "concurrency": concurrency,
            "queues": list(weights),
            "weights": [shown],
            "labels": ["kiqcluster"],
            "identity": identity,
            "version": VERSION,
            "embedded": False,
            "capsules": {"default": {"concurrency": concurrency, "mode": mode, "weights": shown}},
            **({"application": self._status.application} if self._status.application else {}),
            **({"declared": self._declared} if self._declared else {}),
            **({"cron": self._status.cron} if self._status.cron else {}),
            **({"omitted_queues": omitted} if omitted else {}),
            **({"routing": self._status.routing} if self._status.routing else {}),
            **({"shard": self._status.shard} if self._status.shard else {}),
            **({"shards": self._status.shards} if self._status.shards else {}),
        }
        return ruby_json.encode(info)

    def fields(self) -> list[str | bytes | int]:
        """Return the other fields of `<identity>`."""
        return [
            *("concurrency", self._status.concurrency),
            *("busy", self._status.busy()),
            *("beat", repr(self._clock.now())),
            *("quiet", "true" if self._status.is_quiet() else "false"),
            *("rss", self._resident_kilobytes()),
            *("rtt_us", self.rtt_us),
            *self._cluster_fields(),
        ]

    def _resident_kilobytes(self) -> int:
        """Return the memory that this process uses; what it used at an earlier beat where no descriptor is left."""
        with suppress(OSError):
            self._rss = self._process.memory_info().rss // 1024
        return self._rss

    def _cluster_fields(self) -> tuple[str | bytes, ...]:
        if self._cluster is None:
            return ()
        state, told_at = self._cluster
        if (left := state.get(COUNTDOWN_MEMBER)) is not None:
            state = {**state, COUNTDOWN_MEMBER: max(0.0, left - (self._clock.monotonic() - told_at))}
        news = f"{state.get('at', 0.0)!r} {state.get('supervisor', '')}"
        return CLUSTER_FIELD, ruby_json.encode(state), SUPERVISOR_FIELD, news
