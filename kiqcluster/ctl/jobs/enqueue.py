"""enqueue: one job, of any class, from a shell."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from math import isfinite
from typing import Any

import click

from kiqcluster.application.registry import current_registry
from kiqcluster.client.client import Client
from kiqcluster.control.process_registry import list_processes
from kiqcluster.ctl.text.application import load_application
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, DURATION, Output, json_option, redis_options
from kiqcluster.ctl.text.tables import iso_time, pluralize
from kiqcluster.errors import ExitCode, InvalidArguments, InvalidPush, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import scheduled_at
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.active_job import WRAPPER, enveloped
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store

__all__ = ["TIME", "enqueue", "parse_value"]

ROUTE_CHARACTERS = frozenset("/$|#?%")  # of which routes, links and metric fields of Sidekiq 7 and 8 are made
MAX_QUEUES_SHOWN = 10  # names of queues in a warning
RESERVED_KEYS = frozenset(
    {"args", "at", "class", "created_at", "enqueued_at", "queue", "wait_replicas"}
)  # no business of --set


def parse_value(text: str) -> JSON:
    """Return what a word of the command line means: JSON where it is that, else the text."""
    try:
        return ruby_json.decode(text.encode(errors="surrogateescape"))
    except ruby_json.Undecodable:
        return text


class Time(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """Epoch seconds, or a date and time with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            return self._read(value, param, ctx)
        if not isfinite(seconds):
            self.fail(f"{value!r} is not a valid time; write 2026-11-20T09:59Z, or epoch seconds", param, ctx)
        return self._due(seconds, param, ctx)

    def _read(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid time; write 2026-11-20T09:59Z, or epoch seconds", param, ctx)
        if at.tzinfo is None:
            local = at.isoformat(timespec="minutes" if not at.second else "auto")
            self.fail(f"{value!r} has no zone; write {local}Z, or another one as in {local}+02:00", param, ctx)
        return self._due(at, param, ctx)

    def _due(self, at: float | datetime, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return scheduled_at(at, 0.0)
        except InvalidPush as error:
            self.fail(str(error), param, ctx)


TIME = Time()


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("name", shell_complete=complete_classes)
@click.argument("args", nargs=-1)
@click.option(
    "--queue", metavar="NAME", default="default", shell_complete=complete_queues, help="where it goes  [default]"
)
@click.option("--in", "delay", type=DURATION, help="after which it is due, instead of at once")
@click.option("--at", type=TIME, help="when it is due: 2026-11-20T09:59Z, or epoch seconds")
@click.option(
    "--retry",
    metavar="true|false|COUNT",
    help="whether, or how often, it is tried again; its class is not asked  [true]",
)
@click.option("--active-job", "is_active_job", is_flag=True, help="NAME is an ActiveJob's: in the envelope of these")
@click.option("--set", "settings", multiple=True, metavar="KEY=JSON", help="any other key of the payload; repeatable")
@click.option(
    "-r", "--require", multiple=True, metavar="APP", help="module or file that defines NAME: ARGS are checked by it"
)
@redis_options
@json_option
@click.pass_context
def enqueue(
    ctx: click.Context,
    store: Store,
    output: Output,
    name: str,
    args: tuple[str, ...],
    queue: str,
    delay: float | None,
    at: float | None,
    retry: str | None,
    is_active_job: bool,
    settings: tuple[str, ...],
    require: tuple[str, ...],
) -> None:
    """Enqueue a job of the class NAME, Python's or Ruby's.

    It prints the jid.  Without --retry it is retried as often as Sidekiq does by default, whatever its class
    declares.  Jobs of Rails' ActiveJob need --active-job: without their envelope they fail each time.

    Each of ARGS is JSON where it can be read as that, else text: 7 is a number, seven and
    '"7"' are texts.  After --, nothing is an option any more, as -5 would be.
    With -r, the class is asked: its options apply, and ARGS that do not fit `perform` are refused.

    \b
      kiqctl enqueue SendInvoice 7 EUR
      kiqctl enqueue Reports::Yearly 2026 --queue reports --in 15m --retry false
      kiqctl enqueue resize_image photo.png '{"width": 200}' --set 'tags=["by hand"]' --json
      kiqctl enqueue GuestsCleanupJob '{"after": 7}' --active-job --queue low
      kiqctl enqueue Adjust --at 2030-01-01T09:00Z -- -5
    """
    if delay is not None and at is not None:
        raise UsageError("--in and --at both say when; leave one out")
    _load(require, name)
    now = SystemClock.now()
    due = at if delay is None else now + delay
    arguments = list(map(parse_value, args))
    item: dict[str, Any] = {**_read_settings(settings), "class": name, "args": arguments, "queue": queue}
    item |= _enveloped(name, queue, arguments, now) if is_active_job else {}
    item |= {} if retry is None else {"retry": _read_retry(retry)}
    item |= {} if due is None else {"at": due}
    warning = "; ".join(_warnings(store, name, queue))  # before the push: nothing that fails may hide the jid
    jid = _push(store, item)
    is_scheduled = due is not None and due > now
    output.info(str(jid))
    if warning:
        output.error(warning)
    document = {"jid": jid, "class": name, "args": arguments, "queue": queue, "at": due if is_scheduled else None}
    output.document({**document, "due": iso_time(due) if is_scheduled else None, "warning": warning or None})
    ctx.exit(ExitCode.STOPPED)


def _load(require: tuple[str, ...], name: str) -> None:
    """Import the application that defines the job, if one is named.  Raises ApplicationError, UsageError."""
    if not require:
        return
    load_application(require)
    if current_registry().get(name) is None:
        raise UsageError(f"the application has no job named {name}, so that it says nothing of its arguments")


def _push(store: Store, item: dict[str, Any]) -> Jid | None:
    """Enqueue the job; return its jid.  Raises UsageError."""
    try:
        return Client(store).push(item)
    except (InvalidPush, InvalidArguments) as error:
        raise UsageError(str(error)) from error


def _read_retry(text: str) -> JSON:
    value = parse_value(text)
    if isinstance(value, bool) or (isinstance(value, int) and value >= 0):
        return value
    raise UsageError(f"--retry {text}: it takes true, false, or how many retries")


def _read_settings(settings: tuple[str, ...]) -> dict[str, JSON]:
    """Return the keys of the payload that --set names.  Raises UsageError."""
    found: dict[str, JSON] = {}
    for each in settings:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise UsageError(f"--set {each}: it takes KEY=JSON, as in --set 'tags=[\"vip\"]'")
        if key in RESERVED_KEYS:
            raise UsageError(
                f"--set {key}: that key is not for setting; NAME, ARGS, --queue, --in and --at say what it holds"
            )
        found[key] = parse_value(text)
    return found


def _enveloped(name: str, queue: str, arguments: list[JSON], now: float) -> dict[str, JSON]:
    """Return what is different in the payload of an ActiveJob.  Raises UsageError."""
    try:
        return {"class": WRAPPER, "wrapped": name, "args": [enveloped(name, queue, arguments, now)]}
    except InvalidArguments as error:
        raise UsageError(str(error)) from error


def _warnings(store: Store, name: str, queue: str) -> Iterator[str]:
    """Yield what may keep the job from being run, as far as the fleet shows it, or shown.  Three round trips."""
    if store.call("SISMEMBER", store.keys.paused, queue):
        yield f"the queue {queue} is paused; the job waits until somebody resumes it"
    warning = _no_listener_warning(store, queue)
    if warning:
        yield warning
    strange = sorted(ROUTE_CHARACTERS.intersection(name))
    if strange:
        yield f"the class name {name} contains {' and '.join(strange)}, on which pages of Sidekiq's web UI fail"


def _no_listener_warning(store: Store, queue: str) -> str:
    fleet = list_processes(store)
    if any(process.may_listen_to(queue) for process in fleet):
        return ""
    listened = sorted({name for process in fleet for name in process.queues})
    names = ", ".join(listened[:MAX_QUEUES_SHOWN]) + (" …" if len(listened) > MAX_QUEUES_SHOWN else "")
    where = f"{pluralize(len(fleet), 'process', 'processes')} listening to {names}" if fleet else "there is none at all"
    return f"no process listens to the queue {queue} ({where}); the job waits until one does"
