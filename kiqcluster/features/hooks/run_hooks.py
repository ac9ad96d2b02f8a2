"""Run hooks: where a feature takes part in a run.  It has those that it needs; features/stacks lists the features.

| hook of a run | when                              | gives                       | of features                        |
|---------------|-----------------------------------|-----------------------------|------------------------------------|
| on_begin      | before the unit runs              | begin rows, or a verdict    | all that may refuse a run, history |
| on_start      | it may run, and nothing of it ran | nothing                     | timeouts                           |
| on_open       | inside of the server middleware   | the arguments for `perform` | encryption                         |
| on_end        | the outcome is decided            | rows of settle.lua          | all that keep something of it      |
| on_end_failed | `on_end` has raised an error      | these rows instead          | the same                           |
| on_unreadable | the unit is no job, and is buried | rows of settle.lua          | batches, deduplication             |

Each feature says which jobs use it: by their class (`is_used_by`), by `keys` of their payloads, or by what their run
has come to use (`is_used_in`).  A job that uses none pays for none.  The begin rows of all features of a unit are one
round trip, and none without rows (begin.lua).  The script that moves a unit releases what its begin rows took: features
never release anything themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from kiqcluster.application.registry import Definition
from kiqcluster.errors import MalformedPayload
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.hooks.job_start import JobStart
from kiqcluster.features.hooks.known_jobs import remember
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.engine.units import BeginVerdict

__all__ = ["NO_FEATURES", "BeginFeature", "EndFeature", "RunHooks", "ServerFeature", "Used"]


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


@runtime_checkable
class BeginFeature(ServerFeature, Protocol):
    """A server half that takes part before a unit runs."""

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        """Return what must be true before this unit runs, as rows of the table of begin.lua.

        A verdict decides at once, and the features after this one are not asked.
        """
        ...


@runtime_checkable
class AheadFeature(Protocol):
    """A server half whose `on_begin` may be called before it is the unit's turn, in the thread of another job.

    Of what the application has written, functions of a job's arguments may be called; what else they see then is an
    empty context.
    """

    def asks_ahead(self, definition: Definition) -> bool:
        """Return whether that is so for runs of this job."""
        ...


@runtime_checkable
class StartFeature(Protocol):
    """A server half that takes part at the moment at which a run starts."""

    def on_start(self, start: JobStart) -> None:
        """Take note of a run that nothing keeps from running any more."""
        ...


@runtime_checkable
class OpenFeature(Protocol):
    """A server half that gives `perform` other arguments than all others see, server middleware included."""

    def on_open(self, setup: Setup, payload: Payload, arguments: list[JSON]) -> list[JSON]:
        """Return the arguments for `perform`.  Raises what ends the run as an error of the job does."""
        ...


@runtime_checkable
class EndFeature(ServerFeature, Protocol):
    """A server half that takes part in the end of its jobs."""

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return rows of settle's table of effects; whatever the outcome is, also one that could not begin."""
        ...

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        """Return the rows that are written where `on_end` has raised an error, which is reported with the job.

        What the application has returned, logged or changed may have raised it.  So `end` has none of that: its payload
        is read anew, and nothing was returned or logged.  Calls no code of the application.
        """
        ...


@runtime_checkable
class LateFeature(EndFeature, Protocol):
    """A server half that a run may come to use, whatever its class and its payload say."""

    def is_used_in(self, context: JobContext) -> bool:
        """Return whether a run that has ended has used it; asked only of one whose context says so (`uses_more`)."""
        ...


@runtime_checkable
class UnreadableFeature(Protocol):
    """A server half that keeps something for a job whose bytes may turn out to be no job."""

    def on_unreadable(self, payload: Payload, keys: Keys, error: MalformedPayload) -> Iterable[Effect]:
        """Return rows of settle's table of effects.  payload: what could be read; any key may be missing."""
        ...


class Used:
    """The server halves that a job uses, in order, by the hooks that they have."""

    __slots__ = ("begins", "ends", "every", "has_rows", "may_begin_ahead", "opens", "starts")

    def __init__(self, features: tuple[ServerFeature, ...], definition: Definition | None) -> None:
        self.every = features
        self.begins = tuple(each for each in features if isinstance(each, BeginFeature))
        self.starts = tuple(each.on_start for each in features if isinstance(each, StartFeature))
        self.opens = tuple(each.on_open for each in features if isinstance(each, OpenFeature))
        self.ends = tuple(each for each in features if isinstance(each, EndFeature))
        self.has_rows = bool(self.begins or self.ends)
        self.may_begin_ahead = definition is not None and all(
            isinstance(each, AheadFeature) and each.asks_ahead(definition) for each in self.begins
        )


NO_FEATURES = Used((), None)


class RunHooks:
    """The server halves of the features.

    keys: of payloads that use one of them.  on_unreadable: the hooks of this name.
    """

    __slots__ = ("_by_job", "_ends", "_features", "_late", "keys", "on_unreadable")

    def __init__(self, features: tuple[ServerFeature, ...]) -> None:
        self.keys = frozenset(key for each in features for key in each.keys)
        self.on_unreadable = tuple(each.on_unreadable for each in features if isinstance(each, UnreadableFeature))
        self._features = features
        self._ends = tuple(each for each in features if isinstance(each, EndFeature))
        self._late = tuple(each for each in features if isinstance(each, LateFeature))
        self._by_job: dict[object, Used] = {None: NO_FEATURES}  # by definition, or with keys of the payload

    def of(self, definition: Definition | None, payload: Payload) -> Used:
        """Return the features that a unit uses, by its class or by keys of its payload."""
        known = self._by_job
        used = known.get(definition)
        if used is None:
            used = self._declared(definition, known)
        if self.keys.isdisjoint(payload):
            return used
        return self._with_keys(definition, used, payload, known)

    def ends_of(self, used: Used, context: JobContext) -> tuple[EndFeature, ...]:
        """Return the features that are asked at the end of a run, those that it has come to use among them."""
        if not context.uses_more:
            return used.ends
        late = [each for each in self._late if each.is_used_in(context)]
        return tuple(each for each in self._ends if each in used.ends or each in late)

    def ask_again(self) -> None:
        """Ask each feature once more which jobs use it: one of them has changed its answer.  From any thread."""
        self._by_job = {None: NO_FEATURES}  # what another thread finds goes into the old one

    def _declared(self, definition: Definition | None, known: dict[object, Used]) -> Used:
        if definition is None:  # forgotten by `remember`
            return NO_FEATURES
        features = tuple(each for each in self._features if each.is_used_by(definition))
        return remember(known, definition, Used(features, definition) if features else NO_FEATURES)

    def _with_keys(
        self, definition: Definition | None, declared: Used, payload: Payload, known: dict[object, Used]
    ) -> Used:
        present = (definition, self.keys.intersection(payload))
        used = known.get(present)
        if used is None:
            every = declared.every
            features = tuple(each for each in self._features if each in every or not each.keys.isdisjoint(payload))
            used = remember(known, present, Used(features, definition))
        return used
