"""Iterable jobs: long jobs that survive deploys and crashes, since each run goes on where the last one was.

Read in this order:
job            IterableJob: what a class declares
state          the state in Redis: read, and saved while the job runs
loop           one run: where it begins, when it saves its state, when it gives way
enumerators    the items of sequences and CSV files, each with its cursor
sql            those of SQL queries (extra `sql`; not imported here)

How the state is kept: features/iteration.
Counterpart: sidekiq job/iterable.rb (7.3 and later).
"""

from kiqcluster.errors import AbortIteration
from kiqcluster.iterable.enumerators import (
    batches_enumerator,
    csv_batches_enumerator,
    csv_enumerator,
    sequence_enumerator,
)
from kiqcluster.iterable.job import IterableJob
from kiqcluster.iterable.state import iteration_status

__all__ = [
    "AbortIteration",
    "IterableJob",
    "batches_enumerator",
    "csv_batches_enumerator",
    "csv_enumerator",
    "iteration_status",
    "sequence_enumerator",
]
