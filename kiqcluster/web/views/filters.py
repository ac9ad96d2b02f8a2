"""Filters: which jobs of a set a page shows, from the query of its address, or the fields of a form.

Arguments are searched as they are shown, so that nobody finds out by a search what the filter of arguments hides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest

from kiqcluster.api.bulk import Selection, find_place
from kiqcluster.api.bulk.verbs import Target
from kiqcluster.api.sets import JobSet
from kiqcluster.process.durations import parse_duration
from kiqcluster.store import Store
from kiqcluster.store.search import Place
from kiqcluster.web.context import Context
from kiqcluster.web.formats import shown_time
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import CONFIRMED
from kiqcluster.web.security.entry_keys import EntryKeys
from kiqcluster.web.security.guard import TOKEN_FIELD
from kiqcluster.web.views.set_kinds import LABELS, QueueKind, SetKind

__all__ = ["Filter", "cursor_of", "place_of_cursor", "read_filter", "read_strict_filter", "read_target", "words_of"]

NAMES = {
    "class": "name",
    "queue": "queue",
    "error": "error",
    "args": "arguments",
    "jid": "jid",
    "tag": "tag",
}  # → of a selection
PARTS = ("error", "args")  # fields that are a part of a text, with its spaces
OTHER_FIELDS = frozenset(
    (TOKEN_FIELD, CONFIRMED, "key", "when", "target", "sort", "after", "before", "have")
)  # of queries and forms that have a filter, too
MAX_FIELD_CHARACTERS = 500
MAX_TOLD_CHARACTERS = 60  # of what was given, in a message
CURSOR = re.compile(r"([-+.0-9einf]{1,40})-([0-9a-f]{16})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Filter:
    """fields: as they were written, without empty ones.  selection: what they mean.  error: why one means nothing."""

    fields: Mapping[str, str]
    selection: Selection
    error: str = ""


def read_filter(context: Context, kind: SetKind | QueueKind, values: MultiDict[str, str]) -> Filter:
    """Return the filter of a query or a form.

    Raises BadRequest for what it would have to leave out, for more jobs would be meant than somebody has asked for: a
    field that these jobs do not have, another value of a field, a blank or too long text.
    """
    given = {name: list(filter(None, texts)) for name, texts in values.lists() if name not in OTHER_FIELDS}
    for name, texts in given.items():
        if texts and name not in kind.fields:
            names = ", ".join(kind.fields)
            raise BadRequest(context.gettext(NO_FIELD, words=name[:MAX_TOLD_CHARACTERS], names=names))
    fields = {name: _text(context, name, given[name]) for name in kind.fields if given.get(name)}
    now, bounds, error = context.clock.now(), {}, ""
    for name, bound in (("from", "lowest"), ("to", "highest")):
        if name in fields:
            try:
                bounds[bound] = read_time(fields[name], now, is_ahead=kind.is_ahead)
            except ValueError:
                error = context.gettext(NOT_A_TIME, words=fields[name][:MAX_TOLD_CHARACTERS])
    parts = {NAMES[name]: text for name, text in fields.items() if name in NAMES}
    return Filter(fields, Selection(**parts, **bounds), error)  # type: ignore[arg-type]  # names of its fields


def read_strict_filter(context: Context, kind: SetKind | QueueKind, values: MultiDict[str, str]) -> Filter:
    """Return the filter of a query or a form for what shows nobody the error of a filter first.  Raises BadRequest."""
    chosen = read_filter(context, kind, values)
    if chosen.error:
        raise BadRequest(chosen.error)
    return chosen


NOT_A_TIME = message("“%(words)s” is no time. Write 15m, 2h, 7d, or 2026-11-20T09:59Z.")
NO_FIELD = message("These jobs have no filter “%(words)s”; nothing was done. Their filters are: %(names)s.")
TWO_VALUES = message("The filter “%(words)s” has two values; nothing was done. Give it one.")
BLANK = message("The filter “%(words)s” is blank; nothing was done. Leave it out to mean all.")
TOO_LONG = message("The filter “%(words)s” has more than %(most)s characters; nothing was done. Give a shorter text.")


def _text(context: Context, name: str, texts: Sequence[str]) -> str:
    """Return the text of a field.  Raises BadRequest."""
    text = texts[0] if name in PARTS else texts[0].strip()
    if any(each != texts[0] for each in texts):
        raise BadRequest(context.gettext(TWO_VALUES, words=context.gettext(LABELS[name])))
    if not text:
        raise BadRequest(context.gettext(BLANK, words=context.gettext(LABELS[name])))
    if len(text) > MAX_FIELD_CHARACTERS:
        label = context.gettext(LABELS[name])
        raise BadRequest(context.gettext(TOO_LONG, words=label, most=MAX_FIELD_CHARACTERS))
    return text


def read_time(text: str, now: float, *, is_ahead: bool) -> float:
    """Return an epoch second: of a duration ago, or ahead; of a time, in UTC without a zone.  Raises ValueError."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return now + seconds if is_ahead else now - seconds


def read_target(context: Context, needs: str) -> Target:
    """Return where entries go, from a form.  Raises BadRequest where it does not say."""
    text = context.request.form.get(needs, "").strip() if needs else ""
    if needs and not text:
        raise BadRequest(context.gettext("Say when, or where to; nothing was changed."))
    if needs == "when":
        try:
            at = read_time(text, context.clock.now(), is_ahead=True)
        except (ValueError, OverflowError) as error:
            raise BadRequest(context.gettext(NOT_A_TIME, words=text[:MAX_TOLD_CHARACTERS])) from error
        return Target(at=at)
    return Target(queue=text) if needs else Target()


def words_of(context: Context, selection: Selection) -> list[tuple[str, str]]:
    """Return what a selection means, as pairs of label and text."""
    found = [(LABELS[name], str(getattr(selection, field) or "")) for name, field in NAMES.items()]
    found += [
        (LABELS[name], shown_time(at))
        for name, at in (("from", selection.lowest), ("to", selection.highest))
        if at is not None
    ]
    return [(context.gettext(label), text) for label, text in found if text]


# where a page begins: behind an entry, and not at a number, since others change the set


def cursor_of(entry_keys: EntryKeys, place: Place) -> str:
    """Return a place as text for an address."""
    return f"{float(place.score)!r}-{entry_keys.digest_of(place.payload)}-{place.after}"


def place_of_cursor(
    entry_keys: EntryKeys, text: str, job_set: JobSet, store: Store, *, newest_first: bool
) -> Place | None:
    """Return the place of a text, None for what is none.  One round trip."""
    found = CURSOR.fullmatch(text)
    if found is None:
        return None
    try:
        score = float(found[1])
    except ValueError:
        return None
    if score != score:
        return None

    def is_it(raw: bytes) -> bool:
        return entry_keys.digest_of(raw) == found[2]

    return find_place(job_set, store, score, int(found[3]), is_it, newest_first=newest_first)
