"""Cancel marks: the ids of cancelled jobs and of cancelled batches, and which of them a running job is told of.

Redis holds them; each process reads them with its heartbeat (features/cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass

from kiqcluster.process.job_context import JobContext
from kiqcluster.sidekiq.payload import CANCELLED_BY_BATCH, DROPPED_BY_CANCEL, batch_of

__all__ = ["Marks"]


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of cancelled jobs, and of cancelled batches that have jobs which have not ended."""

    jids: frozenset[str] = frozenset()
    batches: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.jids or self.batches)

    def reason(self, job: JobContext) -> str:
        """Return by what a job is cancelled, as it is in `dropped_by`; "" if it is not."""
        if job.jid in self.jids:
            return DROPPED_BY_CANCEL
        batch = batch_of(job.payload) if self.batches else None
        return CANCELLED_BY_BATCH if batch is not None and batch[0] in self.batches else ""

    def tell(self, job: JobContext) -> bool:
        """Tell a job that it is cancelled; return False if it is not, or has been told."""
        reason = "" if job.cancelled else self.reason(job)
        if reason:
            job.cancel(reason)
        return bool(reason)
