"""How kiqctl shows and finds jobs by who enqueued them, and that a schedule keeps it."""

from __future__ import annotations

import pytest

from kiqcluster import Client, application_context
from kiqcluster.api import ScheduledSet
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.redis.kiqctl import Kiqctl

pytestmark = pytest.mark.usefixtures("setup")


def test_jobs_are_found_and_shown_with_who_enqueued_them(kiqctl: Kiqctl, store: Store) -> None:
    with application_context(correlation_id="r-1", caller_id="POST /\x1borders"):
        jid = Client().push({"class": "Mail", "args": [], "at": 4e9})
    other = Client().push({"class": "Mail", "args": [], "at": 4e9})
    assert jid is not None
    assert other is not None

    assert "caller   POST /\\x1borders r-1" in kiqctl("scheduled", "show", jid).stdout.splitlines()
    assert "caller" not in kiqctl("scheduled", "show", other).stdout
    found = kiqctl("scheduled", "list", "--text", "r-1", "--json").stdout
    assert (jid in found, other in found) == (True, False)


def test_a_due_job_has_its_context_and_not_that_of_who_moves_it(store: Store) -> None:
    with application_context(correlation_id="r-1", user="ann"):
        Client().push({"class": "Mail", "args": [], "at": 4e9})

    with application_context(correlation_id="r-2", user="bob", step=2):
        ScheduledSet().add_all_to_queue()

    (moved,) = map(decode, store.call("LRANGE", "queue:default", 0, -1))
    assert (moved["correlation_id"], moved["meta.user"], "meta.step" in moved) == ("r-1", "ann", False)
