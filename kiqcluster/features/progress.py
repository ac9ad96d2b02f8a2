"""Progress: how far a job that runs has come, as it says by `current_job().progress(done, total)`.

The job writes an attribute of its context.  Once a second the worker writes what is new to `kiq:progress:<jid>`
(worker/maintenance/progress.py), for `result_ttl` seconds, or a day; it is renewed while the job runs.  The end of the
run deletes the key, so that a retry begins anew.

encoded                  what Redis keeps (read: client/results)
on_end                   the effect `forget`, of runs that have said something (`is_used_in`)

Price: a call in a job writes one attribute.  Of all jobs of a process together, one script a second while they say
something new; at the end of such a run one effect with one Redis call.  Other jobs pay for one look at an attribute.
"""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.job_context import JobContext
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Effect

__all__ = ["PROGRESS", "PROGRESS_TTL_SECONDS", "ProgressEnds", "encoded"]

PROGRESS_TTL_SECONDS = 86_400  # of the progress of a class without `result_ttl`


class ProgressEnds:
    """The server half."""

    name = "progress"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is what the run has said

    def is_used_in(self, context: JobContext) -> bool:
        return context.progressed is not None

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that deletes the progress of the run."""
        jid = end.payload.get("jid")
        return (Effect("forget", end.keys.progress(jid)),) if isinstance(jid, str) else ()

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        return self.on_end(end)


PROGRESS = ProgressEnds()


def encoded(done: float, total: float | None) -> bytes:
    """Return what Redis keeps."""
    return ruby_json.encode({"done": done, "total": total})
