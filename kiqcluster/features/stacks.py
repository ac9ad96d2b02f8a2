"""The stacks of features: what a push and a run go through inside the application's own middleware.

client   on_draft, on_push, on_encode, on_encoded: the hooks of a push, of which a feature has those that it needs
server   on_begin, before a unit runs: a verdict, or begin rows (begin.lua), all features of a unit in one round trip
         on_end, when the outcome is decided: rows of settle's table of effects, written with that outcome; only of
         those that have it (EndFeature).  on_end_failed: the rows instead, where on_end has raised an error

| hook         | when                                       | gives            | of features                      |
|--------------|--------------------------------------------|------------------|----------------------------------|
| on_draft     | first, once for a push or a bulk push      | the options      | contexts                         |
| on_named_jid | after middleware, if the caller gave a jid | rows of push.lua | cancellations                    |
| on_push      | next, where the class uses the feature     | rows of push.lua | policies, deduplication, history |
| on_encode    | the payload is final, and has its `key`    | changes of it    | expiry, encryption               |
| on_encoded   | the payload is large for it (`looks_at`)   | the bytes        | size limiter                     |

Each feature says which jobs use it.  A job that uses none pays for none; a feature without rows costs no round trip.
The script that moves a unit releases what its begin rows took.  Features never release anything themselves.

| feature           | where its rows at the end cannot be made                                                     |
|-------------------|----------------------------------------------------------------------------------------------|
| Chains            | the next job is buried with the reason, and who waits for the last one is told               |
| Results           | the reason is kept in place of the value, or the error of the run                            |
| ServerHistory     | the event that ends the job, with the reason in place of the value                           |
| TaskEvents        | the next status of the job, without the messages that it has logged                          |
| ServerDeduplication | the lock is released, extended or handed on; the sweep sends the next equal job on         |
| ConcurrencyLimits | none: the unit releases its place, and the sweep sends the next job on                       |
| Iterations        | a job that is over loses its state; another one goes on where it has saved it last           |
| Strikes, Cancellations, progress | the same rows: they need the payload, and nothing else                        |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from kiqcluster.application.registry import Definition
from kiqcluster.features.cancellation import CANCELLATIONS, ClientCancellations
from kiqcluster.features.chains import Chains
from kiqcluster.features.deduplication import ClientDeduplication, ServerDeduplication
from kiqcluster.features.expiry import ClientExpiry, Expiry
from kiqcluster.features.history import ClientHistory, ServerHistory
from kiqcluster.features.iteration import Iterations
from kiqcluster.features.job_end import JobEnd
from kiqcluster.features.limits.concurrency_limit import ConcurrencyLimits
from kiqcluster.features.limits.rate_limits import RateLimits
from kiqcluster.features.payload.context import Contexts
from kiqcluster.features.payload.encryption import ClientEncryption
from kiqcluster.features.payload.size_limiter import SizeLimiter
from kiqcluster.features.policies import ClientPolicies, ServerPolicies
from kiqcluster.features.results import Results
from kiqcluster.features.strikes import STRIKES
from kiqcluster.features.tasks import TaskEvents
from kiqcluster.features.versions import VersionCheck
from kiqcluster.process.in_force import InForce
from kiqcluster.process.runtime import Push, Run, Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.engine.units import BeginVerdict

__all__ = [
    "ClientFeature",
    "EndFeature",
    "PushHooks",
    "ServerFeature",
    "Stacks",
    "asks_ahead",
    "current_stacks",
    "using_stacks",
]

MAX_DEFINITIONS = 10_000  # whose features are kept
F = TypeVar("F")
K = TypeVar("K")


@runtime_checkable
class DraftFeature(Protocol):
    """A client half that adds to the options of each push, of classes that are not registered here as well."""

    def on_draft(self, options: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the options of a push: the same ones, or others; they are not to be changed."""
        ...


@runtime_checkable
class NamedJidFeature(Protocol):
    """A client half for pushes whose jid the caller has named."""

    def on_named_jid(self, push: Push) -> Iterable[Effect]:
        """Return rows of the table of push.lua."""
        ...


@runtime_checkable
class EncodeFeature(Protocol):
    """A client half that changes the final payload.  key: of the payloads that use it."""

    key: str

    def on_encode(self, setup: Setup, push: Push, definition: Definition | None) -> None:
        """Change the payload, or replace it.  definition: None for a class that is not registered here."""
        ...


@runtime_checkable
class EncodedFeature(Protocol):
    """A client half that sees large payloads as bytes."""

    def looks_at(self, setup: Setup, size: int) -> bool:
        """Return whether a payload of so many bytes may concern it."""
        ...

    def on_encoded(self, setup: Setup, name: str, definition: Definition | None, encoded: bytes) -> bytes:
        """Return the bytes to write.  name: of the job, in messages.  Raises PushError."""
        ...


@runtime_checkable
class PushFeature(Protocol):
    """A client half that takes part in the write of jobs of some classes."""

    def is_used_by(self, definition: Definition) -> bool:
        """Return whether pushes of this job go through the feature."""
        ...

    def on_push(self, push: Push, definition: Definition) -> Iterable[Effect]:
        """Return rows of the table of push.lua.  The payload may be changed; its arguments are checked already."""
        ...


ClientFeature = DraftFeature | NamedJidFeature | PushFeature | EncodeFeature | EncodedFeature


class ServerFeature(Protocol):
    """The server half of a feature.

    name: written to `deferred_by` of a job that it defers.
    keys: of payloads; a job whose payload has one of them uses the feature, whatever its class declares here.
    """

    @property
    def name(self) -> str: ...
    @property
    def keys(self) -> frozenset[str]: ...

    def is_used_by(self, definition: Definition) -> bool:
        """Return whether runs of this job go through the feature."""
        ...

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        """Return what must be true before this unit runs, as rows of the table of begin.lua.

        A verdict decides at once, and the features after this one are not asked.
        """
        ...


@runtime_checkable
class EndFeature(Protocol):
    """What a server half has as well that takes part in the end of its jobs."""

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return rows of settle's table of effects; whatever the outcome is, also one that could not begin."""
        ...

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        """Return the rows that are written where `on_end` has raised an error, which is reported with the job.

        What the application has returned, logged or changed may have raised it.  So `end` has none of that: its payload
        is read anew, and nothing was returned or logged.  Calls no code of the application.
        """
        ...


def asks_ahead(feature: ServerFeature, definition: Definition) -> bool:
    """Return whether `on_begin` of a feature may be called before it is the unit's turn, in the thread of another job.

    Only if it says so: its method `asks_ahead`.  Of what the application has written, functions of a job's arguments
    may be called; what else they see then is an empty context.
    """
    answer: Callable[[Definition], bool] | None = getattr(feature, "asks_ahead", None)
    return answer is not None and answer(definition)


class PushHooks:
    """The client halves of the features, by the hooks that they have.

    on_draft, on_named_jid: the hooks themselves.  on_encode: the same, each with the key of the payloads that use it;
    encode_keys: these keys.  encoded_features: those with `on_encoded`.  push_features: those with `on_push`.
    """

    __slots__ = (
        "_by_definition",
        "encode_keys",
        "encoded_features",
        "on_draft",
        "on_encode",
        "on_named_jid",
        "push_features",
    )

    def __init__(self, features: tuple[ClientFeature, ...]) -> None:
        self.on_draft = tuple(each.on_draft for each in features if isinstance(each, DraftFeature))
        self.on_named_jid = tuple(each.on_named_jid for each in features if isinstance(each, NamedJidFeature))
        self.push_features = tuple(each for each in features if isinstance(each, PushFeature))
        self.on_encode = tuple((each.key, each.on_encode) for each in features if isinstance(each, EncodeFeature))
        self.encode_keys = frozenset(key for key, _ in self.on_encode)
        self.encoded_features = tuple(each for each in features if isinstance(each, EncodedFeature))
        self._by_definition: dict[Definition, tuple[PushFeature, ...]] = {}

    def complete(self, setup: Setup, push: Push, definition: Definition | None) -> None:
        """Have features change the final payload: keys that count from it, a secret to encrypt.  Raises PushError."""
        for key, on_encode in self.on_encode:
            if key in push.payload:
                on_encode(setup, push, definition)

    def of(self, definition: Definition) -> tuple[PushFeature, ...]:
        """Return the features that take part in the write of a job."""
        found = self._by_definition.get(definition)
        if found is None:
            found = tuple(each for each in self.push_features if each.is_used_by(definition))
            _remember(self._by_definition, definition, found)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Features in the order in which they are asked."""

    client: tuple[ClientFeature, ...] = ()
    server: tuple[ServerFeature, ...] = ()
    keys: tuple[str, ...] = field(init=False)  # of payloads that use a server half
    push: PushHooks = field(init=False, repr=False)
    _server_of: dict[object, tuple[ServerFeature, ...]] = field(init=False, repr=False)  # by definition, or with keys

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(sorted({key for each in self.server for key in each.keys})))
        object.__setattr__(self, "push", PushHooks(self.client))
        object.__setattr__(self, "_server_of", {})

    def server_of(self, definition: Definition | None, payload: Payload) -> tuple[ServerFeature, ...]:
        """Return the server halves that a unit uses, by its class or by keys of its payload."""
        known = self._server_of
        declared = known.get(definition)
        if declared is None:
            declared = self._declared(definition, known)
        for key in self.keys:
            if key in payload:
                return self._with_keys(definition, declared, payload, known)
        return declared

    def _with_keys(
        self,
        definition: Definition | None,
        declared: tuple[ServerFeature, ...],
        payload: Payload,
        known: dict[object, tuple[ServerFeature, ...]],
    ) -> tuple[ServerFeature, ...]:
        present = (definition, *[key for key in self.keys if key in payload])
        found = known.get(present)
        if found is None:
            found = tuple(each for each in self.server if each in declared or not each.keys.isdisjoint(payload))
            _remember(known, present, found)
        return found

    def _declared(
        self, definition: Definition | None, known: dict[object, tuple[ServerFeature, ...]]
    ) -> tuple[ServerFeature, ...]:
        if definition is None:
            return ()
        declared = tuple(each for each in self.server if each.is_used_by(definition))
        _remember(known, definition, declared)
        return declared

    def ask_again(self) -> None:
        """Ask each server half once more which jobs use it: one of them has changed its answer.  From any thread."""
        object.__setattr__(self, "_server_of", {})  # what another thread finds goes into the old one


def _remember(known: dict[K, tuple[F, ...]], key: K, features: tuple[F, ...]) -> None:
    """Keep which features a job uses; a process that makes definitions without end keeps some of them."""
    if len(known) >= MAX_DEFINITIONS:
        known.clear()
    known[key] = features


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
        ),
        server=(
            Expiry(),  # what is of no use any more
            VersionCheck(),  # what this release cannot run
            CANCELLATIONS,  # what somebody has cancelled
            STRIKES,  # what an operator does not want to run
            ServerPolicies(),  # what the application does not want to run
            TaskEvents(),  # what nobody wants any more, for its task is cancelled
            RateLimits(),  # what may not run now
            ServerDeduplication(),  # what has equals: its line is the narrower one, and jobs wait there first
            ConcurrencyLimits(),  # what may not run beside others
            Results(),  # whose end somebody waits for
            ServerHistory(),  # whose course somebody may ask for
            Iterations(),  # who goes on where it was
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
