"""Queues: what waits where, for how long, who listens; pause, resume, clear, forget; jobs of one queue: delete, move.

/queues           a row for each queue
/queues/<name>    its jobs, those that are fetched next first, by a filter.  A page begins behind jobs, not at a number:
                  they move up while others fetch

Clear is a bulk action (bulk): the jobs that are there when it is confirmed go, slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kiqcluster.api import ProcessSet, Queue, QueueSummary
from kiqcluster.api.bulk import QueueLook, look_at_queue, read_anchors, write_anchors
from kiqcluster.api.bulk.look import Budget
from kiqcluster.api.dashboard import read_dashboard
from kiqcluster.api.queues import QueuedJob, read_summary, summary_commands
from kiqcluster.web.arguments import shown_arguments
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.users import Role
from kiqcluster.web.views.bulk import begin_to_delete
from kiqcluster.web.views.entries import find_several
from kiqcluster.web.views.filters import Filter, read_filter, read_target
from kiqcluster.web.views.set_kinds import QUEUE, VERBS, Verb
from kiqcluster.web.views.sets import GOING_BUDGET, MORE_BLOCK, back_to_list, cost, is_going, selected_keys

__all__ = ["ACTIONS", "PAGES"]

QUEUES_PER_PAGE = 100
JOBS_PER_PAGE = 25
PAGE_BUDGET = Budget(trips=2, seconds=0.06)
MAX_SHOWN_LISTENERS = 100
SORTS: Mapping[str, Callable[[QueueSummary], Any]] = {
    "name": lambda each: each.name,
    "size": lambda each: (-each.size, each.name),
    "latency": lambda each: (-each.latency, each.name),
}


def show_queues(context: Context) -> Mapping[str, Any]:
    """Show the queues.  Three round trips, one more per 5 000 commands."""
    look = read_dashboard(context.store, context.clock)
    text, sort = context.request.args.get("q", "").strip(), context.word("sort", tuple(SORTS))
    found = sorted((each for each in look.queues if text.lower() in each.name.lower()), key=SORTS[sort])
    pages = max(1, -(-len(found) // QUEUES_PER_PAGE))
    page = min(context.number("page"), pages)
    shown = found[(page - 1) * QUEUES_PER_PAGE : page * QUEUES_PER_PAGE]
    return {
        "queues": shown,
        "count": len(found),
        "jobs": sum(each.size for each in found),
        "text": text,
        "sort": sort,
        "number": page,
        "pages": pages,
    }


def show_queue(context: Context) -> Mapping[str, Any]:
    """Show the jobs of a queue.  Four round trips, one more per 500 processes, up to two where a filter is slow."""
    name, query = context.route["queue"], context.request.args
    keys = context.store.keys
    commands = [*summary_commands(keys, name), ("SISMEMBER", keys.paused, name)]
    *replies, paused = context.secret.along(context.store, commands)
    listeners = [each for each in ProcessSet(store=context.store) if each.may_listen_to(name)]
    summary = read_summary(name, replies, context.clock.now(), is_paused=paused == 1, processes=len(listeners))
    chosen = read_filter(context, QUEUE, query)
    return {
        "title": name or "–",
        "path": context.url("queue", queue=name, after=query.get("after") or None, **chosen.fields),
        "queue": summary,
        "kind": QUEUE,
        "of": {"queue": name},
        "verbs": [VERBS[each] for each in QUEUE.verbs],
        "filter": chosen,
        "query": chosen.fields,
        "listeners": listeners[:MAX_SHOWN_LISTENERS],
        "listener_count": len(listeners),
        **_jobs(context, summary, chosen),
    }


def _jobs(context: Context, summary: QueueSummary, chosen: Filter) -> Mapping[str, Any]:
    """Return a page of jobs, and where the one behind it begins."""
    have = context.number("have", 0, 0) if context.is_fragment else 0
    after = read_anchors(context.entry_keys.unseal(context.request.args.get("after", "")))
    most, is_more = max(1, JOBS_PER_PAGE - have), is_going(context)
    look = QueueLook([], 0, 0, [], 0)
    if not summary.error:
        look = look_at_queue(
            context.store,
            summary.name,
            chosen.selection,
            after=after,
            most=most,
            budget=GOING_BUDGET if is_more else PAGE_BUDGET,
            arguments=partial(shown_arguments, formatter=context.formatter),
            are_arguments_json=context.formatter is None,
            clock=context.clock,
        )
    behind = context.entry_keys.seal(write_anchors(look.after)) if look.has_more else None
    is_full = len(look.found) >= most
    return {
        "rows": [
            {"key": context.entry_keys.queued(each), "job": each, "arguments": context.arguments(each)}
            for each in look.found
        ],
        "size": look.size,
        "limit": look.size,
        "looked": look.looked,
        "have": have + len(look.found),
        "going": behind if not is_full else None,
        "next": behind if is_full else None,
        "is_more": is_more,
        "is_first": look.first == 0,
    }


# actions


def pause(context: Context) -> Done:
    """Have workers leave a queue alone."""
    name = context.route["queue"]
    is_new = Queue(name, store=context.store).pause()
    paused = message("The queue is paused: nothing more is fetched from it.")
    return Done(
        context.gettext(paused if is_new else message("The queue was paused already.")), _back(context), target=name
    )


def resume(context: Context) -> Done:
    """End a pause."""
    name = context.route["queue"]
    is_new = Queue(name, store=context.store).resume()
    text = message("The queue is resumed.") if is_new else message("The queue was not paused.")
    return Done(context.gettext(text), _back(context), target=name)


def forget(context: Context) -> Done:
    """Take an empty queue off the list."""
    queue = Queue(context.route["queue"], store=context.store)
    if not queue.forget():
        text = message("The queue has jobs, so it stays in the list.")
        return Done(context.gettext(text), _back(context), target=queue.name, has_failed=True)
    text = message("The queue is not in the list any more. Its next job puts it back.")
    return Done(context.gettext(text), context.url("queues"), target=queue.name)


def ask_to_clear(context: Context) -> Question:
    """Ask, with the count."""
    name = context.route["queue"]
    count = len(Queue(name, store=context.store))
    text = context.ngettext(
        "Delete %(count)s job of the queue %(queue)s for good?",
        "Delete %(count)s jobs of the queue %(queue)s for good?",
        count,
        queue=name,
    )
    return Question(text, context.gettext("Clear"), _back(context))


def clear(context: Context) -> Done:
    """Delete all jobs of a queue as a bulk action, which releases their locks and tells their batches."""
    queue = Queue(context.route["queue"], store=context.store)
    count, made = len(queue), begin_to_delete(context, queue)
    text = context.gettext(message("It has begun."))
    return Done(text, context.url("bulk", id=made), target=f"{queue.name} ({count}) {made}")


def ask_to_delete(context: Context) -> Question:
    """Ask about the jobs of a form, of which so many are still there."""
    count = len(_selected(context))
    asks = VERBS["delete"].asks
    assert asks is not None
    return Question(context.ngettext(*asks, count), context.gettext("Delete"), _back_to_list(context))


def delete_jobs(context: Context) -> Done:
    """Delete the jobs of a form.  Two round trips, rarely more."""
    jobs = _selected(context)
    count = Queue(context.route["queue"], store=context.store).delete_all(jobs)
    return _done(context, VERBS["delete"], jobs, count)


def move_jobs(context: Context) -> Done:
    """Move the jobs of a form to the back of another queue.  Two round trips, rarely more."""
    target, jobs = read_target(context, "target"), _selected(context)
    count = Queue(context.route["queue"], store=context.store).move(jobs, target.queue)
    return _done(context, VERBS["move"], jobs, count)


def _selected(context: Context) -> list[QueuedJob]:
    return find_several(context.entry_keys, Queue(context.route["queue"], store=context.store), selected_keys(context))


def _done(context: Context, verb: Verb, jobs: Sequence[QueuedJob], count: int) -> Done:
    text = context.ngettext(*verb.told, count)
    if gone := len(selected_keys(context)) - count:
        text += " " + context.ngettext("%(count)s other was gone.", "%(count)s others were gone.", gone)
    which = jobs[0].jid if len(jobs) == 1 else f"{count}"
    return Done(text, _back_to_list(context), target=f"{context.route['queue']} {which}", has_failed=count == 0)


def _back(context: Context) -> str:
    return context.url("queue", queue=context.route["queue"])


def _back_to_list(context: Context) -> str:
    return back_to_list(QUEUE, context, queue=context.route["queue"])


PAGES = (
    Page("queues", "/queues", show_queues, "queues.html", message("Queues"), place=20, key="q"),
    Page(
        "queue",
        "/queues/<name:queue>",
        show_queue,
        "queue.html",
        message("Queues"),
        blocks=("live", MORE_BLOCK),
        cost=cost,
    ),
)
ACTIONS = (
    Action("queue_pause", "/queues/<name:queue>/pause", pause),
    Action("queue_resume", "/queues/<name:queue>/resume", resume),
    Action("queue_forget", "/queues/<name:queue>/forget", forget),
    Action("queue_clear", "/queues/<name:queue>/clear", clear, role=Role.ADMIN, question=ask_to_clear),
    Action("queue_delete", "/queues/<name:queue>/delete", delete_jobs, question=ask_to_delete),
    Action("queue_move", "/queues/<name:queue>/move", move_jobs),
)
