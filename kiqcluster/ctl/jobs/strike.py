"""strike: defer or drop the jobs of a class, or with an argument, for a while."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from typing import Any

import click

from kiqcluster.api import StrikeSet
from kiqcluster.ctl.jobs.enqueue import parse_value
from kiqcluster.ctl.text.completion import complete_classes
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, DURATION, Output, json_option, stores_options
from kiqcluster.ctl.text.pager import DefaultListGroup
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import clean, format_duration, format_number, iso_time, number_column, text_column
from kiqcluster.errors import ExitCode, KiqError, UsageError
from kiqcluster.features.strikes import Strike
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store

__all__ = ["strike"]

COLUMNS = (
    text_column("ID"),
    text_column("JOBS", 16),
    text_column("ACTION"),
    text_column("ENDS IN"),
    number_column("STRUCK"),
    text_column("BY", 8),
    text_column("REASON", 8),
)


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def strike() -> None:
    """Defer or drop some jobs for a while.  Without a command, it is `list`.

    \b
      kiqctl strike
      kiqctl strike add SendInvoice --defer 5m --for 1h
    """


@strike.command("list", context_settings=CONTEXT_SETTINGS)
@stores_options
@json_option
@click.pass_context
def list_strikes(ctx: click.Context, stores: list[Store], output: Output) -> None:
    """Show the strikes, how many jobs each has deferred or dropped, and when it ends.  One round trip for each shard.

    \b
      kiqctl strike list
      kiqctl strike list --json
    """
    now = SystemClock.now()
    looks, missing = read_shards(stores, output, lambda store: (store.name, StrikeSet(store=store).list()))
    found = [(shard, *each) for shard, several in looks for each in several]
    if found:
        sharded_table(output, stores, COLUMNS, [(shard, _row(each, count, now)) for shard, each, count in found])
    else:
        output.info("there are no strikes")
    documents = [sharded_document(stores, _as_json(each, count), shard=shard) for shard, each, count in found]
    output.document(sharded_document(stores, {"strikes": documents}, missing=missing))
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@strike.command(context_settings=CONTEXT_SETTINGS)
@click.argument("targets", metavar="CLASS|ARG=VALUE...", nargs=-1, required=True, shell_complete=complete_classes)
@click.option("--defer", type=DURATION, metavar="SECONDS", help="try such jobs again after that time")
@click.option("--drop", is_flag=True, help="do not run such jobs; `kiqctl dropped` lists them for 7 days")
@click.option("--for", "seconds", type=DURATION, default="1h", metavar="SECONDS", help="until it ends  [1h]")
@click.option("--reason", default="", metavar="TEXT", help="shown in the list")
@stores_options
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    stores: list[Store],
    output: Output,
    targets: tuple[str, ...],
    defer: float | None,
    drop: bool,
    seconds: float,
    reason: str,
) -> None:
    """Defer or drop jobs of a class, with an argument, or both, for a while.

    ARG is the name of a parameter, or its position from 0; VALUE is JSON, or text.  Each process heeds it within 10 s.
    Jobs that run already go on.  Ruby's processes do not heed it.  It is for all shards, under one id, or for --shard.

    \b
      kiqctl strike add SendInvoice --defer 5m --for 1h --reason "the mail server is down"
      kiqctl strike add SendInvoice order_id=7 --drop --json
    """
    if (defer is None) == (not drop):
        raise UsageError("a strike defers or drops; pass --defer SECONDS or --drop")
    name, arguments = _read_targets(targets)
    identifier, who = "", f"{_user()}@{socket.gethostname()}"

    def add_to(store: Store) -> Strike:
        nonlocal identifier
        done = StrikeSet(store=store).add(
            "drop" if drop else "defer",
            seconds,
            name=name,
            arguments=arguments,
            delay=defer or 0.0,
            by=who,
            reason=reason,
            identifier=identifier,
        )
        identifier = done.id
        return done

    (added, *_), missing = read_shards(stores, output, add_to)
    output.info(f"strike {added.id}: {_jobs(added)} {_action(added)} for {format_duration(seconds)}")
    document = {"action": "add", "strike": _as_json(added, 0)}
    output.document({**document, "missing": missing} if len(stores) > 1 else document)
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@strike.command(context_settings=CONTEXT_SETTINGS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@stores_options
@json_option
@click.pass_context
def remove(ctx: click.Context, stores: list[Store], output: Output, ids: tuple[str, ...]) -> None:
    """End strikes.  What they have deferred comes back at its time; what they have dropped is in `kiqctl dropped`.

    \b
      kiqctl strike remove 3fa9c1
      kiqctl strike remove 3fa9c1 --json
    """

    def remove_from(store: Store) -> dict[str, bool]:
        return {each: StrikeSet(store=store).remove(each) for each in dict.fromkeys(ids)}

    looks, missing = read_shards(stores, output, remove_from)
    removed = {each: any(look[each] for look in looks) for each in dict.fromkeys(ids)}
    for each, was_there in removed.items():
        output.info(f"strike {clean(each)} {'removed' if was_there else 'is not there'}")
    output.document({"action": "remove", "removed": removed})
    if not all(removed.values()):
        raise KiqError("some strikes are not there; kiqctl strike list shows those that are")
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


def _read_targets(targets: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the class, "" for any, and the arguments.  Raises UsageError."""
    names = [each for each in targets if "=" not in each]
    if len(names) > 1:
        raise UsageError(f"a strike is about one class; add one for each of {', '.join(names)}")
    pairs = [each.partition("=") for each in targets if "=" in each]
    if any(not key for key, _, _ in pairs):
        raise UsageError("an argument is written as NAME=VALUE or POSITION=VALUE, as in order_id=7 or 0=7")
    return (names[0] if names else ""), {key: parse_value(value) for key, _, value in pairs}


def _user() -> str:
    """Return the name of the user, or their number where the system knows no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _jobs(strike: Strike) -> str:
    values = [f"{key}={ruby_json.encode(value).decode()}" for key, value in strike.arguments.items()]
    return clean(" ".join([strike.name or "any class", *values]))


def _action(strike: Strike) -> str:
    return "dropped" if strike.action == "drop" else f"deferred by {format_duration(strike.delay)}"


def _row(strike: Strike, count: int, now: float) -> tuple[str, ...]:
    left = format_duration(strike.until - now)
    words = (strike.id, _jobs(strike), _action(strike), left, format_number(count), strike.by, strike.reason)
    return tuple(map(clean, words))


def _as_json(strike: Strike, count: int) -> dict[str, Any]:
    return {
        "id": strike.id,
        "class": strike.name or None,
        "arguments": strike.arguments,
        "action": strike.action,
        "delay": strike.delay,
        "until": iso_time(strike.until),
        "struck": count,
        "by": strike.by,
        "reason": strike.reason,
    }
