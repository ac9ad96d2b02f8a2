"""The jobs: one for each row of an import; one for each part of an export, and one that joins the parts."""

from __future__ import annotations

import csv
import shutil
from hashlib import sha256
from pathlib import Path

from kiqcluster import job
from kiqcluster.batches import Batch, NormalFailure

PART_ROWS = 10_000  # of an export: a part takes a second or two


@job
def handle_row(number: int, name: str, mail: str) -> None:
    """Take over one customer.  A row that is wrong stays wrong: it is not tried again."""
    if "@" not in mail:
        raise NormalFailure(f"row {number}: {mail!r} is not an address ({name})")


@job(retry=3)
def export_part(first: int, count: int, target: str) -> None:
    """Write some rows of an export to a file beside the target; a second run writes the same file again."""
    path = part_path(target, first)
    written = path.with_suffix(".new")
    with written.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows(first, count))
    written.rename(path)


@job
def join_parts(batch: str) -> None:
    """Join the parts in their order: the callback `on_success` of an export."""
    parts = sorted(each.params[:3] for each in Batch.get(batch).jobs())
    target = Path(parts[0][2])
    written = target.with_suffix(".new")
    with written.open("wb") as file:
        for first, _, name in parts:
            with part_path(name, first).open("rb") as part:
                shutil.copyfileobj(part, file)
    written.rename(target)
    for first, _, name in parts:
        part_path(name, first).unlink(missing_ok=True)


def part_path(target: str, first: int) -> Path:
    return Path(f"{target}.{first:09d}.part")


def rows(first: int, count: int) -> list[tuple[int, str, str]]:
    """Return orders, as a database would: number, checksum, amount."""
    return [
        (number, sha256(b"%d" % number).hexdigest(), f"{number * 37 % 100_000 / 100:.2f}")
        for number in range(first, first + count)
    ]
