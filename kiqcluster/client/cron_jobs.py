"""Cron jobs: what a cron entry enqueues.

resolved   an entry with the queue, the shard and the payload keys that its jobs get
prepared   the job of a tick: pushed by the script that also moves the entry to its next tick

A process that does not know the class of an entry can enqueue its jobs as well: the entry has queue and options.
"""

from __future__ import annotations

from dataclasses import replace

from kiqcluster.application.definitions import cron_queue
from kiqcluster.application.options import merged
from kiqcluster.application.registry import Definition
from kiqcluster.client.draft import Draft
from kiqcluster.client.preparation import prepare
from kiqcluster.client.router import route_of
from kiqcluster.process.context.application_context import application_context
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.cron_entries import CRON, CRON_AT, CronEntry, CronRun, Step
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Jid, new_jid
from kiqcluster.store import Store
from kiqcluster.store.cron import HISTORY_SIZE

__all__ = ["prepared", "resolved"]

NO_RETRIES = 0  # a job that comes again at its next tick goes to the dead set at its first failure


def resolved(setup: Setup, definition: Definition | None, entry: CronEntry) -> tuple[CronEntry, str]:
    """Return the entry with the queue and payload keys of its jobs, and the name of its shard, "" for the default one.

    definition: of its class, None for one that is not defined here, whose entry names its queue.
    """
    if definition is None:
        return replace(entry, options={"retry": NO_RETRIES, **entry.options}), ""
    route = route_of(setup, definition)
    is_declared = definition.declares_queue or route.is_by_rule
    queue = entry.queue or cron_queue(definition.name, route.queue, is_declared=is_declared)
    options = {key: value for key, value in definition.options.items() if key != "queue"}
    if definition.declared.isdisjoint({"retry", "retry_for"}):
        options["retry"] = NO_RETRIES
    return replace(entry, queue=queue, options=merged(options, entry.options)), route.shard


def prepared(
    setup: Setup, store: Store, definition: Definition | None, entry: CronEntry, step: Step, now: float
) -> Ready | None:
    """Return the job of a step that has one, with the rows of push.lua; None if client middleware stopped it.

    Raises what the checks of a push raise, and what client middleware raises.
    """
    jid, at = Jid(new_jid()), step.awaited if step.at is None else step.at
    options = {**entry.options, "queue": entry.queue, CRON: entry.name, CRON_AT: int(at)}
    with application_context(caller_id=f"{CRON}/{entry.name}"):
        ready = prepare(setup, Draft(entry.job, options, list(entry.args), definition, jid=jid, store=store))
    if ready is None:
        return None
    keys = store.keys
    tick = Effect("tick", keys.cron_ticks, (entry.id, repr(step.awaited), repr(float(step.following))))
    run = CronRun(ready.jid, at, now)
    log = Effect("log", keys.cron_history(entry.id), (run.encoded(), HISTORY_SIZE))
    return ready._replace(rows=(tick, *ready.rows, log))
