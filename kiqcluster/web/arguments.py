"""Arguments: what pages show of a job's arguments.  The same filter as in logs, unless the application says otherwise.

1. encrypted      never shown
2. the hook       format_arguments(class, arguments) → text, None where it has nothing to say
3. the filter     numbers, and what the class declares (`loggable_arguments`), where the class is known in this process
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from kiqcluster.api import JobRecord
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT, LEFT_OUT_ARGUMENTS, filtered
from kiqcluster.application.registry import current_registry
from kiqcluster.process.logs.log import LOGGER
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.payload import ENCRYPT

__all__ = ["MAX_PAGE_CHARACTERS", "FormatArguments", "as_json", "other_keys", "shorten", "shown_arguments"]

FormatArguments = Callable[[str, list[Any]], str | None]
MARKS = (HIDDEN_ARGUMENT, LEFT_OUT_ARGUMENTS)  # of the filter, which are no values
ARGUMENT_KEYS = re.compile("args|arguments|params|cattr", re.IGNORECASE)  # unique_args, lock_args, …
MIN_HIDDEN_CHARACTERS = 4  # of an argument that is looked for in other keys
MAX_TEXTS, MAX_KEY_CHARACTERS = 500, 1_000
UNPRINTABLE = "[cannot be printed]"
MAX_LIST_CHARACTERS = 200  # of arguments, or a message, in a list
MAX_PAGE_CHARACTERS = 20_000  # on the page of one job


def shown_arguments(record: JobRecord, formatter: FormatArguments | None) -> str:
    """Return the arguments of a job as text."""
    arguments = record.display_args
    is_encrypted = bool(record[ENCRYPT]) or KEY_VERSION in record.payload
    if formatter is not None:
        open_ones = [*arguments[:-1], HIDDEN_ARGUMENT] if is_encrypted and arguments else arguments
        try:
            text = formatter(record.display_class, open_ones)
        except Exception:  # noqa: BLE001  # the application's code; its fault must neither show arguments nor break the page
            LOGGER.exception("format_arguments failed for %s", record.display_class)
            return HIDDEN_ARGUMENT
        if text is not None:
            return str(text)
    if not record.is_job:  # bytes that nobody can read may hold anything
        return HIDDEN_ARGUMENT if arguments else ""
    registry = current_registry()
    definition = registry.get(record.display_class) or registry.get(record.name)
    try:
        shown = filtered(arguments, record.payload, definition)
        return ", ".join(each if each in MARKS else as_json(each) for each in shown)
    except (ValueError, TypeError, RecursionError):
        return HIDDEN_ARGUMENT


def other_keys(pairs: Iterable[tuple[str, Any]], arguments: list[Any], shown: str) -> dict[str, str]:
    """Return other keys of a payload as text.  Middleware keeps arguments there, too: those are hidden.

    arguments: of the job.  shown: what of them is shown.
    """
    hidden = [text for text in _texts(arguments) if len(text) >= MIN_HIDDEN_CHARACTERS and text not in shown]
    found = {}
    for name, value in pairs:
        text = as_json(value)
        held, looked_at = set(_texts(value)), text[: 10 * MAX_KEY_CHARACTERS]
        has_hidden = any(each in held or each in looked_at for each in hidden)
        found[name] = HIDDEN_ARGUMENT if has_hidden or ARGUMENT_KEYS.search(name) else shorten(text, MAX_KEY_CHARACTERS)
    return found


def _texts(value: Any) -> list[str]:
    """Return the texts in a value, the first ones of very many."""
    found: list[str] = []
    waiting = [value]
    while waiting and len(found) < MAX_TEXTS:
        each = waiting.pop()
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
    return found


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON for people; of what JSON cannot say, that."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        return ruby_json.encode(value).decode(errors="replace")
    except (ValueError, TypeError, RecursionError):
        return UNPRINTABLE


def shorten(text: str, most: int = MAX_LIST_CHARACTERS) -> str:
    """Return as much of a text as a list has room for."""
    return text if len(text) <= most else f"{text[:most]}…"
