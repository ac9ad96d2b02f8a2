"""The hooks of a run: which features a job uses, found once, and in which order they are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Event

from kiqcluster import job
from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.hooks.run_hooks import NO_FEATURES, RunHooks
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload


@dataclass(eq=False)
class Beginning:
    """A feature without an end.  uses: classes that declare it."""

    name: str
    uses: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    asked: Counter[str] = field(default_factory=Counter)

    def is_used_by(self, definition: Definition) -> bool:
        self.asked[definition.name] += 1
        return definition.name in self.uses

    def on_begin(self, _run: Run) -> Iterable[Effect]:
        return ()


@dataclass(eq=False)
class Ending:
    """A feature without a begin."""

    name: str
    uses: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return definition.name in self.uses

    def on_end(self, _end: JobEnd) -> Iterable[Effect]:
        return ()

    def on_end_failed(self, _end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        return ()


class Late(Ending):
    """A feature that cancelled runs come to use."""

    def is_used_in(self, context: JobContext) -> bool:
        return context.cancelled


def declared(name: str) -> Definition:
    return job(name=name)(lambda: None).definition


def payload(**keys: object) -> Payload:
    return {"class": "any", "args": [], "jid": "a" * 24, **keys}


def test_the_features_of_a_class_are_found_once_and_those_of_its_keys_too() -> None:
    by_class, by_key = Beginning("by class", ("used",)), Beginning("by key", keys=frozenset({"key"}))
    hooks, used, unused = RunHooks((by_class, by_key)), declared("used"), declared("unused")

    first, with_key = hooks.of(used, payload()), hooks.of(used, payload(key=1))

    assert (first.begins, with_key.begins) == ((by_class,), (by_class, by_key))
    assert hooks.of(used, payload()) is first
    assert hooks.of(used, payload(key=2)) is with_key
    assert hooks.of(unused, payload()) is NO_FEATURES
    assert hooks.of(None, payload()) is NO_FEATURES
    assert hooks.of(None, payload(key=1)).every == (by_key,)
    assert by_class.asked == by_key.asked == {"used": 1, "unused": 1}


def test_features_are_asked_anew_once_one_has_changed_its_answer() -> None:
    feature, definition = Beginning("changes"), declared("used")
    hooks = RunHooks((feature,))
    assert hooks.of(definition, payload()) is NO_FEATURES

    feature.uses = ("used",)
    hooks.ask_again()

    assert hooks.of(definition, payload()).every == (feature,)


def test_a_feature_is_asked_only_by_the_hooks_that_it_has() -> None:
    begins, ends = Beginning("begins", ("used",)), Ending("ends", ("used",))

    used = RunHooks((begins, ends)).of(declared("used"), payload())

    assert (used.begins, used.ends, used.starts, used.opens) == ((begins,), (ends,), (), ())


def test_a_feature_that_a_run_comes_to_use_is_asked_at_its_place() -> None:
    late, last = Late("late"), Ending("last", ("used",))
    hooks = RunHooks((late, last))
    used, context = hooks.of(declared("used"), payload()), JobContext(payload(), "default", "used", Event())
    assert hooks.ends_of(used, context) == (last,)

    context.progress(1)
    assert hooks.ends_of(used, context) == (last,)

    context.cancel()
    assert hooks.ends_of(used, context) == (late, last)
