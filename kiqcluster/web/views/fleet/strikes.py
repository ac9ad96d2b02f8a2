"""Strikes: jobs of a class, or with an argument, that are deferred or dropped for a while.

/strikes   those in force, with how many jobs each has struck; add one, with a preview of what it is about; remove one

The preview looks at some of the waiting jobs and compares hidden arguments, too.  Who may add a strike could tell by it
what an argument is, as by the strike itself: an administrator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import BadRequest

from kiqcluster.api import JobRecord
from kiqcluster.api.strikes import ACTIONS as STRIKE_ACTIONS
from kiqcluster.api.strikes import Strike, StrikeSet
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT
from kiqcluster.application.registry import current_registry
from kiqcluster.errors import UsageError
from kiqcluster.ipc.stdio import clean
from kiqcluster.process.durations import parse_duration
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store.wire import Reply, WrongType
from kiqcluster.web.arguments import as_json, shorten
from kiqcluster.web.context import Context
from kiqcluster.web.formats import duration
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.users import Role

__all__ = ["ACTIONS", "PAGES"]

MAX_PREVIEWED_QUEUES, MAX_PREVIEWED_JOBS = 100, 100  # jobs of each queue and set
MAX_NAME_CHARACTERS, MAX_REASON_CHARACTERS, MAX_ARGUMENTS_CHARACTERS = 500, 500, 5_000
SHOWN_QUEUES = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a form asks for."""

    name: str
    arguments: Mapping[str, Any]
    action: str
    seconds: float
    delay: float
    reason: str

    def as_strike(self, until: float) -> Strike:
        return Strike("", self.name, self.action, until, self.delay, self.arguments)


def show_strikes(context: Context) -> Mapping[str, Any]:
    """Show them.  One round trip."""
    shows_values = context.user.role >= Role.OPERATE
    rows = [
        {
            "strike": strike,
            "count": count,
            "arguments": [
                (key, _value(value) if shows_values else HIDDEN_ARGUMENT) for key, value in strike.arguments.items()
            ],
        }
        for strike, count in StrikeSet(store=context.store, clock=context.clock).list()
    ]
    return {"rows": rows, "actions": STRIKE_ACTIONS}


def _value(value: Any) -> str:
    return shorten(as_json(value), 100)


# actions


def ask_to_add(context: Context) -> Question:
    """Ask, with what waits now and would be struck.  Two round trips."""
    wanted = _read_form(context)
    what = _described(context, wanted)
    drop, defer = message("Drop %(what)s for %(time)s?"), message("Defer %(what)s for %(time)s, each by %(delay)s?")
    values = {"what": what, "time": duration(wanted.seconds), "delay": duration(wanted.delay)}
    words = context.gettext(drop if wanted.action == "drop" else defer, **values)
    return Question(f"{words} {_preview(context, wanted)}", context.gettext("Add"), context.url("strikes"), False)


def _preview(context: Context, wanted: Wanted) -> str:
    """Return in words which of the waiting jobs are meant, as far as it was looked."""
    definition = next((each for each in current_registry() if each.name == wanted.name), None)
    parameters = () if definition is None else tuple(definition.signature.parameters)
    named = [key for key in wanted.arguments if key not in parameters and not key.isdecimal()]
    if named:
        return context.gettext(
            "Which jobs are meant cannot be shown: only the application knows which argument is called %(name)s.",
            name=shorten(named[0], 60),
        )
    strike = wanted.as_strike(context.clock.now())
    looked, found = 0, Counter[str]()
    for place, job in _waiting(context):
        looked += 1
        if strike.is_about(job.name, job.args, parameters) or strike.is_about(
            job.display_class, job.display_args, parameters
        ):
            found[place] += 1
    places = ", ".join(f"{shorten(place, 40)}: {count}" for place, count in found.most_common(SHOWN_QUEUES))
    text = context.gettext(
        "Of %(looked)s waiting jobs that were looked at, %(count)s are meant now",
        looked=f"{looked:,}",
        count=f"{found.total():,}",
    )
    return f"{text} ({places})." if places else f"{text}."


def _waiting(context: Context) -> Iterator[tuple[str, JobRecord]]:
    """Yield some of the jobs that wait: the next ones of each queue, and those due next.  Two round trips."""
    keys = context.store.keys
    (reply,) = context.store.read_each([("SMEMBERS", keys.queues)])
    names = sorted(each.decode(errors="replace") for each in _as_list(reply))[:MAX_PREVIEWED_QUEUES]
    commands: list[tuple[str | int, ...]] = [
        *(("LRANGE", keys.queue(each), -MAX_PREVIEWED_JOBS, -1) for each in names),
        ("ZRANGE", keys.retry, 0, MAX_PREVIEWED_JOBS - 1),
        ("ZRANGE", keys.schedule, 0, MAX_PREVIEWED_JOBS - 1),
    ]
    replies = context.store.read_each(commands)
    places = [*names, context.gettext("Retries"), context.gettext("Scheduled")]
    for place, found in zip(places, replies, strict=True):
        yield from ((place, JobRecord(raw)) for raw in _as_list(found))


def _as_list(reply: Reply | WrongType) -> list[bytes]:
    return [] if isinstance(reply, WrongType) else list(reply)


def add(context: Context) -> Done:
    """Add one.  Two round trips."""
    wanted = _read_form(context)
    try:
        strike = StrikeSet(store=context.store, clock=context.clock).add(
            wanted.action,
            wanted.seconds,
            name=wanted.name,
            arguments=wanted.arguments,
            delay=wanted.delay,
            by=f"web@{clean(context.user.name)[:100]}",
            reason=wanted.reason,
        )
    except UsageError as error:
        raise BadRequest(str(error)) from error
    text = context.gettext("The strike %(id)s is in force; every process heeds it within ten seconds.", id=strike.id)
    return Done(text, context.url("strikes"), target=f"{strike.id} {wanted.name or 'any class'} {wanted.action}")


def remove(context: Context) -> Done:
    """Remove one.  One round trip."""
    identifier = context.request.form.get("id", "")
    is_removed = StrikeSet(store=context.store, clock=context.clock).remove(identifier)
    done = message("The strike is removed; what it has deferred comes back at its time.")
    text = done if is_removed else message("There is no such strike any more.")
    return Done(context.gettext(text), context.url("strikes"), target=identifier[:100], has_failed=not is_removed)


def _described(context: Context, wanted: Wanted) -> str:
    pairs = [f"{shorten(key, 40)}={shorten(as_json(value), 60)}" for key, value in wanted.arguments.items()]
    name = wanted.name or context.gettext("any class")
    return " ".join([shorten(name, 100), *pairs])


def _read_form(context: Context) -> Wanted:
    """Return what the form asks for.  Raises BadRequest."""
    form = context.request.form
    name, reason = form.get("class", "").strip(), form.get("reason", "").strip()
    arguments = _arguments(context, form.get("arguments", ""))
    if not name and not arguments:
        raise BadRequest(context.gettext("Name a class, an argument, or both; nothing was changed."))
    is_long = len(form.get("arguments", "")) > MAX_ARGUMENTS_CHARACTERS
    if is_long or len(name) > MAX_NAME_CHARACTERS or len(reason) > MAX_REASON_CHARACTERS:
        raise BadRequest(context.gettext("This text is too long; nothing was changed."))
    action = form.get("action", "")
    if action not in STRIKE_ACTIONS:
        raise BadRequest(context.gettext("A strike defers or drops; nothing was changed."))
    seconds, delay = _seconds(context, form.get("for", "")), _seconds(context, form.get("delay", "") or "5m")
    return Wanted(name, arguments, action, seconds, delay, reason)


def _arguments(context: Context, text: str) -> dict[str, Any]:
    """Return the arguments of a text: ARG=VALUE, one in a line; VALUE is JSON, or text."""
    found = {}
    for line in text.splitlines():
        if line.strip():
            key, separator, value = line.strip().partition("=")
            if not separator or not key.strip():
                raise BadRequest(context.gettext("Write an argument as NAME=VALUE or POSITION=VALUE, one in a line."))
            found[key.strip()] = _parse_value(value.strip())
    return found


def _parse_value(text: str) -> Any:
    try:
        return ruby_json.decode(text.encode(errors="surrogatepass"))
    except ruby_json.Undecodable:
        return text


def _seconds(context: Context, text: str) -> float:
    try:
        seconds = parse_duration(text.strip())
    except ValueError as error:
        raise BadRequest(
            context.gettext(
                "%(word)s is no duration; write it as in 90s, 15m, 1h30m or 2d.", word=shorten(text, 40) or "–"
            )
        ) from error
    if seconds <= 0:
        raise BadRequest(context.gettext("A duration is longer than nothing; nothing was changed."))
    return seconds


PAGES = (Page("strikes", "/strikes", show_strikes, "strikes.html", message("Strikes"), place=110, key="x"),)
ACTIONS = (
    Action("strike_add", "/strikes/add", add, role=Role.ADMIN, question=ask_to_add),
    Action("strike_remove", "/strikes/remove", remove, role=Role.ADMIN),
)
