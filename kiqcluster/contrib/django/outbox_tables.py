"""The outbox's tables in the databases of a Django project: rows are written, sent and relayed.

1. insert     the row; outside of `transaction.atomic` it is committed by itself
2. on_commit  the sender pushes the rows that were committed, in a thread (contrib/outbox/sender)
3. relay      workers push the rows that are left: the application declares the databases that have the tables

KIQCLUSTER_OUTBOX_DATABASES in the settings: aliases, by default only "default".  KIQCLUSTER has keep_inbox and
outbox_interval, for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import (
    DatabaseError,
    OperationalError,
    ProgrammingError,
    close_old_connections,
    connections,
    transaction,
)
from django.db.models import Count, Min, Q

from kiqcluster.contrib.django.models import InboxKey, OutboxJob
from kiqcluster.contrib.django.settings import OUTBOX_SETTING, outbox_databases, read_settings
from kiqcluster.contrib.outbox.metrics import publish
from kiqcluster.contrib.outbox.relay import NoTables, Relay, Summary
from kiqcluster.contrib.outbox.rows import DATABASES, Row
from kiqcluster.contrib.outbox.sender import Sender
from kiqcluster.contrib.outbox.verbs import WriteRows
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup

__all__ = [
    "DjangoTable",
    "lacks_tables",
    "relayed_databases",
    "remedy",
    "use_outboxes",
    "waiting_row",
    "writer",
]

COLUMNS = list(Row.__dataclass_fields__)
SENDERS: dict[str, Sender] = {}  # by alias


def use_outboxes() -> None:
    """Have workers relay the outboxes of this project; called by the application.  Raises ImproperlyConfigured.

    `manage.py check` complains of an alias that no database has.
    """
    sources, found = current_setup().due_sources, read_settings()
    for alias in relayed_databases():
        relay = Relay(
            DjangoTable(alias), interval=found.outbox_interval, keep_inbox=found.keep_inbox, on_summary=publish
        )
        sources[:] = [*(source for source in sources if source.name != relay.name), relay]


def relayed_databases() -> list[str]:
    """Return the aliases of the databases whose outboxes workers relay.  Raises ImproperlyConfigured."""
    return [alias for alias in outbox_databases() if alias in connections and connections[alias].vendor in DATABASES]


def writer(using: str, push_after_commit: bool) -> WriteRows:
    """Return a function that writes rows into a database.  Raises UsageError for a database that has no outbox."""
    if using not in outbox_databases():
        raise UsageError(
            f"no worker would push the jobs of an outbox in the database {using!r}, for {OUTBOX_SETTING} does not name "
            f"it; add {using!r} there, and run `manage.py migrate --database {using}`"
        )
    if connections[using].vendor not in DATABASES:
        raise UsageError(f"outbox and once work with PostgreSQL and SQLite, not with {connections[using].vendor}")
    return partial(_write, using, push_after_commit)


def _write(using: str, push_after_commit: bool, rows: list[dict[str, Any]]) -> None:
    made = OutboxJob.objects.using(using).bulk_create([OutboxJob(**row) for row in rows])
    if made and push_after_commit:
        # A savepoint that is rolled back takes this call with it.
        transaction.on_commit(partial(_send, using, [row.pk for row in made]), using=using, robust=True)


def _send(using: str, ids: list[int]) -> None:
    sender = SENDERS.setdefault(using, Sender(Relay(DjangoTable(using), keep_inbox=None)))
    sender.send(ids)


class DjangoBatch:
    """Locked rows."""

    def __init__(self, alias: str, rows: Sequence[Row]) -> None:
        self._jobs = OutboxJob.objects.using(alias)
        self.rows = rows

    def delete(self, ids: Sequence[int]) -> None:
        self._jobs.filter(pk__in=ids).delete()

    def mark(self, identifier: int, problem: str, retry_at: float) -> None:
        self._jobs.filter(pk=identifier).update(problem=problem.replace("\0", ""), retry_at=retry_at)


class DjangoTable:
    """The relay's side of both tables, as contrib/sqlalchemy/table.  Each call leaves connections as a request does."""

    def __init__(self, alias: str) -> None:
        self.name = alias

    @contextmanager
    def locked(
        self, limit: int, now: float, without_shards: Collection[str], ids: Sequence[int] | None
    ) -> Iterator[DjangoBatch]:
        query = self._jobs().filter(retry_at__lte=now).exclude(shard__in=list(without_shards)).order_by("pk")
        if ids is not None:
            query = query.filter(pk__in=ids)
        with self._connected():
            shares = connections[self.name].features.has_select_for_update
            if not shares and not query.exists():
                yield DjangoBatch(self.name, [])
                return
            with self._transaction():
                if shares:
                    query = query.select_for_update(skip_locked=True)
                else:  # SQLite: any UPDATE makes this transaction the writer
                    self._jobs().filter(pk=-1).update(retry_at=0.0)
                found = query.values_list(*COLUMNS)[:limit]
                yield DjangoBatch(self.name, [_row(values) for values in found])

    def summary(self) -> Summary:
        with self._connected():
            refused = Count("pk", filter=~Q(problem=""))
            found = self._jobs().aggregate(waiting=Count("pk"), refused=refused, oldest_at=Min("created_at"))
        return Summary(**found)

    def refused(self, limit: int) -> list[Row]:
        with self._connected():
            return [
                _row(each) for each in self._jobs().exclude(problem="").order_by("pk").values_list(*COLUMNS)[:limit]
            ]

    def retry_refused(self) -> int:
        with self._connected():
            return int(self._jobs().exclude(problem="").update(retry_at=0.0))

    def prune_inbox(self, before: float, limit: int) -> int:
        with self._connected():
            keys = InboxKey.objects.using(self.name)
            old = list(keys.filter(recorded_at__lt=before).values_list("pk", flat=True)[:limit])
            return int(keys.filter(pk__in=old).delete()[0])

    def _jobs(self) -> Any:
        return OutboxJob.objects.using(self.name)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = connections[self.name]
        is_outermost = connection.get_autocommit()
        with transaction.atomic(using=self.name):
            if is_outermost and connection.vendor == "postgresql":
                # In a stricter level, two relays would fail each other at the commit, when Redis has the jobs.
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise NoTables for an error whose reason that is."""
        close_old_connections()  # in a transaction, as around tests, nothing is closed
        try:
            yield
        except (ProgrammingError, OperationalError) as error:
            if lacks_tables(self.name):
                raise NoTables(self.name, remedy(self.name)) from error
            raise
        finally:
            close_old_connections()


def waiting_row(alias: str, jid: str) -> Row | None:
    """Return the row of a job that has not been pushed."""
    found = OutboxJob.objects.using(alias).filter(jid=jid).order_by("pk").values_list(*COLUMNS)[:1]
    return next((_row(values) for values in found), None)


def lacks_tables(alias: str) -> bool:
    """Return whether a database has not been migrated; False if that cannot be known."""
    try:
        there = connections[alias].introspection.table_names()
    except DatabaseError:
        return False
    return not {model._meta.db_table for model in (OutboxJob, InboxKey)} <= set(there)


def remedy(alias: str) -> str:
    """Return what to do about missing tables."""
    return f"run `manage.py migrate --database {alias}`, or take {alias!r} out of {OUTBOX_SETTING} (`[]` for no outbox)"


def _row(values: Sequence[Any]) -> Row:
    fields = dict(zip(COLUMNS, values, strict=True))
    return Row(**fields | {"payload": bytes(fields["payload"])})  # PostgreSQL gives a memoryview
