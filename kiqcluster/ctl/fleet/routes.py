"""routes: to which queue each job class goes, by which routing rule; whether all of the application has the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from kiqcluster.control.process_registry import RegisteredProcess, list_processes
from kiqcluster.ctl.text.application import ClassRoute, load_routes, routing_options
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, json_option
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import clean, format_number, pluralize, text_column
from kiqcluster.errors import ExitCode, StoreError
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.routing import Rules, digest
from kiqcluster.store import Store, is_outage
from kiqcluster.store.shards import DEFAULT_SHARD, shards_digest

__all__ = ["routes"]

NO_RULES = "none"  # shown in place of a digest
COLUMNS = (
    text_column("CLASS", 12),
    text_column("QUEUE", 8),
    text_column("SHARD", 8),  # only where there are some
    text_column("RULE", 4),
    text_column("BECAUSE", 16),
)


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--check", "is_check", is_flag=True, help="exit 1 if a process has other rules or shards, or one is away")
@routing_options
@json_option
@click.pass_context
def routes(ctx: click.Context, store: Store, output: Output, require: tuple[str, ...], is_check: bool) -> None:
    """Show to which queue the jobs of each class go, and why.

    The rules are those of the configuration here, and the classes those of the application, which is imported.  Then
    it compares the rules and the map of shards with those of the application's processes of all shards.  Two round
    trips, one more per 500 processes.

    \b
      kiqctl routes -r app.jobs
      kiqctl routes -r app.jobs --check --json
    """
    rules, found = load_routes(require)
    columns = COLUMNS if any(each.shard for each in found) else (*COLUMNS[:2], *COLUMNS[3:])
    output.table(columns, [_row(rules, each, len(columns)) for each in found], indent=0)
    ours = digest(rules)
    output.info(f"rules: {format_number(len(rules))}, digest: {ours or NO_RULES}")
    for number in sorted(set(range(len(rules))) - {each.index for each in found}):
        output.error(f"rule {number + 1} ({rules[number].selector.text}) routes no class of this application")
    config = current_setup().current_config()
    stores = [store, *(Store(each.redis, name=each.name) for each in config.shards if each.name != store.name)]
    application = replace(config, require=require or config.require).known_cron_application()
    fleet, problem = _compare(stores, application, ours, shards_digest(config.shards), output)
    if problem:
        output.error(problem)
    code = ExitCode.UNEXPECTED if is_check and problem else ExitCode.STOPPED
    output.document({**_document(rules, found, fleet), "ok": code == ExitCode.STOPPED, "problem": problem or None})
    ctx.exit(code)


def _compare(
    stores: Sequence[Store], application: str, rules: str, shards: str, output: Output
) -> tuple[list[RegisteredProcess], str]:
    """Return the processes of an application, all of ours if it has none; and the problem, "" for none: other rules or
    shards than these digests, or shards away.
    """
    try:
        found, missing = read_shards(stores, output, list_processes)
    except StoreError as error:
        if not is_outage(error):
            raise
        return [], f"not compared with the fleet: {error}"
    everyone = [process for several in found for process in several if process.is_ours]
    fleet = [process for process in everyone if process.application == application] or everyone
    problems = [f"not compared with the shards {', '.join(missing)}"] if missing else []
    if others := [process for process in fleet if process.routing != rules]:
        problems = [_in_words(others, len(fleet))]
    elif fleet:
        output.info(f"{pluralize(len(fleet), 'process has', 'processes have')} the same rules")
    if others := [process for process in fleet if process.shards != shards]:
        words = f"{format_number(len(others))} of {pluralize(len(fleet), 'process', 'processes')} have other [shards]"
        problems.append(f"{words}, as {clean(others[0].identity)}; give all nodes the same")
    return fleet, "; ".join(problems)


def _row(rules: Rules, route: ClassRoute, columns: int) -> tuple[str, ...]:
    number, because = "", "no rule matches: its own queue" if rules else "its own queue"
    if route.index is not None:
        rule = rules[route.index]
        number, because = str(route.index + 1), rule.selector.text + ("" if rule.queue else ", which leaves its queue")
    place = (route.queue, route.shard or DEFAULT_SHARD) if columns == len(COLUMNS) else (route.queue,)
    return route.name, *place, number, because


def _in_words(others: Sequence[RegisteredProcess], total: int) -> str:
    first = others[0]
    return (
        f"{format_number(len(others))} of {pluralize(total, 'process', 'processes')} here have other rules, as "
        f"{clean(first.identity)} ({clean(first.routing) or NO_RULES}); give all nodes the same rules"
    )


def _document(rules: Rules, found: Sequence[ClassRoute], fleet: Sequence[RegisteredProcess]) -> dict[str, Any]:
    counts = Counter(each.index for each in found)
    return {
        "digest": digest(rules),
        "rules": [
            {
                "rule": number + 1,
                "selector": rule.selector.text,
                "queue": rule.queue,
                "shard": rule.shard or DEFAULT_SHARD,
                "classes": counts[number],
            }
            for number, rule in enumerate(rules)
        ],
        "routes": [
            {
                "class": each.name,
                "queue": each.queue,
                "shard": each.shard or DEFAULT_SHARD,
                "own_queue": each.own,
                "rule": None if each.index is None else each.index + 1,
                "selector": None if each.index is None else rules[each.index].selector.text,
            }
            for each in found
        ],
        "fleet": [
            {"identity": each.identity, "application": each.application, "digest": each.routing} for each in fleet
        ],
    }
