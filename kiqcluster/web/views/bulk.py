"""Bulk: something is done to all that match, in the background.  First they are counted, then somebody begins it.

/bulk               the latest bulk actions
/bulk/<id>          one: its count, then how far it is, and what came of it; begin, cancel, go on

A bulk action that nobody works on any more, for its process has ended, goes on as soon as somebody looks at it who may.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from werkzeug.exceptions import Conflict, Forbidden, NotFound

from kiqcluster.api import Queue
from kiqcluster.api.bulk import BulkAction, Selection, ask, bulk_actions, cancel, read_bulk, resume, start
from kiqcluster.api.bulk.sources import MAX_DISTANCE_JOBS
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page
from kiqcluster.web.views.filters import read_strict_filter, read_target, words_of
from kiqcluster.web.views.set_kinds import QUEUE, SETS, VERBS, QueueKind, SetKind, Verb, kind_of

__all__ = ["ACTIONS", "PAGES", "begin_to_delete"]

STATES = {
    "counting": (message("counting"), ""),
    "counted": (message("not begun"), "warn"),
    "running": (message("running"), "good"),
    "done": (message("done"), "good"),
    "cancelled": (message("cancelled"), "warn"),
    "failed": (message("failed"), "bad"),
}  # state → word and kind of its badge
MAX_SHOWN = 50


def show_bulks(context: Context) -> Mapping[str, Any]:
    """Show the latest.  Two round trips."""
    return {"bulks": [_shown(context, each) for each in bulk_actions(context.store)[:MAX_SHOWN]]}


def show_bulk(context: Context) -> Mapping[str, Any]:
    """Show one, and have it go on where nobody works on it any more.  One round trip.  Raises NotFound."""
    found = read_bulk(context.store, context.route["id"])
    if found is None:
        raise NotFound(context.gettext("This bulk action is not known any more: it is kept for 7 days."))
    verb = VERBS[found.verb]
    if found.is_left and context.may(verb.bulk_role) and context.bulk.has_room:
        _run(context, found.id)
    return {
        "title": context.gettext(verb.button),
        **_shown(context, found),
        "may_begin": context.may(verb.bulk_role),
        "dead_max_jobs": current_setup().current_config().dead_max_jobs if found.verb == "kill" else 0,
    }


def _shown(context: Context, found: BulkAction) -> dict[str, Any]:
    """Return what templates show of one."""
    word, badge = STATES.get(found.state, (message("failed"), "bad"))
    counts = found.counts
    is_deep = found.key_name == QUEUE.name and counts.total > 2 * MAX_DISTANCE_JOBS
    return {
        "bulk": found,
        "counts": counts,
        "kind": _kind(found),
        "of": {"queue": found.queue_name} if found.key_name == QUEUE.name else {},
        "distance": MAX_DISTANCE_JOBS if is_deep else 0,
        "verb": VERBS[found.verb],
        "state": "working" if found.is_left else found.state,
        "state_word": context.gettext(message("interrupted") if found.is_left else word),
        "badge": "warn" if found.is_left else badge,
        "percent": 100 if found.state == "done" else min(100, 100 * counts.looked // max(1, counts.total)),
        "filters": words_of(context, found.selection),
        "told": context.ngettext(*VERBS[found.verb].told, counts.done),
        "reasons": sorted(found.reasons.items(), key=lambda pair: -pair[1]),
    }


def _kind(found: BulkAction) -> SetKind | QueueKind:
    return QUEUE if found.key_name == QUEUE.name else kind_of(found.key_name)


def ask_for(kind: SetKind | QueueKind, verb: Verb, context: Context) -> Done:
    """Ask for a bulk action; it is counted now, and nothing else is done before somebody begins it."""
    chosen = read_strict_filter(context, kind, context.request.form)
    target = read_target(context, verb.needs)
    _check_room(context)
    store, who = context.store, context.user.name
    source = kind.job_set if isinstance(kind, SetKind) else Queue(context.route["queue"], store=store)
    made = ask(store, source, verb.name, chosen.selection, target, by=who, clock=context.clock)
    found = read_bulk(store, made)
    if found is not None and found.is_left:
        _run(context, made)
    return Done(
        "",
        context.url("bulk", id=made),
        target=f"{verb.name} {' '.join((kind.name, *context.route.values()))} {dict(chosen.fields) or 'all'} {made}",
    )


def begin_to_delete(context: Context, queue: Queue) -> str:
    """Begin to delete all jobs that a queue has now, which somebody has confirmed; return the id.  Raises Conflict."""
    _check_room(context)
    made = ask(context.store, queue, "delete", Selection(), by=context.user.name, clock=context.clock)
    start(context.store, made, context.clock)
    _run(context, made)
    return made


def begin(context: Context) -> Done:
    """Begin what was counted.  Raises Forbidden."""
    found = _found(context)
    _check_room(context)
    is_new = start(context.store, found.id, context.clock)
    if is_new:
        _run(context, found.id)
    text = message("It has begun.") if is_new else message("It cannot begin: it is not counted, or has begun already.")
    return _done(context, found, text, is_done=is_new)


def stop(context: Context) -> Done:
    """Cancel it.  Raises Forbidden."""
    found = _found(context)
    is_new = cancel(context.store, found.id, context.clock)
    text = message("It is cancelled: nothing more is done.") if is_new else message("It had ended already.")
    return _done(context, found, text, is_done=is_new)


def go_on(context: Context) -> Done:
    """Have it go on where it was.  Raises Forbidden."""
    found = _found(context)
    _check_room(context)
    is_left = resume(context.store, found.id)
    if is_left:
        _run(context, found.id)
    text = message("It goes on.") if is_left else message("There is nothing to go on with: it has ended, or goes on.")
    return _done(context, found, text, is_done=is_left)


def _check_room(context: Context) -> None:
    """Raise Conflict before anything is changed, where this process has no room for one more."""
    if not context.bulk.has_room:
        raise Conflict(
            context.gettext("Too many bulk actions go on in this process; nothing was changed. Repeat it later.")
        )


def _run(context: Context, identifier: str) -> None:
    """Have this process work on one.  Where others have taken the room meanwhile, the next look at its page does."""
    with suppress(UsageError):
        context.bulk.run(context.store, identifier)


def _found(context: Context) -> BulkAction:
    found = read_bulk(context.store, context.route["id"])
    if found is None:
        raise NotFound(context.gettext("This bulk action is not known any more: it is kept for 7 days."))
    if context.user.role < VERBS[found.verb].bulk_role:
        raise Forbidden(context.gettext("Your role may not do this; nothing was changed."))
    return found


def _done(context: Context, found: BulkAction, text: str, *, is_done: bool) -> Done:
    name = " ".join(filter(None, (_kind(found).name, found.queue_name)))
    target = f"{found.verb} {name} {found.id}"
    return Done(context.gettext(text), context.url("bulk", id=found.id), target=target, has_failed=not is_done)


PAGES = (
    Page("bulks", "/bulk", show_bulks, "bulks.html", message("Bulk actions")),
    Page("bulk", "/bulk/<name:id>", show_bulk, "bulk.html", message("Bulk action")),
)
ACTIONS = (
    *(
        Action(
            f"{kind.name}_bulk_{verb.name}",
            f"/{kind.name}/bulk/{verb.name}",
            partial(ask_for, kind, verb),
            role=verb.bulk_role,
        )
        for kind in SETS
        for verb in (VERBS[name] for name in kind.verbs)
    ),
    *(
        Action(
            f"{QUEUE.name}_bulk_{verb.name}",
            f"/queues/<name:queue>/bulk/{verb.name}",
            partial(ask_for, QUEUE, verb),
            role=verb.bulk_role,
        )
        for verb in (VERBS[name] for name in QUEUE.verbs)
    ),
    Action("bulk_start", "/bulk/<name:id>/start", begin),
    Action("bulk_cancel", "/bulk/<name:id>/cancel", stop),
    Action("bulk_resume", "/bulk/<name:id>/resume", go_on),
)
