"""Sets: pages of the sorted sets of jobs; each set is a row of SETS, and has the same pages and actions.

/<set>               entries, a page at a time, of all or by a filter; something is done to those selected
/<set>/export        see export
/<set>/<entry>       one entry with all that its payload says

A page begins behind an entry.  Where a filter's entries are rare, it shows what it has found so far, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from werkzeug.exceptions import BadRequest, NotFound

from kiqcluster.api import JobRecord, SortedEntry
from kiqcluster.api.bulk.look import Budget, Look, look
from kiqcluster.store.search import Place
from kiqcluster.web.arguments import MAX_PAGE_CHARACTERS, other_keys, shorten, shown_arguments
from kiqcluster.web.context import Context
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.views.entries import find_entries, read_keys
from kiqcluster.web.views.filters import cursor_of, place_of_cursor, read_filter, read_target
from kiqcluster.web.views.set_kinds import ALL_FIELDS, SETS, VERBS, QueueKind, SetKind, Verb

__all__ = [
    "ACTIONS",
    "GOING_BUDGET",
    "MORE_BLOCK",
    "PAGES",
    "back_to_list",
    "cost",
    "details",
    "is_going",
    "selected_keys",
    "show_set",
]

ENTRIES_PER_PAGE = 25
PAGE_BUDGET = Budget(trips=5, seconds=0.06)
GOING_BUDGET = Budget(trips=24, seconds=0.06)
GOING_TOKENS, FILTER_TOKENS = 0.4, 0.4  # of the rate limit
LIVE_TOKENS = 0.1  # of a filtered list that loads again: a tab does so every two seconds, and anybody may at any rate
MORE_BLOCK = "more"  # of the template: what a look finds after the page was shown
SHOWN_KEYS = frozenset({"class", "args", "jid", "queue", "error_class", "error_message", "error_backtrace", "kiq_then"})
MAX_OTHERS = 100  # keys of a payload that are shown as they are
SORTS = ("", "newest", "oldest")


def show_set(kind: SetKind, context: Context) -> Mapping[str, Any]:
    """Show a page of entries.  At most six round trips; each that goes on has some more."""
    job_set, query = kind.job_set(store=context.store), context.request.args
    chosen = read_filter(context, kind, query)
    sort = context.word("sort", SORTS)
    newest_first = sort == "newest" or (not sort and not kind.is_ahead)
    have = context.number("have", 0, 0) if context.is_fragment else 0
    is_back = bool(query.get("before"))
    after = place_of_cursor(
        context.entry_keys,
        query.get("before") or query.get("after", ""),
        job_set,
        context.store,
        newest_first=newest_first != is_back,
    )
    found = look(
        job_set,
        context.store,
        chosen.selection,
        after=after,
        newest_first=newest_first != is_back,
        most=max(1, ENTRIES_PER_PAGE - have),
        budget=GOING_BUDGET if is_going(context) else PAGE_BUDGET,
        arguments=partial(shown_arguments, formatter=context.formatter),
        are_arguments_json=context.formatter is None,
        clock=context.clock,
    )
    return {
        "kind": kind,
        "of": {},
        "filter": chosen,
        "sort": "newest" if newest_first else "oldest",
        "query": {**chosen.fields, **({"sort": sort} if sort else {})},
        "verbs": [VERBS[name] for name in kind.verbs],
        **_page(context, found, have, is_back=is_back, is_first=after is None),
    }


def _page(context: Context, found: Look, have: int, *, is_back: bool, is_first: bool) -> Mapping[str, Any]:
    """Return rows, and where the pages before and after this one begin."""
    entries = found.found[::-1] if is_back else found.found
    places = [Place(repr(entry.score).encode(), entry.raw, place) for entry, place in entries]
    is_full = have + len(entries) >= ENTRIES_PER_PAGE
    is_going = found.has_more and not is_full
    has_next, has_previous = (True, found.has_more) if is_back else (found.has_more and is_full, not is_first)
    looked_at = found.first + found.looked
    return {
        "rows": [_row(context, each.entry) for each in entries],
        "size": found.size,
        "limit": found.limit,
        "looked": looked_at,
        "first": found.size - looked_at if is_back else found.first,
        "have": have + len(entries),
        "is_going": is_going and not is_back,
        "going": cursor_of(context.entry_keys, found.last) if is_going and found.last else None,
        "next": _behind(context, found, places, is_back=is_back) if has_next and (places or is_back) else None,
        "previous": cursor_of(context.entry_keys, places[0]) if has_previous and places else None,
        "is_first": is_first,
        "is_more": context.is_fragment and context.request.headers.get("HX-Target") == MORE_BLOCK,
        "after": context.request.args.get("after") or None,
        "before": context.request.args.get("before") or None,
    }


def _behind(context: Context, found: Look, places: list[Place], *, is_back: bool) -> str | None:
    """Return the cursor of the page behind this one."""
    last = places[-1] if is_back and places else found.last
    return cursor_of(context.entry_keys, last) if last is not None and last.payload else None


def _row(context: Context, entry: SortedEntry) -> Mapping[str, Any]:
    return {"key": context.entry_keys.entry(entry), "job": entry, "arguments": context.arguments(entry)}


def is_going(context: Context) -> bool:
    """Return whether a request goes on with a look."""
    return context.is_fragment and context.request.headers.get("HX-Target") == MORE_BLOCK


def cost(context: Context) -> float:
    """Return what a page costs: Redis looks for what a filter means."""
    has_filter = any(context.request.args.get(name) for name in ALL_FIELDS)
    if is_going(context):
        return GOING_TOKENS
    return (LIVE_TOKENS if context.is_fragment else FILTER_TOKENS) if has_filter else 0.0


def show_entry(kind: SetKind, context: Context) -> Mapping[str, Any]:
    """Show an entry.  One round trip.  Raises NotFound."""
    key = context.route["key"]
    found = find_entries(context.entry_keys, kind.job_set(store=context.store), [key])
    if not found:
        raise NotFound(context.gettext("This job is not here any more: it was retried, deleted, or has run."))
    verbs = [VERBS[name] for name in kind.verbs]
    return {"kind": kind, "key": key, "job": found[0], "verbs": verbs, **details(context, found[0])}


def details(context: Context, job: JobRecord) -> Mapping[str, Any]:
    """Return what the page of one job shows of it besides its columns."""
    arguments = context.all_arguments(job)
    others = [pair for pair in job.payload.items() if pair[0] not in SHOWN_KEYS][:MAX_OTHERS]
    others = [(name, context.entry_keys.lock(value) if isinstance(value, str) else value) for name, value in others]
    return {
        "arguments": shorten(arguments, MAX_PAGE_CHARACTERS),
        "backtrace": [shorten(line, 500) for line in job.error_backtrace[:200]],
        "others": other_keys(others, job.display_args, arguments),
    }


# actions on the entries of a form


def ask(kind: SetKind, verb: Verb, context: Context) -> Question:
    """Ask about the entries of a form, of which so many are still there."""
    assert verb.asks is not None
    count = len(find_entries(context.entry_keys, kind.job_set(store=context.store), selected_keys(context)))
    return Question(context.ngettext(*verb.asks, count), context.gettext(verb.button), back_to_list(kind, context))


def do(kind: SetKind, verb: Verb, context: Context) -> Done:
    """Do it to the entries of a form.  One round trip per 100 entries to find them, and one script per 500."""
    keys, target = selected_keys(context), read_target(context, verb.needs)
    job_set = kind.job_set(store=context.store, clock=context.clock)
    count = verb.act(job_set, find_entries(context.entry_keys, job_set, keys), target)
    text = context.ngettext(*verb.told, count)
    if gone := len(keys) - count:
        text += " " + context.ngettext("%(count)s other was gone.", "%(count)s others were gone.", gone)
    return Done(text, back_to_list(kind, context), target=f"{count} of {kind.name}", has_failed=count == 0)


def selected_keys(context: Context) -> list[str]:
    """Return the keys of a form.  Raises BadRequest for none."""
    keys = read_keys(context.request.form.getlist("key"))
    if not keys:
        raise BadRequest(context.gettext("Select a job first; nothing was changed."))
    return keys


def back_to_list(kind: SetKind | QueueKind, context: Context, **of: str) -> str:
    """Return the page from which a form came: that of the list, with its filter."""
    form = context.request.form
    fields = {name: form[name] for name in (*kind.fields, "sort") if form.get(name)}
    return context.url(kind.name, **of, **fields)


PAGES = tuple(
    page
    for kind in SETS
    for page in (
        Page(
            kind.name,
            f"/{kind.name}",
            partial(show_set, kind),
            "set.html",
            kind.title,
            place=kind.place,
            key=kind.key,
            blocks=("live", MORE_BLOCK),
            cost=cost,
        ),
        Page(f"{kind.name}_entry", f"/{kind.name}/<entry:key>", partial(show_entry, kind), "entry.html", kind.title),
    )
)
ACTIONS = tuple(
    Action(
        f"{kind.name}_{verb.name}",
        f"/{kind.name}/{verb.name}",
        partial(do, kind, verb),
        role=verb.role,
        question=partial(ask, kind, verb) if verb.asks else None,
    )
    for kind in SETS
    for verb in (VERBS[name] for name in kind.verbs)
)
