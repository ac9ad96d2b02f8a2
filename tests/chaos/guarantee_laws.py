"""What docs/concepts/limits.md promises, as functions of what was pushed, what ran, and what Redis holds.

Each returns what breaks its law, in words or as a mapping; nothing if the law holds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import tests.apps.guarantees as app
from tests.chaos.guarantee_load import Load, Pushed
from tests.chaos.ledger import Entry
from tests.chaos.places import ENDS, Place
from tests.chaos.runs import OneRun, Runs

__all__ = [
    "allowed_at_once",
    "crowds",
    "exceeded_rates",
    "misplaced",
    "twice_existing",
    "unexplained",
    "vain_pushes",
    "wrong_facts",
    "wrong_starts",
]

MAX_DELAY_SECONDS = 1.5  # from a start that is allowed until the job notes it
WINDOWS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
MAX_DYING_SECONDS = 1.0  # for which a process goes on that was just sent a SIGKILL, on another core
MAX_UNSETTLED_SECONDS = 5.0  # of an outcome in a process that is killed, Redis' restart included


# limits


def allowed_at_once(threads: int) -> dict[str, int]:
    """Return limit → how many runs of it there may be at once.  threads: the most that the fleet has had."""
    share = math.ceil(app.SYNC_SHARE * threads)
    whole = {"refresh": app.REFRESHES, "hang": 1, "sync": share, "sweep": app.SWEEPS, "printer": app.PRINTERS}
    return {**whole, "report": app.REPORTS, "cleanup": app.CLEANERS, "export": app.EXPORTS, "rebuild": 1}


def crowds(runs: Runs, allowed: Mapping[str, int]) -> dict[str, int]:
    """Return limit → how many ran at once, of those limits that were exceeded.

    A limit for each key has the key behind a colon.  Of one page, and of equal exports, one may run.
    """
    found = {}
    for limit, spans in runs.held({"hang": app.HARD_SECONDS}).items():
        is_of_equals = limit.startswith("refresh:") or limit.count(":") == 2
        largest = 1 if is_of_equals else allowed.get(limit.partition(":")[0], math.inf)
        if (most := most_at_once(spans)) > largest:
            found[limit] = most
    return found


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many spans overlap, at most."""
    most = now = 0
    for _, step in sorted((at, step) for span in spans for at, step in zip(span, (1, -1), strict=True)):
        now += step
        most = max(most, now)
    return most


RATES: dict[str, Callable[[float], float]] = {  # class → most starts in so many seconds
    "Sync": lambda seconds: app.SYNCS[0] * (math.floor(seconds / app.SYNCS[1]) + 1),
    "Count": lambda seconds: app.COUNTS[0] * (math.floor(seconds / app.COUNTS[1]) + 2),
    "Deliver": lambda seconds: app.DELIVERIES[0] + app.DELIVERIES[1] * seconds + 1,
    "Call": lambda seconds: app.CALLS[0] + app.CALLS[1] * seconds + 1,
}


def exceeded_rates(runs: Sequence[OneRun]) -> list[str]:
    """Return where more runs have begun than their rate allows."""
    found = []
    for name, allowance in RATES.items():
        times = [run.begin for run in runs if run.name == name]
        for seconds in WINDOWS_SECONDS:
            most, largest = most_within(times, seconds), allowance(seconds + MAX_DELAY_SECONDS)
            if most > largest:
                found.append(f"{most} of {name} in {seconds} s, where {largest:g} may begin")
    return found


def most_within(times: Iterable[float], seconds: float) -> int:
    """Return how many of these times lie within so many seconds, at most."""
    most, window = 0, deque[float]()
    for at in sorted(times):
        window.append(at)
        while window[0] < at - seconds:
            window.popleft()
        most = max(most, len(window))
    return most


# deduplication


def vain_pushes(load: Load, runs: Sequence[OneRun]) -> list[tuple[str, str]]:
    """Return (class, subject) of pushes that no run follows, though one has to see what was there at the push."""
    last: dict[tuple[str, str], float] = {}
    for run in runs:
        last[run.name, run.subject] = max(last.get((run.name, run.subject), 0.0), run.begin)
    return [
        key
        for key, at in load.last.items()
        if key[0] in ("Refresh", "Deliver", "Rebuild") and "never" not in key[1] and last.get(key, 0.0) < at
    ]


def twice_existing(places: Iterable[Place], begun: Collection[str]) -> tuple[list[str], int]:
    """Return the pages of which two jobs exist, and how many jobs wait beside an equal one that has not begun either.

    A job that was killed just after it had released its lock waits again: there may be as many of the second kind as
    jobs were killed.
    """
    pages: Counter[str] = Counter()
    waiting: Counter[tuple[str, str]] = Counter()
    for place in places:
        if place.name == "Refresh" and place.key not in ENDS:
            pages[place.subject] += 1
        if place.name in ("Deliver", "Rebuild") and place.is_waiting and place.jid not in begun:
            waiting[place.name, place.subject] += 1
    return [page for page, count in pages.items() if count > 1], sum(count - 1 for count in waiting.values())


# where jobs are, and what runs are told


def misplaced(
    jobs: Mapping[str, Pushed], places: Iterable[Place], ended: Collection[str], ends_of_dead: Collection[str]
) -> dict[str, str]:
    """Return jid → what is wrong, once all is over: a job has ended, or lies where jobs of its kind may stay.

    ends_of_dead: jobs that ended in a process which others had taken them from, or which died before it settled.
    """
    kept = {place.jid: place for place in places}
    found = {}
    for jid, job in jobs.items():
        place = kept.get(jid)
        where = place.key if place else "ended" if jid in ended else "nowhere"
        if place is None or (place.key == "dead" and place.payload.get("interrupted_count")):
            is_right = where in ("ended", "dead") and wanted(job) in ("ended", "ended or dropped", "dead")
            is_right = is_right and (wanted(job) != "dead" or where == "dead")
        else:
            is_right = where == wanted(job) or (where == "kiq:dropped" and wanted(job) == "ended or dropped")
        if not is_right:
            found[jid] = f"{job.name} {job.subject} {job.facts}: {where}, and not {wanted(job)}"
        elif place and jid in ended and jid not in ends_of_dead:
            found[jid] = f"{job.name} {job.subject} has ended, and lies in {where}"
    return found


def wanted(job: Pushed) -> str:
    """Return where a job belongs in the end: "ended" and "dropped" stand for what its option allows."""
    match job:
        case Pushed(name="Poison"):
            return "dead"
        case Pushed(name="Upgrade", facts={"version": 3}):
            return "schedule"
        case Pushed(name="Offer"):
            return "kiq:dropped" if "expiry" in job.facts else "ended or dropped"
        case Pushed(name="Mail", subject="struck"):
            return "kiq:dropped"
        case Pushed(name="Rebuild", subject=subject) if "never" in subject:
            return "kiq:dropped"
    return "ended"


def wrong_facts(jobs: Mapping[str, Pushed], runs: Iterable[OneRun]) -> list[str]:
    """Return runs that were told something else than their push, or that were in another queue or shard."""
    found = []
    for run in runs:
        queue, slots = {"Refresh": ("urgent", "01"), "Report": ("reports", "23"), "CleanUp": ("reports", "23")}.get(
            run.name, ("default", "01")
        )
        job, facts = jobs.get(run.jid), run.facts
        parent = jobs.get(run.subject) if run.name == "Child" else None
        if facts["queue"] != queue or facts["slot"] not in slots:
            found.append(f"{run.name} ran in slot {facts['slot']}, from {facts['queue']}")
        if job and (facts["text"], facts["correlation_id"]) != (job.text, job.correlation_id):
            found.append(f"{run.name} {run.jid} got {facts}, and was pushed as {job}")
        if parent and (facts["correlation_id"], facts["caller"]) != (parent.correlation_id, "Report"):
            found.append(f"{run.jid} got {facts}, and its parent was {parent}")
    return found


def wrong_starts(
    runs: Iterable[OneRun], paused: Iterable[tuple[float, float]], struck_until: float
) -> dict[str, list[OneRun]]:
    """Return the runs that began while their class was paused or struck, too late, or without their deferral."""
    runs = list(runs)
    slack, found = MAX_DELAY_SECONDS, defaultdict(list)
    for run in runs:
        expiry = run.facts["expiry"]
        if expiry and run.facts["wall"] > expiry + slack:
            found["expired"].append(run)
        if run.name == "Sweep" and any(begin + slack < run.begin < end for begin, end in paused):
            found["paused"].append(run)
        if run.name == "Mail" and (run.subject == "struck" or (run.subject == "put off" and run.begin < struck_until)):
            found["struck"].append(run)
    first: dict[str, OneRun] = {}
    for run in runs:
        first.setdefault(run.jid, run)
    found["undeferred"] += [
        run
        for run in first.values()
        if run.name == "Rebuild" and "later" in run.subject and not run.facts["deferred_by"]
    ]
    return {why: each for why, each in found.items() if each}


def unexplained(
    ends: Mapping[str, Sequence[Entry]], deaths: Mapping[int, float], recovered: Collection[str]
) -> dict[str, list[str]]:
    """Return jobs that have ended twice, though no process died before it settled them, nor was one recovered.

    The text names the early ends that nothing explains.
    """
    found = {}
    for jid, each in ends.items():
        early = [
            f"{end.pid} at {end.at}, died at {deaths.get(end.pid)}" for end in each[:-1] if not explains(end, deaths)
        ]
        if early and jid not in recovered:
            found[jid] = early
    return found


def explains(end: Entry, deaths: Mapping[int, float]) -> bool:
    """Return whether a process died before the outcome of what it had ended can be expected in Redis."""
    return -MAX_DYING_SECONDS <= deaths.get(end.pid, -math.inf) - end.at <= MAX_UNSETTLED_SECONDS
