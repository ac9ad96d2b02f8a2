"""Batch: many jobs with one status.

Batch.create, Batch.open   a batch, with jobs for rows, or to add jobs of several kinds before it can be complete
batch.add                 more jobs, from inside of a job of the batch or while it is open
batch.status, batch.jobs, Batch.all   what became of the jobs; which batches there are
batch.cancel, batch.close, batch.mark    ends it; ends an interrupted creation; gives a job its status by hand

A job is pushed and counted in one step, so no job is counted that is not in a queue.  A batch whose creator died stays
`open`: `close` has it complete with the jobs that it has, `cancel` has those dropped.
All jobs of a batch, and its callbacks, are in one Redis: that of its first job class, or of `Client.via`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kiqcluster.application.argument_types import TypedDefinition
from kiqcluster.batches.added_jids import added_jids, secret_key
from kiqcluster.batches.callbacks import prepared_callbacks
from kiqcluster.batches.records import STATUS_FIELDS, BatchJob, BatchParts, BatchStatus, read_job, read_status
from kiqcluster.client.chains import Chain
from kiqcluster.client.destination import require_store_for_push
from kiqcluster.client.draft import Drafts
from kiqcluster.client.items import read_item
from kiqcluster.client.preparation import all_positions, prepare_all
from kiqcluster.control.cancellation import remove_of_batches, tell_processes
from kiqcluster.errors import BatchEnded, InvalidPush, UsageError
from kiqcluster.process.delivery import Ready
from kiqcluster.process.job_context import JobContext, current_job
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import ENCRYPT, TASK_ID, USE_TASK_EVENT, Jid, batch_of, new_jid
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.store import batches as stored
from kiqcluster.store.batches import NewBatchJob
from kiqcluster.store.scripts import Word

__all__ = ["MAX_FAILURES", "Batch", "current_batch"]

TTL_SECONDS = 30 * 86_400  # of a batch after its latest change
KEPT_SECONDS = 7 * 86_400  # of a complete one
MAX_TTL_SECONDS = 3_650 * 86_400
MAX_TEXT_CHARACTERS = 1_000  # of a name or a reason
MAX_PARAMS_BYTES = 1_000  # of the arguments of a job that are kept in its batch
NOTHING_ENQUEUED = "no row was enqueued: each equals a job that waits or runs already, or was stopped by middleware"
MAX_FAILURES = 100  # that a status has


class Batch:
    """A batch in Redis.  id: 24 hex digits.  Cheap to make; each method asks Redis anew."""

    def __init__(self, identifier: str, store: Store) -> None:
        self.id = identifier
        self._store = store

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    @classmethod
    def create(
        cls,
        name: str,
        job: Any,
        rows: Iterable[Sequence[JSON]] = (),
        *,
        queue: str = "",
        on_complete: Any = None,
        on_success: Any = None,
        on_death: Any = None,
        parent: Batch | None = None,
        ttl: int = TTL_SECONDS,
        kept: int = KEPT_SECONDS,
        history: bool = False,
    ) -> Batch:
        """Create a batch with a job for each row of arguments, and enqueue the jobs.

        job: a class, a job function, or the name of a class that is not defined here, which needs a queue.
        on_complete, on_success, on_death: jobs, called with the id of the batch (callbacks.py).  parent: a batch that
        is not complete before this one.  ttl: seconds that the batch is kept after its latest change.  kept: once it is
        complete.  history: whether BatchHistory copies it to a database.
        Rows that equal jobs which wait or run already (option `deduplicate`), or that client middleware stops, are no
        jobs of the batch: `status().total` is less than `expected`.  If no row is left, the batch is cancelled, and its
        `reason` says so: `on_success` is not pushed.
        Three round trips, and one for each 1 000 rows after the first.
        Raises PushError before anything is written; BatchEnded for a parent that is complete; StoreError, after which
        the batch is `open`, with the jobs that were enqueued.
        """
        rows = list(rows)
        callbacks = {"on_complete": on_complete, "on_success": on_success, "on_death": on_death}
        setup = current_setup()
        label, definition, options = _job(job, queue)
        store = require_store_for_push(setup, label, definition, None if parent is None else parent._store)
        batch = cls(new_jid(), store)
        jobs = [each for each in batch._prepared(label, definition, options, rows) if each is not None]
        kept_callbacks = prepared_callbacks(setup, store, batch.id, callbacks)
        batch._create(
            name, label, len(rows), kept_callbacks, parent, {"ttl": ttl, "kept": kept, "history": int(history)}
        )
        refused = stored.push_jobs(store, batch.id, jobs, _replicas(definition))
        if rows and all(each.jid in refused for each in jobs):  # complete at once, but its work is not done
            stored.cancel_batch(store, batch.id, NOTHING_ENQUEUED)
        else:
            stored.close_batch(store, batch.id)
        return batch

    @classmethod
    @contextmanager
    def open(
        cls,
        name: str,
        *,
        on_complete: Any = None,
        on_success: Any = None,
        on_death: Any = None,
        parent: Batch | None = None,
        ttl: int = TTL_SECONDS,
        kept: int = KEPT_SECONDS,
        history: bool = False,
        store: Store | None = None,
    ) -> Iterator[Batch]:
        """Create a batch that is not complete before the `with` block ends, to add jobs of several kinds.

        store: the Redis of the batch, None for that of its parent or the default one.  After an error in the block the
        batch stays `open`, with the jobs that it has.  Two round trips, and those of `add`.
        """
        setup = current_setup()
        given = store if store is not None else None if parent is None else parent._store
        batch = cls(new_jid(), given or require_store_for_push(setup, name, None))
        callbacks = {"on_complete": on_complete, "on_success": on_success, "on_death": on_death}
        prepared = prepared_callbacks(setup, batch._store, batch.id, callbacks)
        batch._create(name, "", 0, prepared, parent, {"ttl": ttl, "kept": kept, "history": int(history)})
        yield batch
        stored.close_batch(batch._store, batch.id)

    @classmethod
    def get(cls, identifier: str, *, store: Store | None = None) -> Batch:
        """Return the batch of this id; store: of its shard.  No round trip: `status` says whether there is one."""
        return cls(identifier, store or current_setup().current_store())

    @classmethod
    def all(cls, start: int = 0, count: int = 100, *, store: Store | None = None) -> list[BatchStatus]:
        """Return the status of so many batches without their failures, the youngest first; expired ones are left out.

        Two round trips for 500 batches.
        """
        store = store or current_setup().current_store()
        return _statuses(store, stored.list_batches(store, start, count))

    @classmethod
    def count(cls, *, store: Store | None = None) -> int:
        """Return how many batches are listed, expired ones among them.  One round trip."""
        store = store or current_setup().current_store()
        return int(store.call("ZCARD", store.keys.batches))

    def add(self, job: Any, rows: Iterable[Sequence[JSON]], *, queue: str = "") -> list[Jid | None]:
        """Enqueue a job of the batch for each row; return their jids, None where it was not enqueued.

        Call it from a job of the batch, or while the batch is open: a complete batch takes no more jobs.  A job that
        runs again adds rows that it has added before no second time (added_jids.py).
        One round trip for 1 000 rows.  Raises PushError before anything is written; BatchEnded, StoreError.
        """
        label, definition, options = _job(job, queue)
        rows = list(rows)
        prepared = self._prepared(label, definition, options, rows, current_job())
        jobs = [each for each in prepared if each is not None]
        refused = stored.push_jobs(self._store, self.id, jobs, _replicas(definition), worker=label)
        return [None if each is None or each.jid in refused else each.jid for each in prepared]

    def status(self, most_failures: int = MAX_FAILURES, start: int = 0) -> BatchStatus:
        """Return the counts of the batch, with so many of its latest failures and their messages.  One round trip.

        start: number of failures to leave out before them.
        Raises BatchEnded if the batch is unknown or has expired; StoreError.
        """
        status = self._read(most_failures, start)
        if status is None:
            raise BatchEnded(self.id, "UNKNOWN")
        return status

    def parts(self, start: int = 0, count: int = 25, most_children: int = 100) -> BatchParts:
        """Return the callbacks of the batch, its child batches, and so many failures, the youngest first.

        Two round trips, and one for the child batches.  Raises StoreError.
        """
        found = stored.read_parts(self._store, self.id, start, count, most_children)
        callbacks = {}
        for event, raw in found.callbacks.items():
            queue, _, payload = raw.partition(b"\0")
            callbacks[event] = (queue.decode(errors="replace"), payload)
        children = _statuses(self._store, sorted(found.children))
        return BatchParts(callbacks, children, found.child_count, found.failed, [*map(read_job, found.failures)])

    def jobs(self, status: str | None = None) -> Iterator[BatchJob]:
        """Yield the jobs of the batch in a status, None for all.  While they run, one may come twice.

        Two round trips for about 300 jobs; for 1 000 of `failed` and `error`.  Raises UsageError for an unknown status.
        """
        if status is not None and status not in stored.STATUSES:
            raise UsageError(f"a job of a batch is never {status!r}; it is {', '.join(stored.STATUSES)}")
        return map(read_job, stored.read_jobs(self._store, self.id, status))

    def cancel(self, reason: str = "") -> bool:
        """Cancel the batch and its child batches; return False if it was complete already.

        Jobs that have not begun are dropped, and end as `error`: those in the schedule and the retry set, and parked
        ones, at once, others when they would begin.  Running ones are told, as `kiqcluster.cancel` tells them; those
        that do not ask go on.
        Two round trips for each batch, about two to tell all processes, and one per 2 000 jobs that wait so, of
        whatever batch.  May be repeated.
        Raises UsageError for a reason that is too long; BatchEnded if the batch is unknown; StoreError.
        """
        _check_text("reason", reason)
        if not stored.cancel_batch(self._store, self.id, reason):
            return False
        known, batches = {self.id}, deque([self.id])
        while batches:
            parent, lost = batches.popleft(), list[str]()
            for child in stored.read_children(self._store, parent):
                if child in known:
                    continue
                known.add(child)
                try:
                    batches += [child] * stored.cancel_batch(self._store, child, reason)
                except BatchEnded:  # it has expired, and its parent waits for it
                    lost.append(child)
            stored.lose_children(self._store, parent, lost)
        tell_processes(self._store)
        remove_of_batches(self._store, known)
        return True

    def close(self) -> None:
        """Have the batch be complete once its jobs have ended: nobody adds jobs from outside any more.

        `create` and `open` do so; by hand it is for a batch whose creator died, or which waits for a child batch that
        has expired.  Three round trips; may be repeated.  Raises BatchEnded if it is unknown; StoreError.
        """
        stored.close_batch(self._store, self.id)
        stored.lose_children(self._store, self.id, list(stored.read_children(self._store, self.id)))

    def mark(self, jids: Iterable[str], status: str, message: str = "") -> None:
        """Give jobs that have ended in another way their status: `finish`, `failed` or `error`.

        For jobs that Ruby ran, and those that were deleted with their whole queue.  A status that is final stays.
        One round trip for 500 jobs.  Raises UsageError, BatchEnded, StoreError.
        """
        if status not in stored.ENDED_STATUSES:
            raise UsageError(f"a job cannot be marked {status!r}; mark it {', '.join(stored.ENDED_STATUSES)}")
        messages = ruby_json.encode(message).decode() if message else ""
        stored.mark_jobs(self._store, self.id, list(jids), status, messages)

    def _create(
        self,
        name: str,
        worker: str,
        expected: int,
        callbacks: dict[str, bytes],
        parent: Batch | None,
        keeping: Mapping[str, int],
    ) -> None:
        _check_text("name", name)
        for word, seconds in (("ttl", keeping["ttl"]), ("kept", keeping["kept"])):
            if type(seconds) is not int or not 1 <= seconds <= MAX_TTL_SECONDS:
                raise UsageError(f"{word} is {seconds!r}; it takes whole seconds, 1 to {MAX_TTL_SECONDS}")
        fields: dict[str, Word] = {"name": name, "worker": worker, "expected": expected, **keeping}
        counts: dict[str, Word] = dict.fromkeys(("total", *stored.STATUSES), 0)
        stored.create_batch(
            self._store, self.id, "" if parent is None else parent.id, {**fields, **counts, **callbacks}
        )

    def _read(self, most: int, start: int) -> BatchStatus | None:
        fields, failures = stored.read_batch(self._store, self.id, STATUS_FIELDS, most, start)
        if "created_at" not in fields:
            return None
        return read_status(self.id, fields, tuple(map(read_job, failures)))

    def _prepared(
        self,
        name: str,
        definition: Any,
        options: Mapping[str, JSON],
        rows: Sequence[Sequence[JSON]],
        adder: JobContext | None = None,
    ) -> list[NewBatchJob | None]:
        """Return a job for each row, None where client middleware stopped it.  adder: the job that adds them.

        Raises PushError.
        """
        setup, is_secret = current_setup(), bool(options.get(ENCRYPT))
        keyed = {**options, TASK_ID: self.id, USE_TASK_EVENT: True}
        if isinstance(definition, TypedDefinition):
            rows = all_positions(name, definition, rows)
        jids = None
        if adder is not None and adder.jid:
            with suppress(TypeError, ValueError, RecursionError):  # prepare_all says what does not fit
                jids = added_jids(adder, self.id, name, _encoded(rows), secret_key(setup) if is_secret else b"")
        ready = prepare_all(setup, Drafts(name, keyed, rows, definition, jids=jids, store=self._store))
        kept = itertools.repeat(b"") if is_secret else _kept(rows)
        return [
            None
            if each is None
            else NewBatchJob(each.jid, each.queue, each.at, each.encoded, _rows_of(each), arguments)
            for each, arguments in zip(ready, kept, strict=False)
        ]


def _statuses(store: Store, identifiers: Sequence[str]) -> list[BatchStatus]:
    """Return the status of each batch without its failures; those that have expired are left out."""
    read = stored.read_batches(store, identifiers, STATUS_FIELDS)
    found = zip(identifiers, read, strict=True)
    return [read_status(each, fields) for each, fields in found if "created_at" in fields]


def current_batch() -> Batch | None:
    """Return the batch of the job that runs here, None if it is in none."""
    running = current_job()
    batch = None if running is None else batch_of(running.payload)
    if batch is None or running is None:
        return None
    return Batch(batch[0], running.held[1] if running.held is not None else current_setup().current_store())


def _job(job: Any, queue: str) -> tuple[str, Any, Mapping[str, JSON]]:
    """Return name, definition and payload keys of what a batch was given as its job.

    Raises InvalidPush, UsageError.
    """
    setup = current_setup()
    if isinstance(job, Chain):
        raise InvalidPush(
            f"class is a job; a batch takes one for all of its rows, and no chain ({job!r}): have that job add the "
            "next one, current_batch().add(…), or pass the chain as a callback, on_success=…"
        )
    name, definition, options = read_item(setup, {"class": job, **({"queue": queue} if queue else {})})
    if definition is None and not queue:
        raise UsageError(f"{job} is not registered here; pass the queue of its jobs: queue='default'")
    declared: Mapping[str, JSON] | None = getattr(job, "options", None)  # of `Thumbnail.set(…)`
    return name, definition, options if declared is None else {**declared, **({"queue": queue} if queue else {})}


def _check_text(what: str, text: object) -> None:
    """Raise UsageError for what is no short text, or cannot be written to each Redis and database."""
    is_text = isinstance(text, str) and len(text) <= MAX_TEXT_CHARACTERS
    if not (is_text and ruby_json.is_unicode(str(text)) and "\0" not in str(text)):
        raise UsageError(f"{text!r:.50} is no {what} of a batch: a text of at most {MAX_TEXT_CHARACTERS} characters")


def _replicas(definition: Any) -> int:
    return 0 if definition is None else int(definition.local.get("wait_replicas", 0))


def _rows_of(job: Ready) -> Sequence[Effect]:
    """Return the rows of a push, without that by which a job that was cancelled may run: this one stays cancelled."""
    return [row for row in job.rows if row.operation != "unmark"] if job.rows else ()


def _kept(rows: Sequence[Sequence[JSON]]) -> list[bytes]:
    """Return the arguments of jobs as their batch keeps them, nothing for large ones."""
    return [each if len(each) <= MAX_PARAMS_BYTES else b"" for each in _encoded(rows)]


def _encoded(rows: Sequence[Sequence[JSON]]) -> list[bytes]:
    lists = [list(row) for row in rows]
    return ruby_json.encode_arrays(lists) or [ruby_json.encode(each) for each in lists]
