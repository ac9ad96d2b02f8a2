"""Flaky: the tests that failed once, and passed when they ran again alone.  Mending them is the next thing to do.

tests/flaky.toml has an entry for each:

    [[test]]
    test = "tests/process/test_stop.py::test_…"
    date = 2026-02-14           # of the failure
    message = "waited 20 s in vain for: …"
    guess = "the deadline counts from the start of the machine's other work"

The list is no permission: a test in it runs and fails as any other.  It keeps what would otherwise be forgotten.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

__all__ = ["FILE", "MAX_AGE", "MAX_ENTRIES", "entries", "faults"]

FILE = Path(__file__).resolve().parents[1] / "flaky.toml"
MAX_ENTRIES = 10
MAX_AGE = timedelta(days=14)
FIELDS = {"test": str, "date": date, "message": str, "guess": str}


def entries(path: Path = FILE) -> list[dict[str, Any]]:
    """Return the entries of the list."""
    found: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("test", [])
    return found


def faults(found: list[dict[str, Any]], today: date) -> Iterator[str]:
    """Yield what is wrong with the list."""
    if len(found) > MAX_ENTRIES:
        yield f"{len(found)} entries: at most {MAX_ENTRIES}, mend one first"
    for entry in found:
        name = entry.get("test", "an entry")
        if entry.keys() != FIELDS.keys() or not all(
            isinstance(entry[key], FIELDS[key]) and entry[key] for key in FIELDS
        ):
            yield f"{name}: it needs {', '.join(FIELDS)}, and nothing else"
            continue
        if today - entry["date"] > MAX_AGE:
            yield f"{name}: is there for more than {MAX_AGE.days} days: mend the test or the product"
        if entry["date"] > today:
            yield f"{name}: {entry['date']} is yet to come"
        if not (FILE.parents[1] / name.partition("::")[0]).exists():
            yield f"{name}: there is no such file"
