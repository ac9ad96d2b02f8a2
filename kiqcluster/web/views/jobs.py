"""Jobs: one job by its id, wherever it is: its places, its course as far as Redis knows it, what can be done to it.

/jobs/<jid>             first what is quick to know: who runs it, its result, progress, iteration, lock; and its place,
                        where a link says it.  Then the page looks for it in sets and queues of all shards, and goes on
/jobs/<jid>/cancel      wherever it is
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from werkzeug.exceptions import BadRequest

from kiqcluster.api import JobRecord, SortedEntry, Work, shards
from kiqcluster.api.bulk.look import Budget
from kiqcluster.api.lookup import (
    Found,
    Known,
    Position,
    cancel_everywhere,
    chain_of,
    held,
    locate,
    read_known,
    read_position,
)
from kiqcluster.sidekiq.payload import batch_of, deferral_count, lock_of, seconds
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.web.arguments import as_json
from kiqcluster.web.context import Context
from kiqcluster.web.formats import number
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.views.entries import find_entries
from kiqcluster.web.views.set_kinds import SETS, VERBS, kind_of
from kiqcluster.web.views.sets import details

__all__ = ["ACTIONS", "PAGES"]

PAGE_BUDGET, GOING_BUDGET = Budget(trips=3, seconds=0.05), Budget(trips=20, seconds=0.06)
GOING_TOKENS = 0.4  # of the rate limit
MORE_BLOCK = "more"
MAX_CHAIN = 50
TOLD_KEYS = frozenset(
    {
        *("created_at", "enqueued_at", "failed_at", "retried_at", "scheduled_at", "retry_count", "retry", "tags"),
        *("version", "interrupted_count", "deferred_by", "deferred_count", "dropped_by", "idempotency_key", "task_id"),
    }
)
PLACES = {
    "retry": message("waits for another try"),
    "schedule": message("is scheduled"),
    "dead": message("is dead"),
    "dropped": message("was dropped"),
    "parked": message("is parked: it waits for a place"),
    "queue": message("waits in its queue"),
    "running": message("runs"),
    "held": message("is held by a process, and about to run"),
}


def show_job(context: Context) -> Mapping[str, Any]:
    """Show a job.  Six round trips, one more per 250 processes beyond 250; each time it goes on, some 20."""
    jid, going = context.route["jid"], context.request.args.get("go", "")
    is_more = context.is_fragment and context.request.headers.get("HX-Target") == MORE_BLOCK
    places: list[dict[str, Any]] = []
    next_go, looked, total, shard = None, 0, 0, 0
    stores = all_stores(context)
    known = Known()
    if going:
        shard, position = _where(going, len(stores))
        found = locate(stores[shard], jid, position, GOING_BUDGET if is_more else PAGE_BUDGET, context.clock)
        places = [_place(context, stores[shard], each) for each in found.found]
        looked, total = found.looked, found.total
        if found.position is not None:
            next_go = f"{shard}:{found.position.as_text()}"
        elif shard + 1 < len(stores):
            next_go = f"{shard + 1}:{Position().as_text()}"
    if not is_more:
        if not going:
            places = [*_hinted(context, jid), *_running(context, jid)]
            next_go = f"0:{Position().as_text()}"
        known = read_known(context.store, jid)
    records = [each["job"] for each in places]
    return {
        "title": jid or "–",
        "jid": jid,
        "places": places,
        "known": known,
        "result": known.result,
        "course": sorted(_course(context, places), key=lambda step: step[0]),
        "next_go": next_go,
        "goes_by_itself": next_go is not None and not places,
        "is_more": is_more,
        "is_live": bool(places) and not going,
        "at": context.request.args.get("at") or None,
        "looked": looked,
        "total": total,
        "shard": stores[shard].name if len(stores) > 1 else "",
        "first": records[0] if records else None,
        "chain": _chain(records[0]) if records else [],
        "facts": _facts(context, records[0]) if records else [],
        "lock": _lock(context, records[0]) if records else "",
        "batch": batch_of(records[0].payload) if records else None,
        **(_details(context, records[0]) if records else {"arguments": "", "backtrace": [], "others": {}}),
    }


def _details(context: Context, job: JobRecord) -> dict[str, Any]:
    """Return the details, without the keys that the page shows in other words."""
    found = dict(details(context, job))
    return {**found, "others": {name: text for name, text in found["others"].items() if name not in TOLD_KEYS}}


def all_stores(context: Context) -> list[Store]:
    """Return all shards of the configuration; the one store that the pages were given, if they were given one."""
    return shards() if context.is_own_store else [context.store]


def _where(text: str, count: int) -> tuple[int, Position]:
    number, _, position = text.partition(":")
    shard = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
    return min(shard, count - 1), read_position(position)


def cost(context: Context) -> float:
    """Return what the page costs: where it goes on, Redis looks through sets and queues."""
    return GOING_TOKENS if context.request.args.get("go") else 0.0


def _hinted(context: Context, jid: str) -> Iterator[dict[str, Any]]:
    """Yield the place that a link has named: `<set>:<key of the entry>`.  One round trip."""
    name, _, key = context.request.args.get("at", "").partition(":")
    kind = next((each for each in SETS if each.name == name), None)
    if kind is not None:
        for entry in find_entries(context.entry_keys, kind.job_set(store=context.store), [key]):
            if entry.jid == jid:
                yield _place(context, context.store, Found(kind.key_name, "", entry))


def _running(context: Context, jid: str) -> Iterator[dict[str, Any]]:
    """Yield where it runs.  Three round trips, two more for each 250 processes."""
    for store in all_stores(context):
        works, holding = held(store, jid)
        for work in works:
            yield {**_shown(context, store, "running", work.job), "work": work, "identity": work.identity}
        told = {work.identity for work in works}
        for identity, job in holding:
            if identity not in told:
                yield {**_shown(context, store, "held", job), "identity": identity}


def _place(context: Context, store: Store, found: Found) -> dict[str, Any]:
    shown = {**_shown(context, store, found.kind, found.job), "name": found.name}
    if isinstance(found.job, SortedEntry):
        kind = kind_of(found.kind)
        shown |= {
            "kind": kind,
            "key": context.entry_keys.entry(found.job),
            "verbs": [VERBS[name] for name in kind.verbs],
        }
    return shown


def _shown(context: Context, store: Store, kind: str, job: JobRecord) -> dict[str, Any]:
    return {
        "state": kind,
        "words": context.gettext(PLACES[kind]),
        "job": job,
        "shard": store.name if store is not context.store else "",
        "is_here": store is context.store,
        "kind": None,
        "key": "",
        "verbs": [],
        "work": None,
        "identity": "",
        "name": "",
    }


# its course

Step = tuple[float, str, str]  # when, what, and more of it


def _course(context: Context, places: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    """Yield the steps of a job that its payloads tell of."""
    for place in places:
        job: JobRecord = place["job"]
        error = f"{job.error_class or ''}: {job.error_message or ''}" if job.error_class or job.error_message else ""
        steps: list[tuple[float | None, str, str]] = [
            (job.created_at, message("created"), ""),
            (seconds(job["scheduled_at"]), message("was due"), ""),
            (job.enqueued_at, message("enqueued"), job.queue),
            (job.failed_at, message("failed for the first time"), "" if job.retried_at else error),
            (job.retried_at, message("failed again, and last"), error),
        ]
        if isinstance(job, SortedEntry):
            steps.append((job.score, kind_of(place["state"]).when, ""))
        work: Work | None = place["work"]
        if work is not None:
            steps.append((work.run_at, message("began to run"), work.identity))
        for at, what, more in steps:
            if at is not None and abs(at) < 1e11:
                yield at, context.gettext(what), more


def _facts(context: Context, job: JobRecord) -> list[tuple[str, str]]:
    """Return what a payload says of tries, interruptions and deferrals, as pairs of label and text."""
    count = job.retry_count
    found = [
        (message("Failed tries"), "" if count is None else number(count + 1)),
        (message("Interrupted"), _plain(job["interrupted_count"])),
        (message("Deferred by"), _plain(job["deferred_by"])),
        (message("Deferrals"), f"{deferral_count(job.payload) or ''}"),
        (message("Dropped by"), _plain(job["dropped_by"])),
        (message("Retry"), _plain(job["retry"])),
        (message("Version"), _plain(job["version"])),
    ]
    return [(context.gettext(label), text) for label, text in found if text]


def _plain(value: JSON) -> str:
    """Return a value that is no list and no object as text."""
    if value is None or isinstance(value, list | dict):
        return ""
    return value if isinstance(value, str) else as_json(value)


def _chain(job: JobRecord) -> list[Mapping[str, str]]:
    """Return the jobs that follow, of its chain: their classes and ids; never their arguments."""
    return [{"name": str(each.get("class", "–")), "jid": _id(each)} for each in chain_of(job)[:MAX_CHAIN]]


def _id(payload: Mapping[str, JSON]) -> str:
    jid = payload.get("jid")
    return jid if isinstance(jid, str) else ""


def _lock(context: Context, job: JobRecord) -> str:
    lock = lock_of(job.payload)
    return context.entry_keys.lock(lock[0]) if lock is not None else ""


# cancel


def ask_to_cancel(context: Context) -> Question:
    """Ask about it."""
    jid = context.route["jid"]
    text = context.gettext("Cancel the job %(jid)s wherever it is? One that runs is told to end.", jid=jid)
    return Question(text, context.gettext("Cancel the job"), context.url("job", jid=jid))


def cancel_job(context: Context) -> Done:
    """Cancel it in all shards.  About eleven round trips, one more per 2 000 jobs that wait."""
    jid = context.route["jid"]
    if not jid:
        raise BadRequest(context.gettext("There is no such job."))
    found = cancel_everywhere(all_stores(context), jid)
    if found.removed:
        text = message("It was removed from where it waited, and kept with the dropped jobs.")
    elif found:
        text = message("It runs, and was told to end.")
    else:
        text = message("It was found nowhere; if it begins within the next hour, it ends at once.")
    return Done(context.gettext(text), context.url("job", jid=jid), target=jid, has_failed=not found)


PAGES = (Page("job", "/jobs/<name:jid>", show_job, "job.html", message("Job"), blocks=("live", MORE_BLOCK), cost=cost),)
ACTIONS = (Action("job_cancel", "/jobs/<name:jid>/cancel", cancel_job, question=ask_to_cancel),)
