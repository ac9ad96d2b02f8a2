"""cancel: removes jobs by their ids wherever they wait, and tells those that run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from kiqcluster.control.cancellation import Cancelled, cancel_in
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, json_option, stores_options
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import clean
from kiqcluster.errors import ExitCode
from kiqcluster.store import Store

__all__ = ["cancel"]


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("jids", metavar="JID...", nargs=-1, required=True)
@stores_options
@json_option
@click.pass_context
def cancel(ctx: click.Context, stores: list[Store], output: Output, jids: tuple[str, ...]) -> None:
    """Cancel jobs by their ids, wherever they are.

    A job that waits (in a queue, in the schedule, for a retry, for a place) is removed; `kiqctl dropped` lists it for 7
    days. A running job is told: it ends where it asks (check_cancelled), or at its next iteration. A job of Ruby can be
    cancelled while it waits; running, only an iterable one (Sidekiq 7.3 and later). Exit code 1 if one was not found.

    \b
      kiqctl cancel b4a577edbccf1d805744efa9
      kiqctl cancel b4a577edbccf1d805744efa9 --json
    """
    is_missing, documents = False, []
    for jid in dict.fromkeys(jids):
        looks, missing = read_shards(stores, output, partial(cancel_in, jid=jid))
        is_missing |= bool(missing) or not any(looks)
        output.info(f"{clean(jid)}: {_words(looks)}")
        documents.append({"jid": jid, **_as_json(looks), **({"missing": missing} if missing else {})})
    output.document({"jobs": documents})
    ctx.exit(ExitCode.UNEXPECTED if is_missing else ExitCode.STOPPED)


def _words(looks: Sequence[Cancelled]) -> str:
    if any(each.removed for each in looks):
        return "cancelled, removed (kiqctl dropped)"
    if any(each.running for each in looks):
        return "cancelled, told: it ends where it asks"
    if any(each.told for each in looks):
        return "cancelled, told: an iterable job of Ruby ends at its next flush"
    if any(each.follows for each in looks):
        return "a later job of a chain under way: it is dropped when it would begin, within a day"
    return "nowhere to be found; it has ended, is dead, or runs in a Ruby process"


def _as_json(looks: Sequence[Cancelled]) -> dict[str, object]:
    removed, running = sum(each.removed for each in looks), sum(each.running for each in looks)
    return {"cancelled": any(looks), "removed": removed, "running": running, "told": any(each.told for each in looks)}
