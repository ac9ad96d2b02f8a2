"""Metrics of outboxes: rows that wait, as gauges of the application, which the supervisor serves on /metrics."""

from __future__ import annotations

from prometheus_client import Gauge

from kiqcluster.contrib.outbox.relay import Summary

__all__ = ["publish"]

# The supervisor takes no name with its own prefix, kiqcluster_, from a worker.  Each worker tells what it has seen
# last, and the supervisor keeps the latest; queries take the maximum of hosts.
WAITING = Gauge(
    "kiq_outbox_rows",
    "Jobs that wait in a database to be pushed",
    ["database"],
    multiprocess_mode="mostrecent",
)
REFUSED = Gauge(
    "kiq_outbox_refused_rows",
    "Those of them that could not be pushed for a reason of their own",
    ["database"],
    multiprocess_mode="mostrecent",
)
OLDEST = Gauge(
    "kiq_outbox_oldest_age_seconds",
    "For how long the oldest of them has waited, 0 for none",
    ["database"],
    multiprocess_mode="mostrecent",
)


def publish(name: str, summary: Summary, now: float, /) -> None:
    WAITING.labels(name).set(summary.waiting)
    REFUSED.labels(name).set(summary.refused)
    OLDEST.labels(name).set(0.0 if summary.oldest_at is None else max(0.0, now - summary.oldest_at))
