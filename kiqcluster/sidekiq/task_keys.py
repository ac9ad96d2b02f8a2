"""Task keys: which task a job is part of, by its payload.

task_id          id of the task
use_task_event   true: the job has an event in that task, under its jid
"""

from __future__ import annotations

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import Jid, Payload

__all__ = ["TASK_ID", "USE_TASK_EVENT", "task_of"]

TASK_ID, USE_TASK_EVENT = "task_id", "use_task_event"


def task_of(payload: Payload) -> tuple[str, Jid] | None:
    """Return the id of the task in which the job has an event, and its jid; None for a job without one."""
    if payload.get(USE_TASK_EVENT) is not True:
        return None
    identifier, jid = payload.get(TASK_ID), payload.get("jid")
    if not (isinstance(identifier, str) and identifier and isinstance(jid, str) and jid):
        return None
    return (identifier, Jid(jid)) if ruby_json.is_unicode(identifier) and ruby_json.is_unicode(jid) else None
