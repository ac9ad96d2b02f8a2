"""Items: what the item of a push says, and what it lacks; for jobs that need not be registered here.

read_item           name, definition and payload keys of an item
check_presentable   refuses an item that Ruby's pages could not show
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiqcluster.application.options import merged
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.client.router import options_of
from kiqcluster.errors import InvalidArguments, InvalidPush
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.payload import WRAPPED, check_storable
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["check_presentable", "read_item"]

DEFAULT_OPTIONS: Mapping[str, JSON] = {"retry": True, "queue": "default"}
RESERVED_KEYS = frozenset({"class", "args", "jid", "created_at", "enqueued_at", "at"})


def read_item(setup: Setup, item: Mapping[str, Any]) -> tuple[str, Definition | None, dict[str, JSON]]:
    """Return name, definition (None for a job that is not registered here) and payload options of a push item."""
    if not isinstance(item, Mapping) or "class" not in item:
        raise InvalidPush(f"a job is a mapping with `class` and `args`, not {item!r}")
    if "wait_replicas" in item:  # it has no meaning in a payload
        raise InvalidPush("wait_replicas is an argument of push beside the item: push(item, wait_replicas=1)")
    job = item["class"]
    definition = getattr(job, "definition", None) or (current_registry().get(job) if isinstance(job, str) else None)
    name = definition.name if definition is not None else job
    if not isinstance(name, str) or not name:
        raise InvalidPush(f"class is a job or the name of one, not {job!r}")
    defaults = DEFAULT_OPTIONS
    if definition is not None:
        defaults = definition.options if "queue" in item else options_of(setup, definition)
    options = merged(defaults, {key: value for key, value in item.items() if key not in RESERVED_KEYS})
    if not isinstance(options["retry"], bool | int | None):
        raise InvalidPush(f"retry = {options['retry']!r} does not fit; it takes True, False, or how many retries")
    return name, definition, options


def check_presentable(item: Mapping[str, Any], name: str, options: Mapping[str, JSON], arguments: Any) -> None:
    """Raise InvalidPush for a key that Ruby's pages cannot show, or that JSON cannot store.

    arguments: of the job, or of the first of many.
    """
    if WRAPPED in options:
        raise InvalidPush(f"{WRAPPED} marks entries that keep other bytes; no push may have it")
    try:
        for key, value in options.items():
            check_storable(value, key)
    except InvalidArguments as error:
        raise InvalidPush(f"{name}: {error}") from error
    arguments = arguments if isinstance(arguments, list) else []  # another type is refused later, with a better message
    for key in misfits({"args": arguments, "class": name, "jid": item.get("jid", "-"), **options}):
        raise InvalidPush(
            f"{key} = {item.get(key)!r} does not fit: Sidekiq's web pages would break on it, or its poller lose the job"
        )
