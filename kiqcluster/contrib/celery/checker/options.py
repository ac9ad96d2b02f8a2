"""Options: the keywords of a declaration or a call, each with what it becomes by the catalogue and by the rules.

entry_of      the entry of an option, or the reason why it cannot have its value
of_keywords   keywords → findings
values_of     keywords → values; what `**options` may have is not known
of_build      the rules of Celery(…), by the settings that its arguments set
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kiqcluster.contrib.celery.catalogue import DECLARATION, Entry, change, find, none, works
from kiqcluster.contrib.celery.checker.finding import Finding, finding
from kiqcluster.contrib.celery.checker.source import Source
from kiqcluster.contrib.celery.checker.values import value_of
from kiqcluster.contrib.celery.rules import IGNORED_WHEN_FALSE, UNREAD, Refused, of_settings
from kiqcluster.contrib.celery.settings import OF_BUILD

__all__ = ["Rules", "entry_of", "no_rules", "of_build", "of_keywords", "values_of"]

Rules = Callable[[Mapping[str, Any]], Iterator[Refused]]
READ_BY_OTHERS = ("autoretry_for", "max_retries", "retry_kwargs")  # options that rules of other options ask for
STARRED = change("write the options out, so that they are checked")


def no_rules(_: Mapping[str, Any]) -> Iterator[Refused]:
    """Refuse nothing."""
    yield from ()


def values_of(source: Source, keywords: Sequence[ast.keyword]) -> dict[str, Any]:
    """Return option → value."""
    values = {each.arg: value_of(source, each.value) for each in keywords if each.arg is not None}
    is_whole = all(each.arg is not None for each in keywords)
    return values if is_whole else {**dict.fromkeys(READ_BY_OTHERS, UNREAD), **values}


def of_keywords(
    source: Source, keywords: Sequence[ast.keyword], kind: str, table: Mapping[str, Entry], rules: Rules
) -> Iterator[Finding]:
    """Yield a finding for each keyword."""
    values = values_of(source, keywords)
    refused = list(rules(values))
    for each in keywords:
        if each.arg is None:
            name, entry = "**", STARRED
        elif table is DECLARATION and each.arg in IGNORED_WHEN_FALSE and not values[each.arg]:
            name, entry = each.arg, works("remove it: it has no effect")
        else:
            name, entry = each.arg, entry_of(table, each.arg, refused)
        yield finding(source.path, each.value, kind, name, entry)


def entry_of(table: Mapping[str, Entry], name: str, refused: Sequence[Refused]) -> Entry:
    """Return the entry of an option, or the reason why it cannot have its value."""
    entry = find(table, name)
    reason = next((each.reason for each in refused if each.option == name), None)
    return entry if reason is None or entry.verdict == "none" else none(reason)


def of_build(values: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the arguments of Celery(…) that it cannot have."""
    settings = {OF_BUILD[name]: value for name, value in values.items() if name in OF_BUILD and value is not None}
    argument_of = {setting: name for name, setting in OF_BUILD.items()}
    for each in of_settings(settings):
        yield Refused(argument_of[each.option], each.reason)
