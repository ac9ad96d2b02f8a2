"""Progress: a bar on standard error for what takes long; none in a pipe, and none beside a document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from kiqcluster.ctl.options import Output

__all__ = ["Advance", "progress"]

Advance = Callable[[int], object]  # told how many more are done


@contextmanager
def progress(output: Output, total: int, label: str) -> Iterator[Advance]:
    """Show how much of `total` is done, for a `with` block: `with progress(…) as advance: advance(500)`.

    label: what is being done, as in `deleting`.  total: of which there may turn out to be more, or fewer.
    """
    if output.as_json or total <= 0 or not sys.stderr.isatty():
        yield _unseen
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def _unseen(_count: int) -> None:
    """See progress."""
