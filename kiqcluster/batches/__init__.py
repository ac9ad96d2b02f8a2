"""Batches: many jobs with one status, kept in Redis.

from kiqcluster.batches import Batch

batch = Batch.create("import", HandleRow, rows, on_complete=Report)      one job for each row
batch.status()                                                          counts, percent, failures with their messages

Read in this order:
records     the values: BatchStatus, BatchJob, BatchParts
callbacks   jobs that a batch pushes when it is complete, has succeeded, or has its first error
added_jids  ids of the jobs that a job adds to a batch: the same in each of its runs
batch       Batch: create, add, status, jobs, cancel, mark
history     batches in a database (extra `sql`); imported by itself: kiqcluster.batches.history
status_app  the same as JSON over HTTP

The script that ends a job changes its status, the counts and the batch in one step (store/lua/batches; features/batches
says which end of a run means which status).
"""

from kiqcluster.batches.batch import Batch, current_batch
from kiqcluster.batches.records import BatchJob, BatchParts, BatchStatus
from kiqcluster.batches.status_app import status_app
from kiqcluster.errors import BatchEnded, NormalFailure

__all__ = [
    "Batch",
    "BatchEnded",
    "BatchJob",
    "BatchParts",
    "BatchStatus",
    "NormalFailure",
    "current_batch",
    "status_app",
]
