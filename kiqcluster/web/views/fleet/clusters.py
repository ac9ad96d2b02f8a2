"""Clusters: supervisors with their slots and processes, lone processes, Ruby's; orders to them; the deploy under way.

/clusters                 a card for each cluster; processes without a supervisor; the deploy lock, and deploy marks
/clusters/<cluster>       all processes of one, the last roll and reload, the stacks of threads
/processes/<process>      one process: what it runs, its queues, the stacks of its threads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from kiqcluster.api.deploys import marks
from kiqcluster.api.processes import RUBY_ACTIONS, Work, read_work, with_progress
from kiqcluster.api.processes import read_commands as work_commands
from kiqcluster.control.cluster_document import (
    NO_REDIS,
    SERVES,
    ClusterStatus,
    ProcessStatus,
    WorkerStatus,
    shown_processes,
    shown_state,
    status_from_redis,
    worker_status,
)
from kiqcluster.control.deploy_lock import DeployLock, LockState
from kiqcluster.control.process_registry import (
    RegisteredProcess,
    group_by_cluster,
    list_processes,
    natural_sort_key,
    read_commands,
    read_count,
    read_number,
    read_processes,
)
from kiqcluster.control.slot_state import SlotState
from kiqcluster.control.stacks import read_stacks
from kiqcluster.store.replies import note
from kiqcluster.store.wire import WrongType
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.views.fleet.orders import (
    CLUSTER_ORDERS,
    LEASES,
    PROCESS_ORDERS,
    Order,
    Outcome,
    to_cluster,
    to_process,
)
from kiqcluster.web.views.fleet.threads import shown_stacks

__all__ = ["ACTIONS", "PAGES", "REQUESTED_BY_DEPLOY"]

CLUSTERS_PER_PAGE = 20
ROWS_OF_A_CARD, ROWS_PER_PAGE = 16, 100  # processes: in the list of clusters; on the page of one
LONE_PER_PAGE = 100
STACKS_PER_PAGE = 12
MARK_DAYS, MAX_MARKS = 14, 12
MAX_QUEUES = 60  # of a process
REQUESTED_BY_DEPLOY = "deploy@"  # before the owner of a deploy, where an order came from one
STATES = {  # state → message, kind of badge
    SERVES: (message("serves"), "good"),
    SlotState.READY: (message("serves"), "good"),
    SlotState.QUIET: (message("quiet"), "warn"),
    SlotState.BOOTING: (message("boots"), ""),
    SlotState.STOPPING: (message("stops"), ""),
    SlotState.BACKOFF: (message("waits"), "bad"),
    SlotState.UNRESPONSIVE: (message("does not respond"), "bad"),
    NO_REDIS: (message("no Redis"), "bad"),
}

NEEDS = {"restart": message("restart needed"), "reload": message("reload needed"), "roll": message("roll needed")}


@dataclass(frozen=True, slots=True)
class Row:
    """A process, or a slot without one.  state: a message; kind: of its badge."""

    process: ProcessStatus | None
    worker: WorkerStatus | None
    state: str
    kind: str

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else self.worker.pid if self.worker is not None else None

    @property
    def is_troubled(self) -> bool:
        return self.kind == "bad"


@dataclass(frozen=True, slots=True)
class Report:
    """The latest roll or reload, as a supervisor tells it; anybody may write there.  error: its first line."""

    state: str
    done: int
    of: int
    error: str
    full_error: str
    ended_at: float | None

    @classmethod
    def read(cls, told: Mapping[str, Any] | None) -> Report | None:
        if told is None:
            return None
        error = str(told.get("error") or "").strip()
        done, of = (read_count(told.get(name)) for name in ("done", "of"))
        ended_at = read_number(told.get("ended_at")) or None
        return cls(str(told.get("state") or ""), done, of, error.partition("\n")[0], error, ended_at)

    @property
    def percent(self) -> int:
        return max(0, min(100, 100 * self.done // self.of)) if self.of > 0 else 0


@dataclass(frozen=True, slots=True)
class Card:
    """A cluster as it is shown.  rows: those that are shown, of `count`."""

    status: ClusterStatus
    rows: Sequence[Row]
    count: int
    troubled: int
    has_releases: bool
    has_shards: bool
    roll: Report | None
    reload: Report | None

    @property
    def needs(self) -> list[tuple[str, str]]:
        """What it waits for somebody to do, as (message, why)."""
        return [(NEEDS[what], why) for what, why in self.status.needs]


# the list


def show_clusters(context: Context) -> Mapping[str, Any]:
    """Show them.  Five round trips, one more per 500 processes and per 500 clusters."""
    processes = list_processes(context.store)
    text = context.request.args.get("q", "").strip()
    statuses = [status_from_redis(each) for each in group_by_cluster(processes)]
    lone = [each for each in processes if each.supervisor is None]
    found = sorted(
        (each for each in statuses if _is_meant(text, each.name)), key=lambda each: natural_sort_key(each.name)
    )
    alone = sorted(
        (each for each in lone if _is_meant(text, each.identity)), key=lambda each: natural_sort_key(each.identity)
    )
    pages = max(1, -(-len(found) // CLUSTERS_PER_PAGE), -(-len(alone) // LONE_PER_PAGE))
    page = min(context.number("page"), pages)
    lock = _lock(context)
    return {
        "cards": [_card(each, ROWS_OF_A_CARD) for each in _page_of(found, page, CLUSTERS_PER_PAGE)],
        "lone": [_lone_row(each) for each in _page_of(alone, page, LONE_PER_PAGE)],
        "counts": {
            "clusters": len(statuses),
            "processes": len(processes),
            "lone": len(alone),
            "busy": sum(each.busy for each in processes),
            "concurrency": sum(each.concurrency for each in processes),
            "rss": sum(each.rss for each in processes),
            "quiet": sum(each.is_quiet for each in processes),
            "late": sum(each.is_unresponsive for each in lone) + sum(_card(each, 0).troubled for each in statuses),
        },
        "deploy": _deploy(lock, statuses),
        "marks": None if context.is_fragment else _marks(context),
        "text": text,
        "number": page,
        "pages": pages,
        "orders": CLUSTER_ORDERS.values(),
        "leases": LEASES,
    }


def _is_meant(text: str, name: str) -> bool:
    return text.lower() in name.lower()


def _page_of(items: Sequence[Any], page: int, size: int) -> Sequence[Any]:
    return items[(page - 1) * size : page * size]


def _card(status: ClusterStatus, most: int, page: int = 1) -> Card:
    rows = [_row(*pair) for pair in shown_processes(status)]
    if most < len(rows) and page == 1:
        rows = sorted(rows, key=lambda each: not each.is_troubled)  # those first that somebody has to see
    releases = {(each.release, each.generation) for each in status.children if each.pid is not None}
    return Card(
        status,
        rows[(page - 1) * most : page * most],
        len(rows),
        sum(each.is_troubled for each in rows),
        has_releases=len(releases) > 1,
        has_shards=any(each.shard for each in status.children),
        roll=Report.read(status.roll),
        reload=Report.read(status.reload),
    )


def _row(process: ProcessStatus | None, worker: WorkerStatus | None) -> Row:
    return Row(process, worker, *STATES.get(shown_state(worker, process), (message("unknown"), "")))


def _lone_row(process: RegisteredProcess) -> Mapping[str, Any]:
    return {"process": process, "row": _row(None, worker_status(process))}


def _deploy(lock: LockState, statuses: Sequence[ClusterStatus]) -> Mapping[str, Any]:
    """Return who holds the deploy lock, and how far the clusters are: begun by a quiet, committed by a roll."""
    by = f"{REQUESTED_BY_DEPLOY}{lock.owner}"
    rolls = [each.roll.get("state") for each in statuses if each.roll is not None]
    return {
        "lock": lock,
        "clusters": len(statuses),
        "quiet": sum(each.quiet_by == by for each in statuses) if lock.owner else 0,
        "quiet_by_others": sum(
            each.quiet_by.startswith(REQUESTED_BY_DEPLOY) and each.quiet_by != by for each in statuses
        ),
        "rolling": rolls.count("rolling"),
        "failed": rolls.count("failed"),
    }


def _lock(context: Context) -> LockState:
    try:
        return DeployLock(context.store, "").look()
    except WrongType as error:
        note(error)
        return LockState("", 0.0)


def _marks(context: Context) -> Sequence[tuple[float, str]]:
    """Return the latest deploy marks, the newest first.  One round trip."""
    since = datetime.fromtimestamp(context.clock.now(), UTC) - timedelta(days=MARK_DAYS)
    found = marks(since, store=context.store, clock=context.clock)
    return [(each.at.timestamp(), each.label) for each in reversed(found[-MAX_MARKS:])]


# one cluster


def show_cluster(context: Context) -> Mapping[str, Any]:
    """Show one.  Four round trips, one more per 500 processes and per 500 clusters."""
    name = context.route["cluster"]
    clusters = [each for each in group_by_cluster(list_processes(context.store)) if each.supervisor == name]
    status = status_from_redis(clusters[0]) if clusters else None
    page = context.number("page")
    pages = 1 if status is None else max(1, -(-len(shown_processes(status)) // ROWS_PER_PAGE))
    page = min(page, pages)
    card = None if status is None else _card(status, ROWS_PER_PAGE, page)
    identities = [] if card is None else [each.worker.identity for each in card.rows if each.worker is not None]
    stacks = read_stacks(context.store, identities)
    return {
        "title": name,
        "name": name,
        "card": card,
        "stacks": [
            (identity, shown_stacks(stacks[identity]))
            for identity in sorted(stacks, key=natural_sort_key)[:STACKS_PER_PAGE]
        ],
        "stack_count": len(stacks),
        "number": page,
        "pages": pages,
        "orders": CLUSTER_ORDERS.values(),
        "leases": LEASES,
    }


# one process


def show_process(context: Context) -> Mapping[str, Any]:
    """Show one.  Four round trips."""
    identity, keys = context.route["process"], context.store.keys
    commands = [*read_commands(keys, identity), *work_commands(keys, identity)]
    fields, left, work, workers = context.store.read_each(commands)
    found = read_processes(context.store, [(identity, fields, left)])
    process = found[0] if found else None
    works = with_progress(context.store, sorted(read_work(identity, work, workers), key=lambda each: each.run_at))
    status, row = _known_to_supervisor(process)
    stacks = read_stacks(context.store, [identity]).get(identity)
    return {
        "title": identity,
        "identity": identity,
        "process": process,
        "status": status,
        "row": row,
        "works": [_work_row(context, each) for each in works[:ROWS_PER_PAGE]],
        "stacks": shown_stacks(stacks) if stacks is not None else None,
        "orders": [each for each in PROCESS_ORDERS.values() if _can(process, each)],
        "leases": LEASES,
        "max_queues": MAX_QUEUES,
    }


def _known_to_supervisor(process: RegisteredProcess | None) -> tuple[ClusterStatus | None, Row | None]:
    """Return the state of the cluster of a process, and its row there."""
    if process is None:
        return None, None
    clusters = group_by_cluster([process])
    if not clusters:
        return None, _row(None, worker_status(process))
    status = status_from_redis(clusters[0])
    told = next((each for each in status.children if each.pid == process.pid), None)
    return status, _row(told, worker_status(process))


def _work_row(context: Context, work: Work) -> Mapping[str, Any]:
    return {"work": work, "arguments": context.arguments(work.job)}


def _can(process: RegisteredProcess | None, order: Order) -> bool:
    if process is None or process.is_embedded:
        return False
    return process.is_ours or order.action in RUBY_ACTIONS


# orders


def order_cluster(order: Order, context: Context) -> Done:
    """Give an order to a cluster.  Round trips as many as its answer takes time."""
    name = context.route["cluster"]
    outcome = to_cluster(context, name, order)
    is_there = context.request.form.get("from") == "cluster" or order.action == "dump"
    back = context.url("cluster", cluster=name) if is_there and order.action != "stop" else context.url("clusters")
    return _done(outcome, back, name)


def order_process(order: Order, context: Context) -> Done:
    """Give an order to one process."""
    identity = context.route["process"]
    back = context.url("clusters") if order.action == "stop" else context.url("process", process=identity)
    return _done(to_process(context, identity, order), back, identity)


def _done(outcome: Outcome, back: str, target: str) -> Done:
    return Done(outcome.text, back, target=target, has_failed=outcome.has_failed)


def ask(order: Order, context: Context) -> Question:
    """Ask before an order to a cluster, or a process."""
    assert order.question is not None
    (kind, name), *_ = context.route.items()
    text = context.gettext(order.question, name=name)
    return Question(text, context.gettext(order.button), context.url(kind, **{kind: name}))


PAGES = (
    Page("clusters", "/clusters", show_clusters, "clusters.html", message("Clusters"), place=10, key="c"),
    Page("cluster", "/clusters/<name:cluster>", show_cluster, "cluster.html", message("Clusters")),
    Page("process", "/processes/<name:process>", show_process, "process.html", message("Clusters")),
)


def _actions(kind: str, place: str, orders: Mapping[str, Order], run: Any) -> list[Action]:
    return [
        Action(
            f"{kind}_{each.action}",
            f"/{place}/<name:{kind}>/{each.action}",
            partial(run, each),
            role=each.role,
            question=partial(ask, each) if each.question else None,
        )
        for each in orders.values()
    ]


ACTIONS = (
    *_actions("cluster", "clusters", CLUSTER_ORDERS, order_cluster),
    *_actions("process", "processes", PROCESS_ORDERS, order_process),
)
