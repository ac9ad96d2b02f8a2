"""Inspection: what lies in a Redis that Sidekiq's processes share, ours and Ruby's, and changes to it.

Read in this order: records (a job), queues, sets and limits (where jobs lie), then stats, processes,
execution_metrics, deploys, strikes, locks, rates, cron; dashboard and throughput for live screens.
bulk (something is done to all that match) and lookup (one job by its id) are folders of their own.
_store says where all of them look, _pages how queues and sets of any size are read.
"""

from kiqcluster.api._pages import Order
from kiqcluster.api._store import shards
from kiqcluster.api.cron import CronSet, CronStatus, RubyCronJob, enqueued_twice
from kiqcluster.api.deploys import Mark, mark, marks
from kiqcluster.api.execution_metrics import ExecutionCount, ExecutionMetrics, JobExecutions
from kiqcluster.api.limits import (
    LimitLine,
    LimitStatus,
    ParkedJob,
    ParkedJobs,
    PlaceHolder,
    concurrency_limits,
    end_override,
    override_limit,
    parked_count,
)
from kiqcluster.api.locks import JobLock, LockPage, LockSet
from kiqcluster.api.processes import Process, ProcessSet, Work, WorkSet
from kiqcluster.api.queues import Queue, QueueSummary, summaries
from kiqcluster.api.rates import RateStatus, rate_limits
from kiqcluster.api.records import JobRecord
from kiqcluster.api.sets import DeadSet, DroppedSet, JobSet, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.api.stats import History, Stats
from kiqcluster.api.strikes import StrikeSet

__all__ = [
    "CronSet",
    "CronStatus",
    "DeadSet",
    "DroppedSet",
    "ExecutionCount",
    "ExecutionMetrics",
    "History",
    "JobExecutions",
    "JobLock",
    "JobRecord",
    "JobSet",
    "LimitLine",
    "LimitStatus",
    "LockPage",
    "LockSet",
    "Mark",
    "Order",
    "ParkedJob",
    "ParkedJobs",
    "PlaceHolder",
    "Process",
    "ProcessSet",
    "Queue",
    "QueueSummary",
    "RateStatus",
    "RetrySet",
    "RubyCronJob",
    "ScheduledSet",
    "SortedEntry",
    "Stats",
    "StrikeSet",
    "Work",
    "WorkSet",
    "concurrency_limits",
    "end_override",
    "enqueued_twice",
    "mark",
    "marks",
    "override_limit",
    "parked_count",
    "rate_limits",
    "shards",
    "summaries",
]
