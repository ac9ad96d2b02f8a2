"""completion: the script that has a shell complete commands, options, queues and classes.

Names come from Redis while somebody presses Tab: if it does not answer within a second, there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from kiqcluster.api import JobRecord
from kiqcluster.ctl.text.options import ADDRESS_SETTINGS, CONTEXT_SETTINGS
from kiqcluster.errors import KiqError
from kiqcluster.process import config_sources
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["complete_classes", "complete_queues", "completion"]

COMPLETE_VARIABLE = "_KIQCTL_COMPLETE"  # in which the shell asks; click's name for it
TIMEOUT_SECONDS = 1.0
MAX_ENTRIES = 100  # of each set, whose classes are offered
RECENT_ROLLUPS = 144  # of minutes: the classes that ran in the last day


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what a SHELL reads to complete names.

    It completes commands, options, and the queues and classes that are in Redis.

    \b
      kiqctl completion bash
      kiqctl completion zsh
      kiqctl completion fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows all of the choices"
    click.echo(found(ctx.find_root().command, {}, "kiqctl", COMPLETE_VARIABLE).source())


def complete_queues(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the queues that begin so, as far as Redis answers."""
    return _matching(ctx, incomplete, _queues)


def complete_classes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the classes that begin so: those that ran within a day, and those of entries in the sets."""
    return _matching(ctx, incomplete, _classes)


def _matching(ctx: click.Context, incomplete: str, names: Callable[[Store], set[str]]) -> list[CompletionItem]:
    given = {name: ctx.params[name] for name in ("redis", "environment") if ctx.params.get(name)}
    try:
        config, _ = config_sources.load_part(ADDRESS_SETTINGS, given, file=ctx.params.get("config_file"))
        found = names(Store(config.known_redis(), timeout=TIMEOUT_SECONDS))
    except KiqError:
        return []
    return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete) and name.isprintable()]


def _queues(store: Store) -> set[str]:
    keys = store.keys
    return _texts(store.read_each([("SMEMBERS", keys.queues), ("SMEMBERS", keys.paused)]))


def _classes(store: Store) -> set[str]:
    keys, now = store.keys, datetime.fromtimestamp(SystemClock.now(), UTC)
    sets = [("ZRANGE", key, 0, MAX_ENTRIES - 1) for key in (keys.retry, keys.schedule, keys.dead)]
    times = [now - timedelta(minutes=10 * number) for number in range(RECENT_ROLLUPS)]
    replies = store.read_each([*sets, *(("HKEYS", keys.executions_rollup(at)) for at in times)])
    entries = [JobRecord(raw) for reply in replies[: len(sets)] if isinstance(reply, list) for raw in reply]
    ran = {name.rpartition("|")[0] for name in _texts(replies[len(sets) :])}
    return ran | {each.display_class for each in entries if each.is_job}


def _texts(replies: Sequence[Any]) -> set[str]:
    return {raw.decode(errors="replace") for reply in replies if isinstance(reply, list) for raw in reply}
