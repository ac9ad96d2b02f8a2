"""Busy: the jobs that run, in all processes, Ruby's too; cancel one, or end one that hangs by its process.

/busy    the oldest first, as the latest heartbeats tell them: up to ten seconds old.  Their progress and the state of
         iterable jobs is read for those of a page only
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from werkzeug.exceptions import BadRequest
from werkzeug.routing import BuildError

from kiqcluster.api.processes import Iteration, Told, Work, read_iterations, read_told, with_progress
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT
from kiqcluster.control.cancellation import Cancelled, cancel_in
from kiqcluster.control.process_registry import list_processes
from kiqcluster.sidekiq.ruby_json import is_unicode
from kiqcluster.web.arguments import as_json, shorten
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.users import Role
from kiqcluster.web.views.fleet.orders import Order, to_cluster

__all__ = ["ACTIONS", "PAGES"]

JOBS_PER_PAGE = 50
MAX_COUNTED_CLASSES, MAX_COUNTED_JOBS = 8, 500  # the oldest jobs: each is decoded for its class
MAX_JID_CHARACTERS = 200
KILL = Order(
    "kill",
    message("Kill"),
    message("The process of this job is killed, and replaced; what ran beside it runs again."),
    message("kill its process: jobs that ran beside it run again; this one dies after some such deaths"),
    Role.ADMIN,
)


def show_busy(context: Context) -> Mapping[str, Any]:
    """Show the running jobs.  Six round trips, two more per 500 processes."""
    processes = {each.identity: each for each in list_processes(context.store)}
    told = read_told(context.store, list(processes))
    name, queue = (context.request.args.get(word, "").strip() for word in ("class", "queue"))
    found = [each for each in told if _is_meant(each, name, queue)] if name or queue else told
    pages = max(1, -(-len(found) // JOBS_PER_PAGE))
    page = min(context.number("page"), pages)
    shown = with_progress(context.store, _read(found[(page - 1) * JOBS_PER_PAGE : page * JOBS_PER_PAGE]))
    iterations = read_iterations(context.store, shown)
    counted = Counter(each.job.display_class for each in _read(found[:MAX_COUNTED_JOBS]))
    return {
        "rows": [
            {
                "work": each,
                "process": processes[each.identity],
                "arguments": context.arguments(each.job),
                "iteration": _iteration_words(iterations.get(each.job.jid)),
                "path": _path_of_job(context, each.job.jid),
                "can_kill": processes[each.identity].supervisor is not None and bool(each.job.jid),
            }
            for each in shown
        ],
        "count": len(found),
        "all": len(told),
        "running_in": len({each.identity for each in found}),
        "threads": sum(each.concurrency for each in processes.values()),
        "oldest": found[0].run_at if found else None,
        "told": max((each.age for each in processes.values()), default=None),
        "classes": counted.most_common(MAX_COUNTED_CLASSES),
        "counted": min(len(found), MAX_COUNTED_JOBS),
        "name": name,
        "queue": queue,
        "number": page,
        "pages": pages,
    }


def _read(told: Sequence[Told]) -> list[Work]:
    return [work for each in told if (work := each.read()) is not None]


def _is_meant(told: Told, name: str, queue: str) -> bool:
    """Return whether class and queue are those that are looked for.  A look at the bytes spares most decoding."""
    if not all(_may_hold(told.raw, each) for each in (name, queue)) or (work := told.read()) is None:
        return False
    return (not queue or queue == work.queue) and name.lower() in work.job.display_class.lower()


def _may_hold(raw: bytes, text: str) -> bool:
    """Return whether bytes may hold a text, in whatever case; JSON may escape all but letters and digits."""
    is_verbatim = text.isascii() and text.isalnum()
    return not is_verbatim or text.lower().encode() in raw.lower()


def _iteration_words(iteration: Iteration | None) -> Mapping[str, Any] | None:
    if iteration is None:
        return None
    is_shown = isinstance(iteration.cursor, int | float)  # the filter of arguments shows numbers only
    return {"state": iteration, "cursor": shorten(as_json(iteration.cursor), 60) if is_shown else HIDDEN_ARGUMENT}


def _path_of_job(context: Context, jid: str) -> str:
    """Return the path of the page of a job; "" where there is no such page, or none for such an id."""
    if not jid or len(jid) > MAX_JID_CHARACTERS or not is_unicode(jid):
        return ""
    try:
        return context.url("job", jid=jid)
    except BuildError:
        return ""


# actions


def cancel(context: Context) -> Done:
    """Cancel a job, by its id.  About eleven round trips."""
    jid = _jid(context)
    cancelled = cancel_in(context.store, jid)
    return Done(context.gettext(_words(cancelled)), _back(context), target=jid, has_failed=not cancelled)


def _words(cancelled: Cancelled) -> str:
    if cancelled.running:
        return message("The job was told to end; it does so where its code looks whether it is cancelled.")
    if cancelled.removed:
        return message("The job did not run any more; it was removed from where it waited.")
    if cancelled.told:
        return message("The job is Ruby's and iterable: it ends after its current item.")
    return message("The job was not found: it has ended.")


def ask_to_kill(context: Context) -> Question:
    """Ask, with the names of job and process."""
    jid, process = _jid(context), context.request.form.get("process", "")
    text = context.gettext(
        "Kill the process %(process)s, since its job %(jid)s hangs? Its other jobs run again.",
        process=shorten(process, 100),
        jid=shorten(jid, 60),
    )
    return Question(text, context.gettext(KILL.button), _back(context))


def kill(context: Context) -> Done:
    """Have a supervisor kill the process that runs a job."""
    jid, identity = _jid(context), context.request.form.get("process", "")
    process = next((each for each in list_processes(context.store) if each.identity == identity), None)
    supervisor = None if process is None else process.supervisor
    if supervisor is None:
        text = context.gettext("This process is gone, or has no supervisor that could kill it.")
        return Done(text, _back(context), target=jid, has_failed=True)
    outcome = to_cluster(context, supervisor, KILL, jid=jid)
    return Done(outcome.text, _back(context), target=f"{jid} {identity}", has_failed=outcome.has_failed)


def _jid(context: Context) -> str:
    jid = context.request.form.get("jid", "")
    if not jid or len(jid) > MAX_JID_CHARACTERS or not jid.isprintable():
        raise BadRequest(context.gettext("This is no id of a job; nothing was changed."))
    return jid


def _back(context: Context) -> str:
    return context.url("busy")


PAGES = (Page("busy", "/busy", show_busy, "busy.html", message("Busy"), place=15, key="b"),)
ACTIONS = (
    Action("busy_cancel", "/busy/cancel", cancel),
    Action("busy_kill", "/busy/kill", kill, role=Role.ADMIN, question=ask_to_kill),
)
