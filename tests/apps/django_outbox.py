"""Exercises outbox and once of Django with one database: `python -m tests.apps.django_outbox <url of SQLAlchemy>`.

Prints a line of JSON with what was seen.  A process of its own, because settings of Django are those of a process.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction

from kiqcluster import job
from kiqcluster import testing as kiq_testing
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.testing.waiting import wait_until

STRICT = {"OPTIONS": {"isolation_level": 4}} if sys.argv[1].startswith("postgresql") else {}  # SERIALIZABLE


def database(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    found = {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "NAME": parts.path[1:]}
    return {"ENGINE": "django.db.backends.postgresql", **found}


@job
def ship(order: int) -> None: ...


def queued() -> list[Any]:
    raws = current_setup().current_store().call("LRANGE", "queue:default", 0, -1)
    return [json.loads(raw)["args"][0] for raw in reversed(raws)]


def main() -> None:
    settings.configure(
        INSTALLED_APPS=["kiqcluster.contrib.django"],
        DATABASES={"default": database(sys.argv[1]), "strict": {**database(sys.argv[1]), **STRICT}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    from kiqcluster.contrib.django import once, outbox
    from kiqcluster.contrib.django.models import InboxKey, OutboxJob

    call_command("migrate", verbosity=0)
    call_command("makemigrations", "kiqcluster", check=True, dry_run=True, verbosity=0)
    seen: dict[str, Any] = {"sources": [source.name for source in current_setup().due_sources]}
    (relay,) = current_setup().due_sources

    with transaction.atomic():
        outbox(ship).enqueue(1)
        with transaction.atomic():
            outbox(ship).enqueue(2)
        try:
            with transaction.atomic():
                outbox(ship).enqueue(3)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        seen["before the commit"] = queued()
    wait_until(lambda: len(queued()) == 2 and not OutboxJob.objects.exists(), "the sender to push both")
    seen["after the commit"] = queued()

    try:
        with transaction.atomic():
            outbox(ship).enqueue(4)
            raise ZeroDivisionError
    except ZeroDivisionError:
        relay.move()
    outbox(ship, push_after_commit=False).perform_bulk([[5], [6]])
    seen["left to the relay"] = relay.table.summary().waiting
    relay.move()
    seen["relayed"] = queued()

    OutboxJob.objects.create(**{**row(outbox), "payload": b"no job"})
    relay.move()
    seen["refused"] = [each.problem.partition(" (")[0] for each in relay.table.refused(9)]
    seen["retried"] = relay.table.retry_refused()
    OutboxJob.objects.all().delete()

    with kiq_testing.fake(), transaction.atomic():
        outbox(ship).enqueue(7)
        transaction.on_commit(lambda: seen.update(in_memory=[each.args for each in kiq_testing.enqueued(ship)]))

    with transaction.atomic():
        seen["once"] = [once("a"), once("a"), once("b")]
    try:
        once("c")
    except UsageError as error:
        seen["outside"] = "atomic" in str(error)
    seen["at once"] = sorted(at_once(once))
    InboxKey.objects.update(recorded_at=1.0)
    seen["pruned"] = relay.table.prune_inbox(2.0, 2)
    seen["level"] = level_of_relay()
    print(json.dumps(seen))


def row(outbox: Any) -> dict[str, Any]:
    """Return the columns of a row."""
    from kiqcluster.contrib.django.models import OutboxJob

    outbox(ship, push_after_commit=False).enqueue(0)
    found = dict(OutboxJob.objects.values().get())
    OutboxJob.objects.all().delete()
    del found["id"]
    return found


def level_of_relay() -> str:
    """Return the level in which a relay locks rows of a database whose level is a stricter one."""
    from kiqcluster.contrib.django.outbox_tables import DjangoTable

    if not STRICT:
        return "read committed"
    with DjangoTable("strict").locked(1, 0.0, (), None), connections["strict"].cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


def at_once(once: Any) -> list[bool]:
    """Return what two runs at once are told."""
    said: list[bool] = []
    begun, start = threading.Event(), threading.Event()

    def second() -> None:
        begun.set()
        start.wait(20)
        with transaction.atomic():
            said.append(once("order"))
        connections.close_all()

    thread = threading.Thread(target=second)
    thread.start()
    begun.wait(20)
    with transaction.atomic():
        said.append(once("order"))
        start.set()
    thread.join(30)
    return said


if __name__ == "__main__":
    main()
