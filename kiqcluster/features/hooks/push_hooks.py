"""Push hooks: where a feature takes part in a push.  It has those that it needs; features/stacks lists the features.

| hook of a push   | when                                       | gives            | of features                      |
|------------------|--------------------------------------------|------------------|----------------------------------|
| on_draft         | first, once for a push or a bulk push      | the options      | contexts                         |
| on_named_jid     | after middleware, if the caller gave a jid | rows of push.lua | cancellations                    |
| on_push          | next, where the class uses the feature     | rows of push.lua | policies, deduplication, history |
| on_encode        | the payload is final, and has its `key`    | changes of it    | expiry, encryption               |
| on_encoded       | the payload is large for it (`looks_at`)   | the bytes        | size limiter                     |
| on_moved_by_hand | somebody moves a waiting job to its queue  | keys to remove   | expiry                           |
| on_dropped       | middleware drops a job that waits          | who is told      | chains                           |

on_push is asked of features that say so of the class (`is_used_by`), on_encode of payloads with their `key`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, runtime_checkable

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.known_jobs import remember
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.entry_moves import Told

__all__ = ["ClientFeature", "PushHooks"]


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
class MovedByHandFeature(Protocol):
    """A client half that may keep a job from running that somebody moves to its queue."""

    def on_moved_by_hand(self, payload: Payload, now: float) -> Collection[str]:
        """Return the keys of the payload that the job is to lose.  now: epoch seconds."""
        ...


@runtime_checkable
class DroppedFeature(Protocol):
    """A client half for whose jobs somebody waits."""

    def on_dropped(self, raw: bytes, reason: str) -> Iterable[Told]:
        """Return who is told that client middleware drops a job which waits.  raw: its entry, which may be no job."""
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


ClientFeature = (
    DraftFeature | NamedJidFeature | PushFeature | EncodeFeature | EncodedFeature | MovedByHandFeature | DroppedFeature
)


class PushHooks:
    """The client halves of the features, by the hooks that they have.

    on_draft, on_named_jid, on_moved_by_hand, on_dropped: the hooks themselves.  on_encode: the hooks, each with the key
    of the payloads that use it; encode_keys: these keys.  encoded_features: those with `on_encoded`.  push_features:
    those with `on_push`.
    """

    __slots__ = (
        "_by_definition",
        "encode_keys",
        "encoded_features",
        "on_draft",
        "on_dropped",
        "on_encode",
        "on_moved_by_hand",
        "on_named_jid",
        "push_features",
    )

    def __init__(self, features: tuple[ClientFeature, ...]) -> None:
        self.on_draft = tuple(each.on_draft for each in features if isinstance(each, DraftFeature))
        self.on_named_jid = tuple(each.on_named_jid for each in features if isinstance(each, NamedJidFeature))
        self.on_moved_by_hand = tuple(
            each.on_moved_by_hand for each in features if isinstance(each, MovedByHandFeature)
        )
        self.on_dropped = tuple(each.on_dropped for each in features if isinstance(each, DroppedFeature))
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
            remember(self._by_definition, definition, found)
        return found
