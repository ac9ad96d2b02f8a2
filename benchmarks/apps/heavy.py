"""An application with about 50 MB of objects in memory from its import on, and jobs that read some of them."""

from __future__ import annotations

from itertools import islice

from kiqcluster import job

COUNT = 330_000
CATALOGUE = [(f"article {number}", float(number)) for number in range(COUNT)]


@job()
def read(share: float) -> None:
    """Look at the first so many of the objects."""
    for name, price in islice(CATALOGUE, int(COUNT * share)):
        assert name, price
