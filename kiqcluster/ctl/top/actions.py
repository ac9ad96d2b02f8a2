"""Deeds: what a key of `top` does to what is selected, in words and as an order for the looker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kiqcluster.api import Queue, SortedEntry
from kiqcluster.api.dashboard import View
from kiqcluster.api.processes import ProcessSet
from kiqcluster.api.queues import QueueSummary
from kiqcluster.clock import SystemClock
from kiqcluster.control.process_registry import Cluster, RegisteredProcess
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.transports import NoSuchProcess
from kiqcluster.ctl.fleet.steer import message
from kiqcluster.ctl.text.rows import arguments
from kiqcluster.ctl.text.tables import ago, clean, cut, left, right, table
from kiqcluster.errors import UsageError
from kiqcluster.store import Store

__all__ = ["KEYS", "Deed", "deed_of", "look_into"]


@dataclass(frozen=True, slots=True)
class Deed:
    """what: in words, as in `retry SendMail 3f2a…`.  run: does it, and returns how it went.  Raises KiqError.

    is_look: it changes nothing, and returns lines to be read.
    """

    what: str
    run: Callable[[], str]
    is_look: bool = False


MOST_JOBS = 25  # of a queue, at a look
JOBS = (right("ENQUEUED"), left("CLASS"), left("JID"), left("ARGS"))
KEYS: Mapping[View, str] = {
    View.QUEUES: "P",
    View.PROCESSES: "QC",
    View.BUSY: "",
    View.RETRIES: "RK",
    View.SCHEDULED: "RK",
    View.DEAD: "R",
}


def deed_of(key: str, view: View, about: object, store: Store) -> Deed | None:
    """Return what a key does to what is selected in a view, None for nothing.  Raises UsageError for what cannot be."""
    if key not in KEYS[view]:
        return None
    if isinstance(about, SortedEntry):
        return _to_entry(key, view, about)
    if isinstance(about, QueueSummary):
        return _to_queue(about, store)
    if isinstance(about, Cluster):
        transport = RedisTransport(store, supervisors=[about.supervisor])
        return _to_fleet(key, f"the cluster {about.supervisor}", transport)
    if isinstance(about, RegisteredProcess) and not about.is_ours:
        return _to_ruby(key, about.identity, store)
    if isinstance(about, RegisteredProcess):
        return _to_fleet(key, about.identity, RedisTransport(store, identity=about.identity))
    return None


def look_into(queue: QueueSummary, store: Store) -> Deed:
    """Return the order to show the latest jobs of a queue."""

    def look() -> str:
        jobs, now = Queue(queue.name, store=store).page(0, MOST_JOBS), SystemClock.now()
        rows = [(ago(each.enqueued_at, now), each.display_class, each.jid, cut(arguments(each), 200)) for each in jobs]
        lines = table(JOBS, rows, indent=0) if rows else ["no job waits there"]
        return "\n".join([f"queue {clean(queue.name)}, the latest first", "", *lines])

    return Deed(f"look into the queue {queue.name}", look, is_look=True)


def _to_entry(key: str, view: View, entry: SortedEntry) -> Deed:
    name = f"{entry.display_class} {entry.jid}"
    if key == "K":
        return Deed(f"kill {name}", partial(_moved, entry.kill, f"{name} moved to the dead set"))
    if view is View.SCHEDULED:
        return Deed(f"run {name} now", partial(_moved, entry.add_to_queue, f"{name} moved to its queue"))
    return Deed(f"retry {name}", partial(_moved, entry.retry, f"{name} moved to its queue"))


def _moved(move: Callable[[], bool], said: str) -> str:
    return said if move() else "somebody was faster: it is not there any more"


def _to_queue(queue: QueueSummary, store: Store) -> Deed:
    def pause() -> str:
        Queue(queue.name, store=store).pause()
        return f"{queue.name} paused: nothing is fetched from it"

    def resume() -> str:
        Queue(queue.name, store=store).resume()
        return f"{queue.name} resumed"

    if queue.is_paused:
        return Deed(f"resume the queue {queue.name}", resume)
    return Deed(f"pause the queue {queue.name}", pause)


def _to_fleet(key: str, name: str, transport: RedisTransport) -> Deed:
    action, said = ("quiet", "is quiet, or will be in a moment") if key == "Q" else ("resume", "fetches again")

    def send() -> str:
        problems = [each.error for each in transport.send(message(action)) if each.error]
        return f"{name}: {'; '.join(problems)}" if problems else f"{name} {said}"

    return Deed(f"{action} {name}", send)


def _to_ruby(key: str, identity: str, store: Store) -> Deed:
    if key == "C":
        raise UsageError(f"{identity} is a process of Ruby's Sidekiq, which has no signal that ends a quiet")

    def send() -> str:
        process = next((each for each in ProcessSet(store=store) if each.identity == identity), None)
        if process is None:
            raise NoSuchProcess(f"{identity} is gone")
        process.quiet()
        return f"{identity} will be quiet at its next beat, within ten seconds"

    return Deed(f"quiet {identity}", send)
