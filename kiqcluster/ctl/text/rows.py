"""Rows: the dashboard as rows of text for `top`.  Pure; used by the screen and by `--once`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.api import JobRecord, QueueSummary, SortedEntry
from kiqcluster.api.dashboard import Dashboard, View
from kiqcluster.api.processes import Work
from kiqcluster.api.throughput import Rate
from kiqcluster.client.results import Progress
from kiqcluster.control.cluster_document import status_from_redis
from kiqcluster.control.process_registry import Cluster, RegisteredProcess, natural_sort_key
from kiqcluster.ctl.text.tables import (
    NO_VALUE,
    Column,
    ago,
    clean,
    format_duration,
    format_megabytes,
    format_number,
    format_time,
    json_line,
    number_column,
    pluralize,
    text_column,
    truncate,
)
from kiqcluster.features.versions import DEFERRED_BY_VERSION
from kiqcluster.process.context.application_context import CALLER_ID
from kiqcluster.sidekiq.payload import CORRELATION_ID, EXPIRY, VERSION, seconds

__all__ = [
    "BUSY_COLUMNS",
    "COLUMNS_BY_VIEW",
    "ENTRY_COLUMNS",
    "SHORT_JID_WIDTH",
    "WRONG_TYPE",
    "Row",
    "arguments",
    "details",
    "entry_words",
    "process_words",
    "progress_words",
    "rows",
    "size_and_latency",
    "summary_lines",
]

WRONG_TYPE = "key of the wrong type"
SHORT_JID_WIDTH = 9  # cells of an id on a narrow terminal: eight characters stand for it in a command
COMPRESSED_MARK = "[COMPRESSED] "  # GitLab's, before the arguments of a job that stores them compressed
LACKS = {"unknown_class": "knows this class", "unknown_key": "has its key"}  # deferred_by → what no worker does
MAX_CELL_WIDTH = 200  # cells of arguments or of a message on the screen: more fits no line

QUEUE_COLUMNS = (
    text_column("QUEUE", 12),
    number_column("SIZE"),
    number_column("LATENCY"),
    text_column("STATE"),
    number_column("PROCESSES"),
)
PROCESS_COLUMNS = (
    text_column("PROCESS", 16),
    number_column("BUSY"),
    text_column("STATE"),
    number_column("RSS"),
    number_column("UP"),
    number_column("BEAT"),
    text_column("VERSION"),
    text_column("QUEUES", 10),
)
JOB_COLUMNS = (
    text_column("QUEUE", 8),
    text_column("CLASS", 12),
    text_column("JID", SHORT_JID_WIDTH, shrinks_first=True),
    text_column("ARGS", 8),
)
BUSY_COLUMNS = (
    text_column("PROCESS", 12),
    text_column("TID"),
    number_column("SINCE"),
    number_column("PROGRESS"),
    *JOB_COLUMNS,
)
ENTRY_COLUMNS = (number_column("WHEN"), number_column("TRIES"), *JOB_COLUMNS, text_column("ERROR", 8))
COLUMNS_BY_VIEW: Mapping[View, Sequence[Column]] = {
    View.QUEUES: QUEUE_COLUMNS,
    View.PROCESSES: PROCESS_COLUMNS,
    View.BUSY: BUSY_COLUMNS,
    View.RETRIES: ENTRY_COLUMNS,
    View.SCHEDULED: ENTRY_COLUMNS,
    View.DEAD: ENTRY_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class Row:
    """key: by which the row is found again in the next picture.  about: what it shows."""

    key: str
    words: tuple[str, ...]
    record: Any


def rows(dashboard: Dashboard, view: View) -> list[Row]:
    """Return the rows of a view, in the order in which they are shown."""
    return ROW_BUILDERS[view](dashboard)


def summary_lines(dashboard: Dashboard, rate: Rate) -> list[str]:
    """Return what holds for the whole Redis, in three lines."""
    per_second = [NO_VALUE if each is None else f"{each:,.1f}/s" for each in (rate.processed, rate.failed)]
    return [
        f"jobs  {per_second[0]} processed, {per_second[1]} failed; "
        f"{format_number(dashboard.processed)} processed and {format_number(dashboard.failed)} failed in all",
        f"busy  {format_number(dashboard.busy)} of {format_number(dashboard.concurrency)} threads "
        f"in {pluralize(len(dashboard.processes), 'process', 'processes')}{_oldest(dashboard)}",
        f"wait  {format_number(dashboard.enqueued)} in {pluralize(len(dashboard.queues), 'queue')}, "
        f"{pluralize(dashboard.sizes[View.RETRIES], 'retry', 'retries')}, "
        f"{format_number(dashboard.sizes[View.SCHEDULED])} scheduled, {format_number(dashboard.sizes[View.DEAD])} dead"
        f"{_unreadable(dashboard)}",
    ]


def _unreadable(dashboard: Dashboard) -> str:
    """Return which keys are of the wrong type: what they should hold counts as 0."""
    return f"; of another type: {', '.join(map(clean, dashboard.unreadable))}" if dashboard.unreadable else ""


def _oldest(dashboard: Dashboard) -> str:
    """Return how old the oldest part of a picture is: what processes do they tell every ten seconds."""
    return (
        f", as of up to {format_duration(max(each.age for each in dashboard.processes))} ago"
        if dashboard.processes
        else ""
    )


def details(record: object) -> list[str] | None:
    """Return all that is known of the job behind a row, line by line; None where a row is about none."""
    job = record.job if isinstance(record, Work) else record
    if not isinstance(job, JobRecord):
        return None
    facts = {
        "class": job.display_class,
        "jid": job.jid,
        "queue": job.queue,
        "when": format_time(job.score) if isinstance(job, SortedEntry) else "",
        "caller": _caller(job),
        "created": format_time(job.created_at),
        "expires": format_time(seconds(job[EXPIRY])),
        "failed": format_time(job.failed_at),
        "retried": format_time(job.retried_at),
        "error": _error(job) if isinstance(job, SortedEntry) else _failure(job),
        "args": f"{COMPRESSED_MARK * job.is_compressed}{json_line(job.display_args)}",
        "payload": json_line(job.payload) if job.is_job else "",
    }
    lines = [f"{name:<8} {words}" for name, words in facts.items() if words not in ("", NO_VALUE)]
    return [*lines, *(f"         {line}" for line in job.error_backtrace)]


def _caller(job: JobRecord) -> str:
    """Return who enqueued a job and for which request, as far as its payload says so."""
    return " ".join(clean(word) for key in (CALLER_ID, CORRELATION_ID) if isinstance(word := job[key], str))


def arguments(job: JobRecord) -> str:
    """Return a job's arguments as one line, with a mark before those that are stored compressed."""
    text = ", ".join(map(json_line, job.display_args))
    return clean(COMPRESSED_MARK * job.is_compressed + text)


def process_words(process: RegisteredProcess) -> tuple[str, ...]:
    """Return the words for a process, without its name."""
    return (
        f"{process.busy}/{process.concurrency}",
        "quiet" if process.is_quiet else "serves",
        format_megabytes(process.rss),
        format_duration(process.uptime),
        format_duration(process.age),
        process.version or NO_VALUE,
        ", ".join(process.queues),
    )


def _queues(dashboard: Dashboard) -> list[Row]:
    """Those that wait longest come first."""
    return [
        Row(
            each.name,
            (
                each.name,
                *size_and_latency(each),
                WRONG_TYPE if each.error is not None else "paused" if each.is_paused else "",
                format_number(each.processes) if each.processes else "nobody listens",
            ),
            each,
        )
        for each in sorted(dashboard.queues, key=lambda each: (-each.latency, -each.size, each.name))
    ]


def size_and_latency(queue: QueueSummary) -> tuple[str, str]:
    """Return the words for both, which nobody knows where the key is not a list."""
    return (
        (NO_VALUE, NO_VALUE) if queue.error is not None else (format_number(queue.size), format_duration(queue.latency))
    )


def _processes(dashboard: Dashboard) -> list[Row]:
    """Clusters with their workers below; then whoever belongs to none."""
    found = []
    for cluster in sorted(dashboard.clusters, key=lambda each: natural_sort_key(each.supervisor)):
        found.append(Row(cluster.supervisor, (cluster.supervisor, *_cluster_words(cluster)), cluster))
        workers = sorted(cluster.processes, key=lambda each: each.pid)
        found += [Row(each.identity, (f"  pid {each.pid}", *process_words(each)), each) for each in workers]
    others = [each for each in dashboard.processes if each.supervisor is None]
    lone = sorted(others, key=lambda each: natural_sort_key(each.identity))
    return found + [Row(each.identity, (each.identity, *process_words(each)), each) for each in lone]


def _cluster_words(cluster: Cluster) -> tuple[str, ...]:
    workers = cluster.processes
    busy, concurrency = (sum(getattr(each, name) for each in workers) for name in ("busy", "concurrency"))
    view = status_from_redis(cluster)
    left_of_it = "no end" if view.lease_remaining is None else f"{format_duration(view.lease_remaining)} left"
    state = f"quiet by {view.quiet_by} ({left_of_it})" if view.quiet_by else "cluster"
    rss = sum(each.rss for each in workers)
    return (
        f"{busy}/{concurrency}",
        state,
        format_megabytes(rss),
        "",
        "",
        str(cluster.state.get("version") or NO_VALUE),
        "",
    )


def _busy(dashboard: Dashboard) -> list[Row]:
    """Those that run longest come first."""
    seen_at = {each.identity: dashboard.at - each.age for each in dashboard.processes}
    longest = sorted(dashboard.work, key=lambda each: each.run_at)
    return [_work(each, seen_at.get(each.identity, dashboard.at)) for each in longest]


def _work(work: Work, seen_at: float) -> Row:
    host_and_pid = work.identity.rpartition(":")[0]
    since = format_duration(seen_at - work.run_at)
    words = (host_and_pid, work.tid, since, progress_words(work.progress), work.queue, *_job(work.job))
    return Row(f"{work.identity} {work.tid}", _shorten(words), work)


def progress_words(progress: Progress | None) -> str:
    """Return how far a job has come: `40/200 20 %`; only a number where it knows no total."""
    if progress is None:
        return ""
    done = _amount(progress.done)
    if progress.total is None or progress.percent is None:
        return done
    return f"{done}/{_amount(progress.total)} {progress.percent:.0f} %"


def _amount(value: float) -> str:
    return f"{value:.10g}"


def _job(job: JobRecord) -> tuple[str, ...]:
    return job.display_class, job.jid, arguments(job)


def _entries(dashboard: Dashboard) -> list[Row]:
    return [Row(each.id, _shorten(entry_words(each, dashboard.at)), each) for each in dashboard.entries]


def _shorten(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(truncate(clean(each), MAX_CELL_WIDTH) for each in words)


def entry_words(entry: SortedEntry, now: float) -> tuple[str, ...]:
    """Return the words for an entry of a set, in the columns ENTRIES."""
    tries = NO_VALUE if entry.retry_count is None else format_number(entry.retry_count + 1)
    return ago(entry.score, now), tries, entry.queue, *_job(entry), _error(entry)


def _error(entry: SortedEntry) -> str:
    lack = LACKS.get(str(entry["deferred_by"]))
    if lack is not None:
        count = entry["deferred_count"]
        tries = format_number(count) if isinstance(count, int) else NO_VALUE
        return f"no worker of {clean(entry.queue)} {lack}; tries so far: {tries}"
    if entry["deferred_by"] == DEFERRED_BY_VERSION and entry.error_class is None:
        return f"version {json_line(entry[VERSION])} is newer than the workers of {clean(entry.queue)}"
    return clean(_failure(entry) or _withheld(entry))


def _withheld(job: JobRecord) -> str:
    """Return what has kept a job from running: a strike, a policy, a limit."""
    dropped, deferred, count = job["dropped_by"], job["deferred_by"], job["deferred_count"]
    if isinstance(dropped, str):
        return f"dropped by {dropped}"
    if not isinstance(deferred, str):
        return ""
    times = f", {format_number(count)} times so far" if isinstance(count, int) and count > 1 else ""
    return f"deferred by {deferred}{times}"


def _failure(job: JobRecord) -> str:
    return ": ".join(each for each in (job.error_class, job.error_message) if each)


ROW_BUILDERS: Mapping[View, Callable[[Dashboard], list[Row]]] = {
    View.QUEUES: _queues,
    View.PROCESSES: _processes,
    View.BUSY: _busy,
    View.RETRIES: _entries,
    View.SCHEDULED: _entries,
    View.DEAD: _entries,
}
