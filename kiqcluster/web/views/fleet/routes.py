"""Routes: to which queue and shard the jobs of each class go, by which rule; whether all processes have the same rules.

what       known from                                                  shown
rules      the configuration, or configure(), of this process          each rule, and how many classes it routes
classes    this process: where the pages are mounted in the            each class with its route, as by `kiqctl routes`
           application, or with `kiqctl web -r`
digests    Redis: what each process tells of its rules and shards      who has others
places     Redis: what runs, and the next job of each queue            where jobs of a class were seen

Redis holds neither rules nor classes: the page says what it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.api import JobRecord
from kiqcluster.api.processes import Work, read_told
from kiqcluster.application.registry import current_registry
from kiqcluster.client.router import route, rules_of
from kiqcluster.control.process_registry import RegisteredProcess, list_processes
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.routing import Rules, digest
from kiqcluster.store.shards import shards_digest
from kiqcluster.store.wire import Reply, WrongType
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Page

__all__ = ["ACTIONS", "PAGES"]

CLASSES_PER_PAGE = 100
MAX_RULES, MAX_SEEN, MAX_OTHERS = 200, 100, 20
MAX_QUEUES, MAX_RUNNING = 1_000, 500  # queues of which the next job, and running jobs that are looked at


@dataclass(frozen=True, slots=True)
class ClassRoute:
    """Where the jobs of a class go.  own: the queue that it declares.  rule: its number from 1, None for none."""

    name: str
    own: str
    queue: str
    rule: int | None
    shard: str
    because: str


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of an application with the same rules or shards.  is_ours: the same as this process."""

    application: str
    digest: str
    count: int
    example: str
    is_ours: bool


def show_routes(context: Context) -> Mapping[str, Any]:
    """Show them.  Six round trips, two more per 500 processes."""
    rules, problem = _rules()
    text = context.request.args.get("q", "").strip()
    known = _routes(rules)
    found = [each for each in known if text.lower() in each.name.lower()]
    pages = max(1, -(-len(found) // CLASSES_PER_PAGE))
    page = min(context.number("page"), pages)
    processes = list_processes(context.store)
    ours = [each for each in processes if each.is_ours]
    counts = Counter(each.rule for each in known)
    told = read_told(context.store, [each.identity for each in processes])[:MAX_RUNNING]
    seen = _seen(context, [work for each in told if (work := each.read()) is not None])
    return {
        "problem": problem,
        "routes": found[(page - 1) * CLASSES_PER_PAGE : page * CLASSES_PER_PAGE],
        "count": len(found),
        "known": len(known),
        "rules": [(number, each, counts[number]) for number, each in enumerate(rules[:MAX_RULES], 1)],
        "rule_count": len(rules),
        "has_shards": any(each.shard for each in known) or any(each.shard for each in rules),
        "rule_groups": _groups(ours, "routing", digest(rules)),
        "shard_groups": _groups(ours, "shards", _shards()),
        "processes": len(ours),
        "seen": [pair for pair in seen if text.lower() in pair[0].lower()][:MAX_SEEN],
        "text": text,
        "number": page,
        "pages": pages,
    }


def _rules() -> tuple[Rules, str]:
    """Return the rules of this process; without them, why they cannot be read."""
    setup = current_setup()
    try:
        return rules_of(setup.current_config(), setup), ""
    except UsageError as error:
        return (), str(error)


def _shards() -> str:
    try:
        return shards_digest(current_setup().current_config().shards)
    except UsageError:
        return ""


def _routes(rules: Rules) -> list[ClassRoute]:
    """Return the routes of the classes that this process knows, by name."""
    found = []
    for definition in current_registry():
        where = route(rules, definition)
        rule = None if where.index is None else rules[where.index]
        number = None if where.index is None else where.index + 1
        because = "" if rule is None else rule.selector.text
        found.append(ClassRoute(definition.name, definition.queue, where.queue, number, where.shard, because))
    return sorted(found, key=lambda each: each.name)


def _groups(processes: Sequence[RegisteredProcess], name: str, ours: str) -> list[Group]:
    """Return our processes by application and digest, the most common first."""
    identities: dict[tuple[str, str], list[str]] = {}
    for each in processes:
        identities.setdefault((each.application, getattr(each, name)), []).append(each.identity)
    groups = [Group(*key, len(found), found[0], key[1] == ours) for key, found in identities.items()]
    return sorted(groups, key=lambda each: -each.count)[:MAX_OTHERS]


def _seen(context: Context, works: Sequence[Work]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return class → queues where jobs of it were just seen, with how many.  Two round trips."""
    keys = context.store.keys
    (reply,) = context.store.read_each([("SMEMBERS", keys.queues)])
    names = sorted(each.decode(errors="replace") for each in _as_list(reply))[:MAX_QUEUES]
    heads = context.store.read_each([("LRANGE", keys.queue(each), -1, -1) for each in names]) if names else []
    counts: dict[str, Counter[str]] = {}
    for work in works:
        counts.setdefault(work.job.display_class, Counter())[work.queue] += 1
    for name, head in zip(names, heads, strict=True):
        for raw in _as_list(head):
            counts.setdefault(JobRecord(raw, name).display_class, Counter())[name] += 1
    return sorted((name, places.most_common()) for name, places in counts.items())


def _as_list(reply: Reply | WrongType) -> list[bytes]:
    """Return a list; none for a key of another type."""
    return [] if isinstance(reply, WrongType) else list(reply)


PAGES = (Page("routes", "/routes", show_routes, "routes.html", message("Routes"), place=120, key="u"),)
ACTIONS = ()
