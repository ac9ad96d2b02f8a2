"""Limits: how many jobs may run at once or start in a while, what waits for that, and who holds locks.

/limits                       concurrency limits, by name and key: places held, jobs parked; another limit for a while
/limits/concurrency/<name>    one of them: who holds places, and its line of parked jobs; delete some
/limits/rates                 rate limits: what is used, when the next start is allowed
/limits/locks                 locks of deduplication: who holds them; release one by hand
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

from werkzeug.exceptions import BadRequest

from kiqcluster.api import (
    LimitLine,
    LimitStatus,
    LockSet,
    ParkedJob,
    ParkedJobs,
    RateStatus,
    concurrency_limits,
    end_override,
    override_limit,
    rate_limits,
)
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.users import Role
from kiqcluster.web.views.entries import read_keys

__all__ = ["ACTIONS", "PAGES"]

LIMITS_PER_PAGE = 100
JOBS_PER_PAGE = 25
LOCKS_PER_PAGE = 100
LOCKS_COST = 0.2  # tokens of the rate limit: a page looks at thousands of keys
MAX_SHOWN_HOLDERS = 50
MAX_RATES = 300
MAX_CLEARED = 20_000  # parked jobs that one request deletes
MAX_DIGITS = 9  # of a limit
MAX_FILTER_CHARACTERS = 200
DIGEST = re.compile(r"(?<!:):[0-9a-f]+\Z")  # at the end of the name of a lock, or its first characters
OVERRIDES: Mapping[str, str] = {  # seconds → message
    "900": message("15 minutes"),
    "3600": message("1 hour"),
    "14400": message("4 hours"),
    "86400": message("1 day"),
    "": message("until it is reset"),
}
TABS = (("limits", message("Concurrency")), ("rates", message("Rates")), ("locks", message("Locks")))


def show_limits(context: Context) -> Mapping[str, Any]:
    """Show the concurrency limits.  Five round trips, one more per 500 processes and lines."""
    text = context.request.args.get("q", "").strip()[:MAX_FILTER_CHARACTERS]
    found = concurrency_limits(store=context.store, most_holders=0)
    found = [each for each in found if text.lower() in f"{each.name} {each.key}".lower()]
    pages = max(1, -(-len(found) // LIMITS_PER_PAGE))
    page = min(context.number("page"), pages)
    shown = found[(page - 1) * LIMITS_PER_PAGE : page * LIMITS_PER_PAGE]
    return {
        "rows": [_row(each, len(each.holders)) for each in shown],
        "count": len(found),
        "parked": sum(each.parked for each in found),
        "text": text,
        "number": page,
        "pages": pages,
        "tabs": TABS,
    }


def _row(limit: LimitStatus, held: int) -> Mapping[str, Any]:
    in_force = limit.in_force
    until = limit.override_until
    return {
        "limit": limit,
        "held": held,
        "bar": _bar(held, in_force) if in_force is not None and in_force > 0 else [],
        "is_endless": until is None or isinf(until),
    }


def _bar(used: int, largest: int) -> list[tuple[str, int, int]]:
    share = min(100, 100 * max(0, used) // largest) if largest > 0 else 100
    return [("warn" if share >= 100 else "a", 0, share)] if share else []


def show_limit(context: Context) -> Mapping[str, Any]:
    """Show one limit, or one key of it.  Three round trips."""
    name, key, page = context.route["limit"], context.request.args.get("key", ""), context.number("page")
    line = LimitLine(name, key, store=context.store)
    status, held, jobs = line.look((page - 1) * JOBS_PER_PAGE, JOBS_PER_PAGE, MAX_SHOWN_HOLDERS)
    return {
        **_row(status, held),
        "title": name or "–",
        "path": context.url("limit", limit=name, key=key or None, page=page),
        "holders": [{"holder": each, "arguments": context.arguments(each.job)} for each in status.holders],
        "jobs": [
            {"key": context.entry_keys.parked(each), "job": each, "arguments": context.arguments(each)} for each in jobs
        ],
        "number": page,
        "pages": max(1, -(-status.parked // JOBS_PER_PAGE)),
        "overrides": OVERRIDES.items(),
    }


def show_rates(context: Context) -> Mapping[str, Any]:
    """Show the rate limits that were used lately.  Two round trips, five with concurrent ones."""
    found = rate_limits(store=context.store, most=MAX_RATES, most_holders=MAX_RATES)
    return {
        "rows": [
            {"rate": each, "bar": _bar(each.used, each.largest), "per_second": _per_second(each)} for each in found
        ],
        "most": MAX_RATES,
        "tabs": TABS,
    }


def _per_second(rate: RateStatus) -> float:
    return 1 / rate.seconds if rate.seconds > 0 else 0.0


def show_locks(context: Context) -> Mapping[str, Any]:
    """Show the locks that a part of Redis' keys has.  Six round trips at most."""
    text = context.request.args.get("q", "").strip()[:MAX_FILTER_CHARACTERS]
    after = context.request.args.get("after", "")
    cursor = int(after) if after.isascii() and after.isdigit() and len(after) <= 19 else 0
    if not context.user.role >= Role.ADMIN:  # the digest of a guess would find the lock of hidden arguments
        text = DIGEST.sub(":", text)
    page = LockSet(store=context.store).page(cursor, LOCKS_PER_PAGE, text)
    return {
        "locks": [
            {"lock": each, "name": context.entry_keys.lock(each.name), "key": context.entry_keys.seal(each.name)}
            for each in sorted(page.locks, key=lambda each: (each.name, each.jid))
        ],
        "cursor": page.cursor,
        "keys": page.keys,
        "is_first": not cursor,
        "text": text,
        "path": context.url("locks", q=text or None, after=cursor or None),
        "tabs": TABS,
    }


# actions on concurrency limits


def override(context: Context) -> Done:
    """Put another limit into force for a while."""
    name, form = context.route["limit"], context.request.form
    text, seconds = form.get("number", "").strip(), form.get("seconds", "?")
    if not text.removeprefix("-").isdecimal() or len(text) > MAX_DIGITS or seconds not in OVERRIDES:
        raise BadRequest(context.gettext("A limit is a whole number: 0 for none, -1 to let nothing run."))
    override_limit(name, int(text), float(seconds) if seconds else None, store=context.store)
    return Done(
        context.gettext(
            "The limit is %(number)s now, for %(time)s.", number=text, time=context.gettext(OVERRIDES[seconds])
        )
        if seconds
        else context.gettext("The limit is %(number)s now, until it is reset.", number=text),
        _back(context),
        target=f"{name} {text} {seconds}".rstrip(),
    )


def reset(context: Context) -> Done:
    """Put the declared limit back into force."""
    name = context.route["limit"]
    was_set = end_override(name, store=context.store)
    text = (
        message("The declared limit is in force again.") if was_set else message("There was no other limit in force.")
    )
    return Done(context.gettext(text), _back(context), target=name)


def _selected(context: Context) -> list[ParkedJob]:
    """Return the jobs of a form that are still parked.  Raises BadRequest if none is named."""
    keys = read_keys(context.request.form.getlist("key"))
    if not keys:
        raise BadRequest(context.gettext("Select a job first; nothing was changed."))
    return [each for each in _line(context).at_places(_times(keys)) if context.entry_keys.parked(each) in keys]


def _times(keys: Sequence[str]) -> list[float]:
    found = []
    for key in keys:
        try:
            found.append(float(key.rpartition("-")[0]))
        except ValueError:
            continue
    return found


def _line(context: Context) -> LimitLine:
    return LimitLine(context.route["limit"], context.request.form.get("line", ""), store=context.store)


def ask_to_delete(context: Context) -> Question:
    """Ask about the jobs of a form, of which so many are still parked."""
    count = len(_selected(context))
    text = context.ngettext("Delete %(count)s parked job for good?", "Delete %(count)s parked jobs for good?", count)
    return Question(text, context.gettext("Delete"), _back(context))


def delete(context: Context) -> Done:
    """Delete the jobs of a form."""
    count = ParkedJobs(context.route["limit"], store=context.store).delete_all(_selected(context))
    text = context.ngettext("%(count)s job was deleted.", "%(count)s jobs were deleted.", count)
    return Done(text, _back(context), target=f"{count} parked by {context.route['limit']}", has_failed=count == 0)


def ask_to_clear(context: Context) -> Question:
    """Ask, with the count."""
    status, _, _ = _line(context).look(0, 1, 1)
    text = context.ngettext(
        "Delete all jobs that %(name)s has parked, %(count)s job, for good?",
        "Delete all jobs that %(name)s has parked, %(count)s jobs, for good?",
        status.parked,
        name=" ".join(filter(None, (status.name, status.key))),
    )
    return Question(text, context.gettext("Delete all"), _back(context))


def clear(context: Context) -> Done:
    """Delete the parked jobs of a line, MAX_CLEARED at most."""
    name, line = context.route["limit"], _line(context)
    parked, count = ParkedJobs(name, store=context.store), 0
    while count < MAX_CLEARED:
        status, _, jobs = line.look(0, 500, 1)
        deleted = parked.delete_all(jobs)
        count += deleted
        if not deleted:
            break
    status, _, _ = line.look(0, 1, 1)
    text = context.ngettext("%(count)s job was deleted.", "%(count)s jobs were deleted.", count)
    if status.parked:
        text += " " + context.ngettext("%(count)s is still parked.", "%(count)s are still parked.", status.parked)
    return Done(text, _back(context), target=f"{count} parked by {name}", has_failed=count == 0)


def _back(context: Context) -> str:
    form = context.request.form
    if form.get("back") == "list":
        return context.url("limits")
    return context.url("limit", limit=context.route["limit"], key=form.get("line") or None)


# actions on locks


def ask_to_release(context: Context) -> Question:
    """Warn of what a release allows."""
    form = context.request.form
    text = context.gettext(
        "Release the lock that the job %(jid)s holds? The job stays, and an equal one can then run beside it.",
        jid=form.get("jid", ""),
    )
    return Question(text, context.gettext("Release the lock"), context.url("locks"))


def release(context: Context) -> Done:
    """Release a lock, unless another job holds it by now."""
    name, jid = context.entry_keys.unseal(context.request.form.get("lock", "")), context.request.form.get("jid", "")
    lock = LockSet(store=context.store).find(name)
    is_released = lock is not None and lock.jid == jid and lock.release()
    gone = message("This job does not hold the lock any more; nothing was changed.")
    text = message("The lock is released.") if is_released else gone
    return Done(context.gettext(text), context.url("locks"), target=f"{name} {jid}", has_failed=not is_released)


PAGES = (
    Page("limits", "/limits", show_limits, "limits.html", message("Limits"), place=82, key="l"),
    Page("limit", "/limits/concurrency/<name:limit>", show_limit, "limit.html", message("Limits")),
    Page("rates", "/limits/rates", show_rates, "rates.html", message("Limits")),
    Page("locks", "/limits/locks", show_locks, "locks.html", message("Limits"), cost=LOCKS_COST),
)
ACTIONS = (
    Action("limit_override", "/limits/concurrency/<name:limit>/override", override),
    Action("limit_reset", "/limits/concurrency/<name:limit>/reset", reset),
    Action("limit_delete", "/limits/concurrency/<name:limit>/delete", delete, question=ask_to_delete),
    Action("limit_clear", "/limits/concurrency/<name:limit>/clear", clear, role=Role.ADMIN, question=ask_to_clear),
    Action("lock_release", "/limits/locks/release", release, question=ask_to_release),
)
