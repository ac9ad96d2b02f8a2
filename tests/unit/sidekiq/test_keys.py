"""Keys: docs/reference/keys.md has every key of keys.py, spelled alike, with its type and what bounds it."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime

from kiqcluster.sidekiq.keys import Keys
from tests.kit import ROOT

AT = datetime(2026, 11, 22, 9, 5, tzinfo=UTC)
ROW = re.compile(r"^\| `(\w+)` \| `(.+?)` \| (\w+) \| (.+) \|$", re.MULTILINE)


def spelled(name: str) -> str:
    """Return a key with the names of its parameters in their places."""
    member = getattr(Keys(), name)
    if isinstance(member, str):
        return member
    places = inspect.signature(member).parameters
    return str(member(**{place: AT if place == "at" else f"<{place}>" for place in places}))


def test_the_table_of_keys_has_each_with_its_type_and_what_bounds_it() -> None:
    names = [name for name in vars(Keys) if not name.startswith("_") and name not in ("prefix", "shared")]
    kinds = {name: (inspect.getdoc(getattr(Keys, name)) or "").partition(":")[0] for name in names}

    rows = ROW.findall((ROOT / "docs/reference/keys.md").read_text())

    assert [(name, key.replace("\\|", "|"), kind) for name, key, kind, _ in rows] == [
        (name, spelled(name), kinds[name]) for name in names
    ]
    assert all(bound.strip() for *_, bound in rows)
