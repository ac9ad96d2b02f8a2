"""Targets: what the figures have to reach, by issue 3; each is a number made of medians, nearly always a ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.web import SHARED

__all__ = ["PYTHON_PEERS", "TARGETS", "Lookup", "Target"]

Lookup = Callable[
    [str, str, str], float | None
]  # (workload, peer, figure) → its median, None where it was not measured

PYTHON_PEERS = ("dramatiq", "huey", "celery", "rq", "taskiq")


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the issue's table.

    measured: the number from medians, None when something that it needs was not measured.
    limit: at least that, or at most when `is_ceiling`.
    """

    workload: str
    what: str
    measured: Callable[[Lookup], float | None]
    limit: float
    is_ceiling: bool = False
    form: str = ".2f"

    def wanted(self) -> str:
        return f"{'≤' if self.is_ceiling else '≥'} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.is_ceiling else value >= self.limit


def ours(workload: str, figure: str) -> Callable[[Lookup], float | None]:
    return lambda median: median(workload, "kiqcluster", figure)


def over(workload: str, figure: str, peer: str) -> Callable[[Lookup], float | None]:
    """Return our figure over a peer's."""
    return lambda median: quotient(median(workload, "kiqcluster", figure), median(workload, peer, figure))


def over_best_python_peer(median: Lookup) -> float | None:
    """Return our rate over that of the fastest of them: unknown until all have been measured."""
    ratios = [over("noop", "rate", peer)(median) for peer in PYTHON_PEERS]
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if len(known) == len(ratios) else None


def over_one_process(median: Lookup) -> float | None:
    return quotient(median("noop-2", "kiqcluster", "rate"), median("noop", "kiqcluster", "rate"))


def over_bound(workload: str) -> Callable[[Lookup], float | None]:
    """Return our rate on all cores over that on one."""
    return lambda median: quotient(
        median(workload, "kiqcluster", "rate"), median(f"{workload}-bound", "kiqcluster", "rate")
    )


def quotient(dividend: float | None, divisor: float | None) -> float | None:
    return None if dividend is None or not divisor else dividend / divisor


TARGETS = (
    Target("noop", "jobs/s ÷ Sidekiq's", over("noop", "rate", "sidekiq"), 6),
    Target("noop", "jobs/s ÷ the best Python peer's", over_best_python_peer, 25),
    Target("noop", "jobs/s ÷ the bare loop's", over("noop", "rate", "bare-loop"), 0.4),
    Target("noop", "worker CPU per job ÷ Sidekiq's", over("noop", "worker_cpu", "sidekiq"), 0.25, is_ceiling=True),
    Target("noop", "Redis CPU per job ÷ Sidekiq's", over("noop", "redis_cpu", "sidekiq"), 0.3, is_ceiling=True),
    Target("noop", "round trips per job", ours("noop", "round_trips"), 0.05, is_ceiling=True, form=".3f"),
    Target("noop-2", "jobs/s ÷ Sidekiq's", over("noop-2", "rate", "sidekiq"), 5),
    Target("noop-2", "jobs/s ÷ our one process", over_one_process, 1.4),
    Target("noop-far", "jobs/s ÷ those without latency", ours("noop-far", "kept"), 0.85),
    Target("noop-logged", "jobs/s ÷ Sidekiq's", over("noop-logged", "rate", "sidekiq"), 3),
    Target("lock", "jobs/s ÷ Sidekiq's", over("lock", "rate", "sidekiq"), 8),
    Target("lock", "jobs/s ÷ those bound to one core", over_bound("lock"), 0.9),
    Target("usual", "jobs/s ÷ Sidekiq's", over("usual", "rate", "sidekiq"), 8),
    Target("usual", "jobs/s ÷ those bound to one core", over_bound("usual"), 0.9),
    Target("sleep", "share of the ideal 5 000/s", ours("sleep", "of_ideal"), 0.97, form=".3f"),
    *(
        Target("async", f"{what} ÷ {peer}'s", over("async", figure, peer), limit, is_ceiling=is_ceiling)
        for peer in ("arq", "saq", "taskiq")
        for what, figure, limit, is_ceiling in (
            ("jobs/s", "rate", 5, False),
            ("worker CPU per job", "worker_cpu", 1 / 3, True),
            ("commands per job", "commands", 1 / 3, True),
        )
    ),
    Target("enqueue", "one by one ÷ Sidekiq's", over("enqueue", "single", "sidekiq"), 1.15),
    Target("enqueue", "bulk ÷ Sidekiq's", over("enqueue", "bulk", "sidekiq"), 2),
    Target("latency", "p50 ÷ Sidekiq's", over("latency", "p50", "sidekiq"), 1, is_ceiling=True),
    Target("latency", "p99 ÷ Sidekiq's", over("latency", "p99", "sidekiq"), 1, is_ceiling=True),
    Target("idle", "Redis commands a second", ours("idle", "commands"), 3, is_ceiling=True, form=".1f"),
    Target("memory", "worker, MB", ours("memory", "worker"), 30, is_ceiling=True, form=".1f"),
    Target("memory", "each further worker, MB", ours("memory", "further"), 12, is_ceiling=True, form=".1f"),
    Target("memory", "supervisor, MB", ours("memory", "supervisor"), 25, is_ceiling=True, form=".1f"),
    Target("kill", "jobs lost", ours("kill", "lost"), 0, is_ceiling=True, form=".0f"),
    Target("kill", "seconds until all are back", ours("kill", "back"), 1, is_ceiling=True),
    Target("fairness", "p99 wait of a short job, ms", ours("fairness", "p99"), 250, is_ceiling=True, form=".0f"),
    Target("fairness", "worst wait of a short job, ms", ours("fairness", "worst"), 1_000, is_ceiling=True, form=".0f"),
    Target("guarantees", "jobs/s of a job without any ÷ without the seams", ours("guarantees", "kept"), 0.9),
    # No issue names these: the least that somebody expects who comes from Ruby.
    Target("guarantees", "until_executed, jobs/s ÷ Sidekiq's", over("guarantees", "once", "sidekiq"), 1),
    Target("guarantees", "concurrency limit, jobs/s ÷ Sidekiq's", over("guarantees", "limited", "sidekiq"), 1),
    Target("guarantees", "rate limit, jobs/s ÷ Sidekiq's", over("guarantees", "rated", "sidekiq"), 1),
    # "Stays flat" is the word; the number is ours.
    Target(
        "cron", "seconds of 10 000 entries ÷ sidekiq-cron's", over("cron", "seconds", "sidekiq"), 0.2, is_ceiling=True
    ),
    *(
        Target(
            "web", f"{page.replace('_', ' ')}: ms ÷ Sidekiq's", over("web", f"{page}_ms", "sidekiq"), 1, is_ceiling=True
        )
        for page in SHARED
    ),
    Target("web", "ms of the slowest page", ours("web", "slowest_ms"), 100, is_ceiling=True, form=".1f"),
    Target("web", "round trips of any page", ours("web", "most_trips"), 6, is_ceiling=True, form=".0f"),
    Target("web", "KB of any page, by gzip", ours("web", "largest_kb"), 150, is_ceiling=True, form=".1f"),
    Target("growth", "cost per job in a deep queue ÷ short", ours("growth", "depth"), 1.2, is_ceiling=True),
    Target("growth", "cost per job in 1 000 queues ÷ one", ours("growth", "queues"), 1.2, is_ceiling=True),
    Target("fleet", "cores of Redis, 10 000 idle processes", ours("fleet", "cpu_10000"), 0.5, is_ceiling=True),
    Target("fleet", "cost of each of 10 000 ÷ of each of 1 000", ours("fleet", "growth"), 1.2, is_ceiling=True),
    Target("growth", "cost per job of 200 classes ÷ one", ours("growth", "classes"), 1.2, is_ceiling=True),
)
