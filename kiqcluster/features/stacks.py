"""The stacks of features: which are in force, in which order, inside of the application's own middleware.

client   the halves that take part in pushes     server   the halves that take part in runs (hooks/)

| feature           | where its rows at the end cannot be made                                                     |
|-------------------|----------------------------------------------------------------------------------------------|
| Chains            | the next job is buried with the reason, and who waits for the last one is told               |
| Results           | the reason is kept in place of the value, or the error of the run                            |
| ServerHistory     | the event that ends the job, with the reason in place of the value                           |
| BatchStatuses     | the next status of the job, without the messages that it has logged                          |
| ServerDeduplication | the lock is released, extended or handed on; the sweep sends the next equal job on         |
| ConcurrencyLimits | none: the unit releases its place, and the sweep sends the next job on                       |
| Iterations        | a job that is over loses its state; another one goes on where it has saved it last           |
| Strikes, Cancellations, progress | the same rows: they need the payload, and nothing else                        |
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kiqcluster.features.batches import BatchStatuses
from kiqcluster.features.cancellation import CANCELLATIONS, ClientCancellations
from kiqcluster.features.chains import Chains, ClientChains
from kiqcluster.features.deduplication import ClientDeduplication, ServerDeduplication
from kiqcluster.features.expiry import ClientExpiry, Expiry
from kiqcluster.features.history import ClientHistory, ServerHistory
from kiqcluster.features.hooks.push_hooks import ClientFeature, PushHooks
from kiqcluster.features.hooks.run_hooks import RunHooks, ServerFeature
from kiqcluster.features.iteration import Iterations
from kiqcluster.features.limits.concurrency_limit import ConcurrencyLimits
from kiqcluster.features.limits.rate_limits import RateLimits
from kiqcluster.features.payload.context import Contexts
from kiqcluster.features.payload.encryption import ClientEncryption, ServerEncryption
from kiqcluster.features.payload.size_limiter import SizeLimiter
from kiqcluster.features.policies import ClientPolicies, ServerPolicies
from kiqcluster.features.progress import PROGRESS
from kiqcluster.features.results import Results
from kiqcluster.features.strikes import STRIKES
from kiqcluster.features.timeouts import Timeouts
from kiqcluster.features.versions import VersionCheck
from kiqcluster.process.in_force import InForce

__all__ = ["Stacks", "current_stacks", "using_stacks"]


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Features in the order in which they are asked.  push, run: the same by their hooks."""

    client: tuple[ClientFeature, ...] = ()
    server: tuple[ServerFeature, ...] = ()
    push: PushHooks = field(init=False, repr=False)
    run: RunHooks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "push", PushHooks(self.client))
        object.__setattr__(self, "run", RunHooks(self.server))


# Order matters: a guarantee that may refuse a push comes before one that only records it; on the server, the cheapest
# check comes first.
STACKS = InForce(
    Stacks(
        client=(
            Contexts(),
            ClientCancellations(),
            ClientPolicies(),
            ClientDeduplication(),
            ClientHistory(),
            ClientExpiry(),
            ClientEncryption(),  # nothing sees the secret after it
            SizeLimiter(),
            ClientChains(),
        ),
        server=(
            Expiry(),  # what is of no use any more
            VersionCheck(),  # what this release cannot run
            CANCELLATIONS,  # what somebody has cancelled
            STRIKES,  # what an operator does not want to run
            ServerPolicies(),  # what the application does not want to run
            BatchStatuses(),  # what nobody wants any more, for its batch is cancelled
            RateLimits(),  # what may not run now
            ServerDeduplication(),  # what has equals: its line is the narrower one, and jobs wait there first
            ConcurrencyLimits(),  # what may not run beside others
            Results(),  # whose end somebody waits for
            ServerHistory(),  # whose course somebody may ask for
            Iterations(),  # who goes on where it was
            PROGRESS,  # who has said how far it is
            Timeouts(),  # who may run for so long only
            ServerEncryption(),  # who gets a secret
            Chains(),  # whose end pushes the next one: after all other rows, which Redis might refuse
        ),
    )
)


def current_stacks() -> Stacks:
    """Return the features in force."""
    return STACKS.value


def using_stacks(stacks: Stacks) -> AbstractContextManager[Stacks]:
    """Use other features for a while, for tests."""
    return STACKS.using(stacks)
