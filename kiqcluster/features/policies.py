"""Policies of jobs: the option `policy` (policies.py has the policies themselves).

client   on_push of a policy that has one, such as ReplicaReached
server   the verdict of the first policy that has one

Price: the calls of the policies; no key in Redis and no round trip of its own.
Runs in: the thread of the push; processor threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kiqcluster.application.registry import Definition
from kiqcluster.errors import UsageError
from kiqcluster.policies import Defer, Drop, Policy
from kiqcluster.process.runtime import Push, Run
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.engine.units import BeginVerdict

__all__ = ["ClientPolicies", "ServerPolicies"]


def _policies(definition: Definition) -> Sequence[Policy]:
    declared = definition.local.get("policy", ())
    return (declared,) if callable(declared) else declared


class ClientPolicies:
    """The client half."""

    def is_used_by(self, definition: Definition) -> bool:
        return any(hasattr(policy, "on_push") for policy in _policies(definition))

    def on_push(self, push: Push, definition: Definition) -> Iterable[Effect]:
        for policy in _policies(definition):
            if hasattr(policy, "on_push"):
                policy.on_push(push)
        return ()


class ServerPolicies:
    """The server half."""

    name = "policy"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return "policy" in definition.local

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        for policy in _policies(run.job):
            match policy(run):
                case None:
                    continue
                case Defer(seconds=seconds, reason=reason):
                    return BeginVerdict("defer", seconds, reason=reason)
                case Drop(reason=reason):
                    return BeginVerdict("drop", reason=reason)
                case other:
                    raise UsageError(f"a policy of {run.job.name} returned {other!r}; it returns Defer, Drop or None")
        return ()
