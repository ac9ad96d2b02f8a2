"""Naming: which entries of a set, or which running job, an id names.

An id may be shortened, as tables shorten it: a beginning of at least 6 characters stands for the one id that begins
with it.  Two entries may have the same id; it names both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kiqcluster.api import JobRecord, JobSet, SortedEntry
from kiqcluster.api.records import is_verbatim
from kiqcluster.ctl.tables import clean
from kiqcluster.errors import UsageError
from kiqcluster.store.search import MAX_TEXTS

__all__ = ["MIN_BEGINNING", "candidates", "entries_named", "in_full", "is_beginning"]

MIN_BEGINNING = 6  # characters
MAX_SHOWN = 3  # ids in a message


def candidates(place: JobSet | Iterable[JobRecord], jids: Collection[str]) -> Iterable[JobRecord]:
    """Return the jobs of a set or queue among which those of these ids are: a few, if Redis can look for them."""
    holding = getattr(place, "holding", None)
    if holding is None or len(jids) > MAX_TEXTS or not all(map(is_verbatim, jids)):
        return place  # ids with escapes in JSON, or too many to look for: read everything
    found: Iterable[JobRecord] = holding([jid.encode() for jid in jids])
    return found


def entries_named(job_set: JobSet, jids: Sequence[str]) -> Mapping[str, list[SortedEntry]]:
    """Return the entries that each id names, as far as there are any.  It looks through the whole set.

    Raises UsageError for a beginning that several ids have.
    """
    exact: dict[str, dict[bytes, SortedEntry]] = {}
    begun: dict[str, dict[bytes, SortedEntry]] = {}
    wanted = set(jids)
    for record in candidates(job_set, jids):
        assert isinstance(record, SortedEntry)
        if record.jid in wanted:
            exact.setdefault(record.jid, {})[record.raw] = record
        for jid in jids:
            if is_beginning(jid, record.jid):
                begun.setdefault(jid, {})[record.raw] = record
    found = {jid: list((exact.get(jid) or begun.get(jid, {})).values()) for jid in jids}
    for jid, entries in found.items():
        _refuse_several(jid, {entry.jid for entry in entries})
    return {jid: entries for jid, entries in found.items() if entries}


def is_beginning(jid: str, full: str) -> bool:
    """Return whether an id may stand for another that begins with it."""
    return len(jid) >= MIN_BEGINNING and full.startswith(jid)


def in_full(jid: str, known: Collection[str]) -> str:
    """Return the one of the known ids that an id names; itself, where none is.

    Raises UsageError for a beginning that several ids have.
    """
    several = {jid} if jid in known else {full for full in known if is_beginning(jid, full)}
    _refuse_several(jid, several)
    return next(iter(several), jid)


def _refuse_several(jid: str, several: Collection[str]) -> None:
    if len(several) > 1:
        shown = ", ".join(map(clean, sorted(several)[:MAX_SHOWN])) + (" …" if len(several) > MAX_SHOWN else "")
        raise UsageError(f"{clean(jid)} is the beginning of {len(several)} ids; write more of it: {shown}")
