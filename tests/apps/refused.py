"""Jobs that may be refused before they run: by policies whose flags are in Redis, or by strikes.

The set `off` names the jobs whose flag is off.  While the key `kills` is there, a process that has decided to refuse a
job with the argument "a" dies before it writes that down, once for each job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from kiqcluster import job, policies
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.policies import ServerPolicies
from kiqcluster.features.strikes import Strikes
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.outcome import Deferred, Dropped, Effect
from tests.apps.basic import note


def is_on(name: str) -> bool:
    return not current_setup().current_store().call("SISMEMBER", "off", name)


@job(policy=policies.feature_flag(is_on, delay=3_600))
def later(word: str) -> None:
    note("later", word)


@job(policy=policies.feature_flag(is_on, drop=True))
def never(word: str) -> None:
    note("never", word)


def die_once(end: JobEnd) -> None:
    """Kill this process between the verdict about a job and its settle."""
    store = current_setup().current_store()
    is_refused = isinstance(end.outcome, Deferred | Dropped) and end.payload["args"] == ["a"]
    if is_refused and store.call("EXISTS", "kills") and store.call("SADD", "killed", str(end.payload["jid"])):
        os.kill(os.getpid(), signal.SIGKILL)


def with_kills(feature: Any) -> None:
    """Have a feature die where it sees the end of a job that it has refused."""
    on_end = getattr(feature, "on_end", lambda _self, _end: ())

    def die_or_end(self: Any, end: JobEnd) -> Iterable[Effect]:
        die_once(end)
        return on_end(self, end)  # type: ignore[no-any-return]

    feature.on_end = die_or_end
    feature.on_end_failed = lambda _self, _end, _error: ()  # only a feature with both is asked at the end


with_kills(ServerPolicies)
with_kills(Strikes)
