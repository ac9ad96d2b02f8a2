"""Shared names: what an application declares under names that all applications on a Redis share.  Pure.

Redis counts a rate limit by its name, and concurrency limits and locks by the name of the job's class, whichever
application asks; a shard is where its name leads.  That is right where the names mean the same: two applications may
share a limit for one service, or import one class.  Where they declare one name otherwise, each process logs it with
both applications (worker/fleet_checks).

Not here: cron entries, which have an owner (worker/maintenance/cron_sync); routing rules, which each application has
for its own pushes; strikes, by which an operator means all jobs of a class name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kiqcluster.application.registry import Definition, Registry
from kiqcluster.limits import RateLimit
from kiqcluster.process.config import Config
from kiqcluster.store.shards import place_of

__all__ = ["KINDS", "consequence_of", "digest_of", "shared_names"]

KINDS = {  # kind of a name → what follows from two meanings
    "concurrency limit": "jobs of both take places in one set, each up to its own limit",
    "rate limit": "starts of both count together, each against its own limit",
    "lock": "a waiting job of one keeps an equal push of the other out",
    "shard": "what is moved to the shard goes to the Redis of the one that moves it",
}
LIMIT_OPTIONS = ("concurrency_limit", "concurrency_key")
LOCK_OPTIONS = (
    *("deduplicate", "deduplicate_key", "deduplicate_ttl"),
    *("deduplicate_scheduled", "reschedule_once"),
)
NO_STRATEGY = "none"
DIGEST_CHARACTERS = 16


def shared_names(config: Config, registry: Registry) -> dict[str, str]:
    """Return kind and name → the declaration, as text to be compared and shown."""
    found = {f"shard {each.name}": place_of(each.redis) for each in config.shards}
    for definition in registry:
        found |= dict(_of_job(definition))
    return found


def _of_job(definition: Definition) -> Iterator[tuple[str, str]]:
    local = definition.local
    if "concurrency_limit" in local:
        yield f"concurrency limit {definition.name}", _shown(definition, LIMIT_OPTIONS)
    if local.get("deduplicate", NO_STRATEGY) != NO_STRATEGY:
        yield f"lock {definition.name}", _shown(definition, LOCK_OPTIONS)
    limit: RateLimit | None = local.get("rate_limit")
    if limit is not None:
        yield f"rate limit {limit.name or definition.name}", f"{limit.kind}({limit.largest}, {limit.seconds:g})"


def _shown(definition: Definition, options: Sequence[str]) -> str:
    """Return options of a job, and its queue: two classes of one name are seldom in one queue."""
    values = {name: definition.local[name] for name in options if name in definition.local}
    return ", ".join(f"{name}={_text(value)}" for name, value in {**values, "queue": definition.queue}.items())


def _text(value: Any) -> str:
    return "a function" if callable(value) else str(value)


def digest_of(names: Mapping[str, str]) -> str:
    """Return a short word for all declarations, "" for none."""
    text = "\n".join(f"{name}\t{declared}" for name, declared in sorted(names.items()))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARACTERS] if names else ""


def consequence_of(name: str) -> str:
    """Return what follows if two applications declare a name otherwise."""
    return next(words for kind, words in KINDS.items() if name.startswith(f"{kind} "))
