"""The jobs in kiqcluster, with many classes (`noop_7`) and in many queues (`noop@queue7`, `mark@queue7`)."""

from __future__ import annotations

import kiqcluster
from benchmarks.apps import jobs
from benchmarks.apps.kiqcluster import DESCRIPTION, JOBS, push, push_many

__all__ = ["DESCRIPTION", "push", "push_many"]

for number in range(200):
    JOBS[f"noop_{number}"] = kiqcluster.job(name=f"Noop{number}")(jobs.noop)
for number in range(1_000):
    for name in ("noop", "mark"):
        JOBS[f"{name}@queue{number}"] = JOBS[name].set(queue=f"queue{number}")
