"""The command: create the batch of an import or an export, and print its status until it is complete."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

from examples.import_export.jobs import PART_ROWS, export_part, handle_row, join_parts
from kiqcluster.batches import Batch

POLL_SECONDS = 0.2
WRONG_EVERY = 1_000  # rows of the file that is made: one has no address


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.import_export", description=__doc__)
    parser.add_argument("what", choices=("import", "export"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, help="10 000 for an import, 500 000 for an export")
    given = parser.parse_args()
    began = time.monotonic()
    if given.what == "import":
        batch = start_import(given.file, given.rows or 10_000)
    else:
        batch = start_export(given.file.resolve(), given.rows or 500_000)
    follow(batch)
    if given.what == "export":
        wait_for(given.file)
    print(f"{time.monotonic() - began:.1f} s")
    return 0


def start_import(file: Path, count: int) -> Batch:
    """Enqueue a job for each row of a file; make the file if there is none."""
    if not file.exists():
        with file.open("w", encoding="utf-8", newline="") as made:
            mails = (f"c{number}@example.com" if number % WRONG_EVERY else "none" for number in range(1, count + 1))
            csv.writer(made).writerows((f"customer {number}", mail) for number, mail in enumerate(mails, 1))
    with file.open(encoding="utf-8", newline="") as found:
        rows = [(number, name, mail) for number, (name, mail) in enumerate(csv.reader(found), 1)]
    return Batch.create(f"import {file.name}", handle_row, rows)


def start_export(file: Path, count: int) -> Batch:
    """Enqueue a job for each part of the rows; the parts are joined when all are there."""
    file.unlink(missing_ok=True)
    parts = [(first, min(PART_ROWS, count - first), str(file)) for first in range(0, count, PART_ROWS)]
    return Batch.create(f"export {file.name}", export_part, parts, on_success=join_parts)


def follow(batch: Batch) -> None:
    """Print the status until all jobs have ended, as a front end would poll it."""
    print(f"batch {batch.id}")
    while not (status := batch.status()).is_complete:
        print(f"{status.percent:5.1f} %  {status.finish} finished, {status.failed} failed, {status.error} errors")
        time.sleep(POLL_SECONDS)
    print(f"{status.percent:5.1f} %  {status.finish} finished, {status.failed} failed, {status.error} errors")
    for event in status.failures[:10]:
        print(f"  {event.messages[-1]}")


def wait_for(file: Path) -> None:
    """Wait for the callback, a job like others."""
    while not file.exists():
        time.sleep(POLL_SECONDS)
    print(f"{file} has {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
