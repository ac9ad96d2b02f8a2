"""Actions: the effect of a key of `top` on the selected row, described in words and run by the refresher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kiqcluster.api import Queue, SortedEntry
from kiqcluster.api.dashboard import View
from kiqcluster.api.processes import ProcessSet
from kiqcluster.api.queues import QueueSummary
from kiqcluster.control.control_messages import new_message
from kiqcluster.control.process_registry import Cluster, RegisteredProcess
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.transports import NoSuchProcess
from kiqcluster.ctl.text.rows import arguments
from kiqcluster.ctl.text.tables import ago, clean, number_column, table, text_column, truncate
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["KEYS_BY_VIEW", "Action", "action_for", "peek_queue"]


@dataclass(frozen=True, slots=True)
class Action:
    """what: description, as in `retry SendMail 3f2a…`.  run: does it, and returns the result.  Raises KiqError.

    is_read_only: it changes nothing, and returns lines to show.
    """

    what: str
    run: Callable[[], str]
    is_read_only: bool = False


MAX_JOBS_SHOWN = 25  # of a queue, at a look
JOBS = (number_column("ENQUEUED"), text_column("CLASS"), text_column("JID"), text_column("ARGS"))
KEYS_BY_VIEW: Mapping[View, str] = {
    View.QUEUES: "P",
    View.PROCESSES: "QC",
    View.BUSY: "",
    View.RETRIES: "RK",
    View.SCHEDULED: "RK",
    View.DEAD: "R",
}


def action_for(key: str, view: View, about: object, store: Store) -> Action | None:
    """Return what a key does to what is selected in a view, None for nothing.  Raises UsageError for what cannot be."""
    if key not in KEYS_BY_VIEW[view]:
        return None
    if isinstance(about, SortedEntry):
        return _entry_action(key, view, about)
    if isinstance(about, QueueSummary):
        return _queue_action(about, store)
    if isinstance(about, Cluster):
        transport = RedisTransport(store, supervisors=[about.supervisor])
        return _fleet_action(key, f"the cluster {about.supervisor}", transport)
    if isinstance(about, RegisteredProcess) and not about.is_ours:
        return _ruby_action(key, about.identity, store)
    if isinstance(about, RegisteredProcess):
        return _fleet_action(key, about.identity, RedisTransport(store, identity=about.identity))
    return None


def peek_queue(queue: QueueSummary, store: Store) -> Action:
    """Return the order to show the latest jobs of a queue."""

    def look() -> str:
        jobs, now = Queue(queue.name, store=store).page(0, MAX_JOBS_SHOWN), SystemClock.now()
        rows = [
            (ago(each.enqueued_at, now), each.display_class, each.jid, truncate(arguments(each), 200)) for each in jobs
        ]
        lines = table(JOBS, rows, indent=0) if rows else ["no job waits there"]
        return "\n".join([f"queue {clean(queue.name)}, the latest first", "", *lines])

    return Action(f"look into the queue {queue.name}", look, is_read_only=True)


def _entry_action(key: str, view: View, entry: SortedEntry) -> Action:
    name = f"{entry.display_class} {entry.jid}"
    if key == "K":
        return Action(f"kill {name}", partial(_moved, entry.kill, f"{name} moved to the dead set"))
    if view is View.SCHEDULED:
        return Action(f"run {name} now", partial(_moved, entry.add_to_queue, f"{name} moved to its queue"))
    return Action(f"retry {name}", partial(_moved, entry.retry, f"{name} moved to its queue"))


def _moved(move: Callable[[], bool], said: str) -> str:
    return said if move() else "somebody was faster: it is not there any more"


def _queue_action(queue: QueueSummary, store: Store) -> Action:
    def pause() -> str:
        Queue(queue.name, store=store).pause()
        return f"{queue.name} paused: nothing is fetched from it"

    def resume() -> str:
        Queue(queue.name, store=store).resume()
        return f"{queue.name} resumed"

    if queue.is_paused:
        return Action(f"resume the queue {queue.name}", resume)
    return Action(f"pause the queue {queue.name}", pause)


def _fleet_action(key: str, name: str, transport: RedisTransport) -> Action:
    action, said = ("quiet", "is quiet, or will be in a moment") if key == "Q" else ("resume", "fetches again")

    def send() -> str:
        problems = [each.error for each in transport.send(new_message(action)) if each.error]
        return f"{name}: {'; '.join(problems)}" if problems else f"{name} {said}"

    return Action(f"{action} {name}", send)


def _ruby_action(key: str, identity: str, store: Store) -> Action:
    if key == "C":
        raise UsageError(f"{identity} is a process of Ruby's Sidekiq, which has no signal that ends a quiet")

    def send() -> str:
        process = next((each for each in ProcessSet(store=store) if each.identity == identity), None)
        if process is None:
            raise NoSuchProcess(f"{identity} is gone")
        process.quiet()
        return f"{identity} will be quiet at its next beat, within ten seconds"

    return Action(f"quiet {identity}", send)
