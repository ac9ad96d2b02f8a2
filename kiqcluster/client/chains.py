"""Chains: jobs that run one after the other, each with what the one before it has returned.

chain = download.then(resize, 80).then(publish.set(queue="low"))
chain.enqueue("a.png")

1. then      one job more, with its own arguments; they come behind what the job before it returns
2. prepare   at each push: all jobs but the first as payloads, through client middleware and checks
3. push      the first job, with the others in its payload (features/chains.py, which pushes them)

A chain is a value: it can be kept, pushed many times, and continued in several ways.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

from kiqcluster.application.options import CLAIMING, RESULT_TTL
from kiqcluster.application.registry import Definition
from kiqcluster.client.destination import store_for_handle, store_for_push
from kiqcluster.client.draft import Draft
from kiqcluster.client.handle import Handle
from kiqcluster.client.items import read_item
from kiqcluster.client.preparation import push_of
from kiqcluster.errors import InvalidArguments, InvalidPush, UsageError
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import ENCRYPT, EXPIRY, KEPT_RESULT_TTL, THEN, Jid, Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store

__all__ = ["MAX_CHAIN_BYTES", "MAX_JOBS", "AsyncNext", "Chain", "HasPerform", "Link", "Next"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
R_ = TypeVar("R_")
S = TypeVar("S")

MAX_JOBS = 50  # of a chain
MAX_CHAIN_BYTES = 1_000_000  # of all jobs but the first: each of them carries those after it
NEVER_KEPT = (EXPIRY, "enqueued_at")  # keys that count from the push of a job
RESERVED_KEYS = frozenset({"args", "at", "jid"})  # of an item, which a chain decides


class HasPerform(Protocol[P, R]):
    """A class whose instances have `perform`, which gives the verbs their signature."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Link(Generic[P, R]):
    """A job that can begin or continue a chain, with its options (job.Enqueuer).

    R: the result, which for an async job is what awaiting it gives.
    """

    definition: Definition

    @property
    def options(self) -> Mapping[str, JSON]:
        raise NotImplementedError

    def with_keys(self, keys: Mapping[str, JSON]) -> Self:
        """Return the same job with more keys of its payload."""
        raise NotImplementedError

    def perform_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        raise NotImplementedError

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        raise NotImplementedError

    def perform_in(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        raise NotImplementedError

    def perform_at(self, when: float | datetime, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        raise NotImplementedError

    def run_inline(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Run the job here; return what it returned as the only element, nothing if middleware stopped it."""
        raise NotImplementedError

    @overload
    def then(self: Link[P, R_], job: AsyncNext[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> Chain[P, S]: ...
    @overload
    def then(self: Link[P, R_], job: Next[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> Chain[P, S]: ...
    @overload
    def then(self, job: Mapping[str, Any], /, *args: Any) -> Chain[P, Any]: ...
    def then(self, job: Any, /, *args: Any, **kwargs: Any) -> Chain[P, Any]:
        """Return a chain of this job and another one.  See Chain.then."""
        return Chain(self).then(job, *args, **kwargs)


# A job that takes what the job before it returns; a class with `async def perform`.
Next = Link[Concatenate[R_, Q], S] | type[HasPerform[Concatenate[R_, Q], S]]
AsyncNext = type[HasPerform[Concatenate[R_, Q], Coroutine[Any, Any, S]]]


@dataclass(frozen=True, slots=True)
class _Step:
    """A job of a chain, and its arguments behind the first one, which is None in `arguments`."""

    job: Any
    arguments: list[JSON]


class _Prepared(NamedTuple):
    """The jobs after the first one.  definition: of the last one, None for a class that is not defined here."""

    following: list[Payload]
    definition: Definition | None

    @property
    def keys(self) -> dict[str, JSON]:
        """Of the payload of the first job."""
        return {THEN: self.following} if self.following else {}

    @property
    def jids(self) -> list[Jid]:
        return [Jid(each["jid"]) for each in self.following]


class Chain(Generic[P, R]):
    """Jobs that run one after the other.  first: the first of them, whose arguments are those of the verbs.

    All verbs check all jobs before anything is written.  Raises InvalidPush, InvalidArguments, StoreError.
    """

    def __init__(self, first: Link[P, Any], steps: tuple[_Step, ...] = ()) -> None:
        self.first = first
        self._steps = steps

    def __repr__(self) -> str:
        names = [self.first.definition.name, *(_name(each.job) for each in self._steps)]
        return f"<chain {' → '.join(names)}>"

    @overload
    def then(self: Chain[P, R_], job: AsyncNext[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> Chain[P, S]: ...
    @overload
    def then(self: Chain[P, R_], job: Next[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> Chain[P, S]: ...
    @overload
    def then(self, job: Mapping[str, Any], /, *args: Any) -> Chain[P, Any]: ...
    def then(self, job: Any, /, *args: Any, **kwargs: Any) -> Chain[P, Any]:
        """Return a chain with one job more: it gets what the job before it returns, then these arguments.

        job: a job class or job function, also with `.set(…)`; or an item as for Client.push, for a class that is not
        defined here: `{"class": "Acme::Mail", "queue": "mailers"}`.
        """
        arguments = _arguments(job, args, kwargs)
        link = job.set() if isinstance(job, type) and hasattr(job, "set") else job
        step = _Step(link, arguments)
        if len(self._steps) + 2 > MAX_JOBS:
            raise InvalidPush(f"a chain has {MAX_JOBS} jobs at most; have a job at the end enqueue the next chain")
        return Chain(self.first, (*self._steps, step))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        """Enqueue the chain; return the handle of its last job, or None when client middleware stopped the first one.

        One round trip.
        """
        prepared = self.prepared()
        jid = self._first(prepared).perform_async(*args, **kwargs)
        return None if jid is None else self._handle(prepared, jid)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        """Do the same in a coroutine: its event loop goes on meanwhile."""
        prepared = self.prepared()
        handle = await self._first(prepared).aenqueue(*args, **kwargs)
        return None if handle is None else self._handle(prepared, handle.jid)

    def perform_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the chain; return the id of its last job, or None when client middleware stopped the first one."""
        prepared = self.prepared()
        return _last(prepared, self._first(prepared).perform_async(*args, **kwargs))

    def perform_in(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the chain so that its first job runs after a delay; return as perform_async."""
        prepared = self.prepared()
        return _last(prepared, self._first(prepared).perform_in(delay, *args, **kwargs))

    def perform_at(self, when: float | datetime, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the chain so that its first job runs at a time; return as perform_async."""
        prepared = self.prepared()
        return _last(prepared, self._first(prepared).perform_at(when, *args, **kwargs))

    def perform_inline(self, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Run all jobs in this thread, one after the other; return the result of the last one.

        None when middleware stopped one of them.  Errors of the jobs are raised unchanged.
        """
        returned = self.first.run_inline(args, kwargs)
        for step in self._steps:
            if not returned:
                return None
            if not isinstance(step.job, Link):
                raise UsageError(f"{_name(step.job)} is not defined here, so that it cannot run here")
            returned = step.job.run_inline((returned[0], *step.arguments[1:]), {})
        return returned[0] if returned else None

    def prepared(self, store: Store | None = None) -> _Prepared:
        """Return the payloads of all jobs but the first.  store: that gets them, whatever their classes say.

        Raises InvalidPush for a job that cannot be in a chain.
        """
        setup = current_setup()
        first = self.first.definition
        _check(first.name, first, {})
        place = store_for_push(setup, first.name, first, store)
        following, definition = list[Payload](), None
        for step in self._steps:
            name, definition, options = _read_job(setup, step.job)
            _check(name, definition, options)
            if store_for_push(setup, name, definition, store) is not place:
                raise InvalidPush(
                    f"{name} is in another shard than {first.name}, and a chain is in one: route both to one shard, or "
                    "have the job before it enqueue it"
                )
            following.append(_payload(setup, Draft(name, options, list(step.arguments), definition, store=store)))
        if following and definition is not None and RESULT_TTL in definition.local:
            following[-1][KEPT_RESULT_TTL] = definition.local[RESULT_TTL]
        _check_size(following)
        return _Prepared(following, definition)

    def _first(self, prepared: _Prepared) -> Link[P, Any]:
        return self.first.with_keys(prepared.keys)

    def _handle(self, prepared: _Prepared, first: Jid) -> Handle[R]:
        definition = prepared.definition if prepared.following else self.first.definition
        name = str(prepared.following[-1]["class"]) if prepared.following else self.first.definition.name
        store = store_for_handle(self.first.definition.name, self.first.definition)
        jids = (first, *prepared.jids)
        return Handle(jids[-1], definition, store, name=name, jids=jids)


def _last(prepared: _Prepared, first: Jid | None) -> Jid | None:
    return None if first is None else [first, *prepared.jids][-1]


def _name(job: Any) -> str:
    definition = getattr(job, "definition", None)
    return str(job.get("class")) if isinstance(job, Mapping) else str(getattr(definition, "name", job))


def _arguments(job: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[JSON]:
    """Return the arguments of a job, None as the first.  Raises InvalidArguments if they do not fit, InvalidPush."""
    definition = getattr(job, "definition", None)
    if isinstance(definition, Definition) and not isinstance(job, Mapping):
        if definition.most < 1:
            raise InvalidArguments(
                f"{definition.name} takes no argument, and in a chain it gets what was returned before"
            )
        return definition.following(args, kwargs)
    if not isinstance(job, Mapping):
        raise InvalidPush(f"{job!r} is not a job: pass a job class, a job function, or an item as for Client.push")
    if reserved := sorted(RESERVED_KEYS & job.keys()):
        raise InvalidPush(f"{reserved[0]} does not belong into a job of a chain; pass arguments to `then`")
    return [None, *args]


def _read_job(setup: Setup, job: Any) -> tuple[str, Definition | None, Mapping[str, JSON]]:
    name, definition, options = read_item(setup, job if isinstance(job, Mapping) else {"class": job})
    return name, definition, job.options if isinstance(job, Link) else options


def _check(name: str, definition: Definition | None, options: Mapping[str, JSON]) -> None:
    """Raise InvalidPush for a job whose options do not go with a chain."""
    if definition is not None and definition.enveloped is not None:
        raise InvalidPush(f"{name} has active_job, which is for jobs of Rails, and these end a chain; leave it out")
    if definition is not None and definition.local.get("deduplicate") in CLAIMING:
        raise InvalidPush(
            f"{name} has an option by which a push may be refused (deduplicate), and its chain would end there; leave "
            "it out, or have a job enqueue it"
        )
    if options.get(ENCRYPT):
        raise InvalidPush(
            f"{name} has encrypt, and gets an argument from the job before it, which is not encrypted; only the first "
            "job of a chain may have it"
        )


def _payload(setup: Setup, draft: Draft) -> Payload:
    """Return a job as the chain carries it: as a push would write it, without the times of that."""
    push = push_of(setup, draft)
    if push is None:
        raise InvalidPush(
            f"client middleware stopped {draft.name}, so that its chain would end there; nothing was enqueued"
        )
    if push.rows or push.at is not None or push.payload.get(ENCRYPT):
        raise InvalidPush(
            f"client middleware, or a policy, gave {draft.name} what no job of a chain may have: a time, rows, encrypt"
        )
    current_stacks().push.complete(setup, push, draft.definition)
    return {key: value for key, value in push.payload.items() if key not in NEVER_KEPT}


def _check_size(following: list[Payload]) -> None:
    try:
        encoded = ruby_json.encode({THEN: following})
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPush(f"a payload of the chain holds what JSON cannot ({error})") from error
    if len(encoded) > MAX_CHAIN_BYTES:
        raise InvalidPush(
            f"the jobs after the first one have {len(encoded)} bytes, and a chain takes {MAX_CHAIN_BYTES} at most; "
            "store the data elsewhere, and pass where it is"
        )
    if not ruby_json.ruby_reads(encoded):
        raise InvalidArguments("arguments of the chain are nested deeper than Ruby can read; store them elsewhere")
