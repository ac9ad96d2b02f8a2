"""Status: whether the cluster is ready, why it is not, and the document of /status.  Pure."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from kiqcluster.ipc.running_jobs import RunningJob
from kiqcluster.process.version import VERSION
from kiqcluster.store.shards import DEFAULT_SHARD
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot, away_shards, judged_slots
from kiqcluster.supervisor.cluster.state import ClusterState

__all__ = ["HIDDEN", "for_everybody", "status_document", "why_not_ready", "why_not_started"]

HIDDEN = "the log has it, and /status on the control socket"  # instead of the message of an exception


def why_not_ready(state: ClusterState, quorum: int | None) -> str | None:
    """Return why the cluster should get no traffic, None when it is ready.

    quorum: slots that must be ready, None for all.  Slots that wait for a shard that is away do not count.
    """
    if state.is_stopping:
        return "stopping"
    if not state.slots:
        return "the application is being imported"
    slots = judged_slots(state.slots)
    reasons = [reason for slot in slots if (reason := _why_slot_is_not(slot, is_quiet=bool(state.quiet)))]
    wanted = _wanted(slots, quorum)
    ready = len(slots) - len(reasons)
    if ready >= wanted:
        return None
    return reasons[0] if wanted == len(slots) else f"{ready} of {wanted} slots are ready: {reasons[0]}"


def why_not_started(slots: Sequence[Slot], quorum: int | None) -> str | None:
    """Return why the cluster still starts, None once enough slots have been ready at least once."""
    if not slots:
        return "the application is being imported"
    judged = judged_slots(slots)
    never = [slot for slot in judged if not slot.history.ever_ready]
    return _why_no_child_serves(never[0]) if len(judged) - len(never) < _wanted(judged, quorum) else None


def _wanted(slots: Sequence[Slot], quorum: int | None) -> int:
    return len(slots) if quorum is None else min(quorum, len(slots))


def _why_slot_is_not(slot: Slot, *, is_quiet: bool) -> str | None:
    child = slot.child
    if child is None or not child.is_ready:
        return _why_no_child_serves(slot)
    if child.quiet or is_quiet:
        return f"slot {slot.number} is quiet"
    if child.responses.is_unresponsive:
        return f"slot {slot.number} does not respond: a job may hold the interpreter"
    if not child.beat.redis:
        return f"slot {slot.number} cannot reach Redis"
    return None


def _why_no_child_serves(slot: Slot) -> str:
    waits_for = f": {slot.child.waits_for}" if slot.child is not None and slot.child.waits_for else ""
    return f"slot {slot.number} is in {slot.state}{waits_for}"


def status_document(state: ClusterState, supervisor: str, quorum: int | None, now: float) -> dict[str, Any]:
    """Return what /status answers.  supervisor: its name in Redis.  now: monotonic seconds."""
    reason, quiet = why_not_ready(state, quorum), state.quiet
    away = sorted(away_shards(state.slots))
    lease = quiet.remaining(now)
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "supervisor": supervisor,
        "started_at": state.started_epoch,
        "state": "stopping" if state.is_stopping else "starting" if why_not_started(state.slots, quorum) else "running",
        "ready": reason is None,
        "reason": reason,
        "quiet": {"by": quiet.by, "since": quiet.since_epoch, "lease_remaining": lease} if quiet else None,
        "generation": state.generation,
        "deploy": state.deploy,
        "roll": None if state.roll is None else state.roll.as_json(),
        "reload": None if state.reload is None else state.reload.as_json(),
        "restart_needed": state.restart_needed,
        "reload_needed": state.reload_needed,
        "roll_needed": state.roll_needed,
        "routing": state.routing,
        **({"shards_away": [name or DEFAULT_SHARD for name in away]} if away else {}),
        "slots": [_slot_document(slot, now) for slot in state.slots],
    }


def for_everybody(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without the messages of exceptions, where the application may have put secrets."""
    slots = [{**slot, "last_death": _without_error(slot["last_death"])} for slot in document["slots"]]
    return {**document, **{name: _without_error(document[name]) for name in ("roll", "reload")}, "slots": slots}


def _without_error(report: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return {**report, "error": HIDDEN} if report is not None and report["error"] else report


def _slot_document(slot: Slot, now: float) -> dict[str, Any]:
    plan = slot.plan
    return {
        "slot": slot.number,
        **_process_document(slot.child, now),
        "state": slot.state,
        "queues": dict(plan.weights),
        "mode": plan.mode,
        "concurrency": plan.concurrency,
        **({} if plan.selector is None else {"selector": plan.selector}),
        **({"shard": plan.group.shard} if plan.group.shard else {}),
        "backoff": 0.0 if slot.child else round(max(0.0, slot.history.not_before - now), 3),
        "restarts": dict(slot.restarts),
        "unplanned_restarts": slot.unplanned_restarts,
        "last_death": slot.last_death,
        "successor": None if slot.replacement is None else _process_document(slot.replacement, now),
        "leaving": [_process_document(child, now) for child in slot.leaving],
    }


def _job_document(job: RunningJob) -> dict[str, Any]:
    return {"jid": job.jid, "class": job.name, "since": job.since}


def _process_document(child: Child | None, now: float) -> dict[str, Any]:
    return {
        "state": child.state if child else None,
        "release": child.release if child else None,
        "generation": child.generation if child else None,
        "pid": child.pid if child else None,
        "identity": child.identities[-1] if child and child.identities else None,
        "busy": child.beat.busy if child else 0,
        "running": [_job_document(job) for job in child.running_jobs.jobs()] if child else [],
        "processed": child.beat.processed if child else 0,
        "prefetched": child.beat.prefetched if child else 0,
        "quiet": child.quiet if child else False,
        "redis": child.beat.redis if child else False,
        "rss": child.beat.rss if child else 0,
        "uptime": round(now - child.started_at, 3) if child else None,
        "last_beat_ago": round(now - child.beat.at, 3) if child else None,
        "waits_for": child.waits_for if child else "",
    }
