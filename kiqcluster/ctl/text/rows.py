"""Views: what `top` shows of a picture, as rows of words.  Pure; the screen and `--once` both show these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.api import JobRecord, QueueSummary, SortedEntry
from kiqcluster.api.dashboard import Picture, View
from kiqcluster.api.processes import Work
from kiqcluster.api.throughput import Rate
from kiqcluster.control.cluster_document import status_from_redis
from kiqcluster.control.process_registry import Cluster, RegisteredProcess, natural_sort_key
from kiqcluster.ctl.text.tables import (
    NOTHING,
    Column,
    ago,
    clean,
    counted,
    cut,
    duration,
    json_line,
    left,
    megabytes,
    moment,
    number,
    right,
)

__all__ = [
    "COLUMNS",
    "ENTRIES",
    "SHORT_JID",
    "WRONG_TYPE",
    "Row",
    "arguments",
    "details",
    "entry_words",
    "headlines",
    "process_of",
    "rows",
    "size_and_latency",
]

WRONG_TYPE = "key of the wrong type"
SHORT_JID = 9  # cells of an id on a narrow terminal: eight characters stand for it in a command
LONGEST_CELL = 200  # cells of arguments or of a message on the screen: more fits no line

QUEUES = (left("QUEUE", 12), right("SIZE"), right("LATENCY"), left("STATE"), right("PROCESSES"))
PROCESSES = (
    left("PROCESS", 16),
    right("BUSY"),
    left("STATE"),
    right("RSS"),
    right("UP"),
    right("BEAT"),
    left("VERSION"),
    left("QUEUES", 10),
)
JOB = (left("QUEUE", 8), left("CLASS", 12), left("JID", SHORT_JID, is_first=True), left("ARGS", 8))
BUSY = (left("PROCESS", 12), left("TID"), right("SINCE"), *JOB)
ENTRIES = (right("WHEN"), right("TRIES"), *JOB, left("ERROR", 8))
COLUMNS: Mapping[View, Sequence[Column]] = {
    View.QUEUES: QUEUES,
    View.PROCESSES: PROCESSES,
    View.BUSY: BUSY,
    View.RETRIES: ENTRIES,
    View.SCHEDULED: ENTRIES,
    View.DEAD: ENTRIES,
}


@dataclass(frozen=True, slots=True)
class Row:
    """key: by which the row is found again in the next picture.  about: what it shows."""

    key: str
    words: tuple[str, ...]
    about: Any


def rows(picture: Picture, view: View) -> list[Row]:
    """Return the rows of a view, in the order in which they are shown."""
    return MAKERS[view](picture)


def headlines(picture: Picture, rate: Rate) -> list[str]:
    """Return what holds for the whole Redis, in three lines."""
    per_second = [NOTHING if each is None else f"{each:,.1f}/s" for each in (rate.processed, rate.failed)]
    return [
        f"jobs  {per_second[0]} processed, {per_second[1]} failed; "
        f"{number(picture.processed)} processed and {number(picture.failed)} failed in all",
        f"busy  {number(picture.busy)} of {number(picture.concurrency)} threads "
        f"in {counted(len(picture.processes), 'process', 'processes')}{_oldest(picture)}",
        f"wait  {number(picture.enqueued)} in {counted(len(picture.queues), 'queue')}, "
        f"{counted(picture.sizes[View.RETRIES], 'retry', 'retries')}, "
        f"{number(picture.sizes[View.SCHEDULED])} scheduled, {number(picture.sizes[View.DEAD])} dead"
        f"{_unreadable(picture)}",
    ]


def _unreadable(picture: Picture) -> str:
    """Return which keys are of the wrong type: what they should hold counts as 0."""
    return f"; of another type: {', '.join(map(clean, picture.unreadable))}" if picture.unreadable else ""


def _oldest(picture: Picture) -> str:
    """Return how old the oldest part of a picture is: what processes do they tell every ten seconds."""
    return f", as of up to {duration(max(each.age for each in picture.processes))} ago" if picture.processes else ""


def details(about: object) -> list[str] | None:
    """Return all that is known of the job behind a row, line by line; None where a row is about none."""
    job = about.job if isinstance(about, Work) else about
    if not isinstance(job, JobRecord):
        return None
    facts = {
        "class": job.display_class,
        "jid": job.jid,
        "queue": job.queue,
        "when": moment(job.score) if isinstance(job, SortedEntry) else "",
        "created": moment(job.created_at),
        "failed": moment(job.failed_at),
        "retried": moment(job.retried_at),
        "error": _error(job) if isinstance(job, SortedEntry) else _failure(job),
        "args": json_line(job.display_args),
        "payload": json_line(job.payload) if job.is_job else "",
    }
    lines = [f"{name:<8} {words}" for name, words in facts.items() if words not in ("", NOTHING)]
    return [*lines, *(f"         {line}" for line in job.error_backtrace)]


def arguments(job: JobRecord) -> str:
    """Return a job's arguments as one line."""
    text = ", ".join(map(json_line, job.display_args))
    return clean(text)


def process_of(process: RegisteredProcess) -> tuple[str, ...]:
    """Return the words for a process, without its name."""
    return (
        f"{process.busy}/{process.concurrency}",
        "quiet" if process.is_quiet else "serves",
        megabytes(process.rss),
        duration(process.uptime),
        duration(process.age),
        process.version or NOTHING,
        ", ".join(process.queues),
    )


def _queues(picture: Picture) -> list[Row]:
    """Those that wait longest come first."""
    return [
        Row(
            each.name,
            (
                each.name,
                *size_and_latency(each),
                WRONG_TYPE if each.error is not None else "paused" if each.is_paused else "",
                number(each.processes) if each.processes else "nobody listens",
            ),
            each,
        )
        for each in sorted(picture.queues, key=lambda each: (-each.latency, -each.size, each.name))
    ]


def size_and_latency(queue: QueueSummary) -> tuple[str, str]:
    """Return the words for both, which nobody knows where the key is no list."""
    return (NOTHING, NOTHING) if queue.error is not None else (number(queue.size), duration(queue.latency))


def _processes(picture: Picture) -> list[Row]:
    """Clusters with their workers below; then whoever belongs to none."""
    found = []
    for cluster in sorted(picture.clusters, key=lambda each: natural_sort_key(each.supervisor)):
        found.append(Row(cluster.supervisor, (cluster.supervisor, *_cluster_of(cluster)), cluster))
        workers = sorted(cluster.processes, key=lambda each: each.pid)
        found += [Row(each.identity, (f"  pid {each.pid}", *process_of(each)), each) for each in workers]
    others = [each for each in picture.processes if each.supervisor is None]
    strangers = sorted(others, key=lambda each: natural_sort_key(each.identity))
    return found + [Row(each.identity, (each.identity, *process_of(each)), each) for each in strangers]


def _cluster_of(cluster: Cluster) -> tuple[str, ...]:
    workers = cluster.processes
    busy, concurrency = (sum(getattr(each, name) for each in workers) for name in ("busy", "concurrency"))
    view = status_from_redis(cluster)
    left_of_it = "no end" if view.lease_remaining is None else f"{duration(view.lease_remaining)} left"
    state = f"quiet by {view.quiet_by} ({left_of_it})" if view.quiet_by else "cluster"
    rss = sum(each.rss for each in workers)
    return f"{busy}/{concurrency}", state, megabytes(rss), "", "", str(cluster.state.get("version") or NOTHING), ""


def _busy(picture: Picture) -> list[Row]:
    """Those that run longest come first."""
    seen_at = {each.identity: picture.at - each.age for each in picture.processes}
    longest = sorted(picture.work, key=lambda each: each.run_at)
    return [_work(each, seen_at.get(each.identity, picture.at)) for each in longest]


def _work(work: Work, seen_at: float) -> Row:
    host_and_pid = work.identity.rpartition(":")[0]
    words = (host_and_pid, work.tid, duration(seen_at - work.run_at), work.queue, *_job(work.job))
    return Row(f"{work.identity} {work.tid}", _short(words), work)


def _job(job: JobRecord) -> tuple[str, ...]:
    return job.display_class, job.jid, arguments(job)


def _entries(picture: Picture) -> list[Row]:
    return [Row(each.id, _short(entry_words(each, picture.at)), each) for each in picture.entries]


def _short(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(cut(clean(each), LONGEST_CELL) for each in words)


def entry_words(entry: SortedEntry, now: float) -> tuple[str, ...]:
    """Return the words for an entry of a set, in the columns ENTRIES."""
    tries = NOTHING if entry.retry_count is None else number(entry.retry_count + 1)
    return ago(entry.score, now), tries, entry.queue, *_job(entry), _error(entry)


def _error(entry: SortedEntry) -> str:
    if entry["deferred_by"] == "unknown_class":
        count = entry["deferred_count"]
        tries = number(count) if isinstance(count, int) else NOTHING
        return f"no worker of {clean(entry.queue)} knows this class; tries so far: {tries}"
    return clean(_failure(entry))


def _failure(job: JobRecord) -> str:
    return ": ".join(each for each in (job.error_class, job.error_message) if each)


MAKERS: Mapping[View, Callable[[Picture], list[Row]]] = {
    View.QUEUES: _queues,
    View.PROCESSES: _processes,
    View.BUSY: _busy,
    View.RETRIES: _entries,
    View.SCHEDULED: _entries,
    View.DEAD: _entries,
}
