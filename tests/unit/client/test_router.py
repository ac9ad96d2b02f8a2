"""The router: which queue a push gets, and that nothing is looked up twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.client.client import Client
from kiqcluster.client.router import queue_of, route_of
from kiqcluster.errors import UsageError
from kiqcluster.job import Job, job
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json, selectors
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.store import Store

RULES = [["urgency=high", "urgent"], ["name=cleanup", ""], ["queue_namespace=cronjob", "cron"], ["*", "rest"]]


class Pushes:
    """Takes the jobs of a test."""

    def __init__(self) -> None:
        self.taken: list[Ready] = []

    def deliver(self, jobs: Any, store: Store | None) -> bool:
        self.taken += jobs
        return store is None

    @property
    def queues(self) -> list[str]:
        """The queues of the jobs, as beside the payload so in it."""
        assert [ruby_json.decode(each.encoded)["queue"] for each in self.taken] == [each.queue for each in self.taken]
        return [each.queue for each in self.taken]


@pytest.fixture
def pushes(setup: Setup) -> Pushes:
    assert setup.config is not None
    setup.config = replace(setup.config, routing=parse_rules(RULES))
    setup.delivery = pushes = Pushes()
    return pushes


def declare(name: str, **options: Any) -> type[Job]:
    class Declared(Job, name=name, **options):
        def perform(self, number: int = 0) -> None: ...

    return Declared


def test_every_push_of_a_class_goes_to_the_queue_of_its_rule(pushes: Pushes) -> None:
    mail = declare("Mail", queue="mailers", urgency="high")

    mail.perform_async(1)
    mail.perform_in(60, 2)
    mail.perform_bulk([[3], [4]])
    mail.set(retry=3).perform_async(5)
    Client().push({"class": mail, "args": [6]})
    Client().push({"class": "Mail", "args": [7]})
    Client().push_bulk({"class": "Mail", "args": [[8]]})

    assert pushes.queues == ["urgent"] * 8
    assert ruby_json.decode(pushes.taken[4].encoded)["retry"] == 3


def test_an_explicit_queue_goes_before_the_rules(pushes: Pushes) -> None:
    mail = declare("Mail", queue="mailers", urgency="high")

    mail.set(queue="mailers").perform_async(1)
    mail.set(queue="other").set(retry=1).perform_bulk([[2]])
    Client().push({"class": "Mail", "args": [3], "queue": "third"})

    assert pushes.queues == ["mailers", "other", "third"]


def test_rules_compare_what_the_class_declares(pushes: Pushes) -> None:
    @job(queue="cleanup")
    def clean() -> None: ...

    class Nightly(Job, queue_namespace="cronjob"):
        def perform(self) -> None: ...

    clean.perform_async()
    Nightly.perform_async()

    assert pushes.queues == ["cleanup", "cron"]
    assert (clean.queue, Nightly.queue, Nightly().queue) == ("cleanup", "cron", "cron")


def test_jobs_of_rails_are_routed_with_their_envelope(pushes: Pushes) -> None:
    declare("Rails", active_job=True, urgency="high").perform_async(1)

    assert pushes.queues == ["urgent"]
    assert ruby_json.decode(pushes.taken[0].encoded)["args"][0]["queue_name"] == "urgent"


def test_a_push_by_name_of_a_class_that_is_not_defined_here_is_not_routed(pushes: Pushes) -> None:
    Client().push({"class": "Ruby", "args": []})

    assert pushes.queues == ["default"]


def test_middleware_sees_the_routed_queue_and_may_change_it(pushes: Pushes, setup: Setup) -> None:
    seen = []

    def link(push: Any, proceed: Any) -> Any:
        seen.append(push.queue)
        push.payload["queue"] = "elsewhere"
        return proceed()

    setup.client_middleware.add(link)
    declare("Mail", urgency="high").perform_async()

    assert (seen, pushes.queues) == (["urgent"], ["elsewhere"])


def test_a_route_is_computed_once_per_class_and_list_of_rules(
    pushes: Pushes, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail, calls = declare("Mail", urgency="high"), []
    monkeypatch.setattr(
        selectors.Term, "matches", lambda self, job: calls.append(self) or job["urgency"] == frozenset(["high"])
    )

    mail.perform_bulk([[number] for number in range(5)])
    for number in range(5):
        mail.perform_async(number)
    assert (len(calls), queue_of(mail.definition), mail.queue) == (1, "urgent", "urgent")

    assert setup.config is not None
    setup.config = replace(setup.config, routing=parse_rules([["*", "new"]]))
    assert (mail.queue, route_of(setup, mail.definition).index) == ("new", 0)
    setup.config = replace(setup.config, routing=())
    assert (mail.queue, queue_of(mail.definition)) == ("default", "default")


def test_without_rules_the_options_are_the_declared_ones(setup: Setup) -> None:
    mail = declare("Mail", queue="mailers")

    assert mail.set(retry=1).queue == mail.queue == "mailers"
    assert setup.routes == {}


def test_code_may_give_the_rules(registry: Registry) -> None:
    setup = Setup()
    setup.configure(routing=RULES)

    assert queue_of(declare("Mail", urgency="high").definition, setup) == "urgent"
    with pytest.raises(UsageError, match=r"routing from configure\(\) cannot be used: rule 1: "):
        setup.configure(routing=[["urgncy=high", "u"]])


def test_a_base_without_perform_has_no_queue(setup: Setup) -> None:
    class Base(Job, queue="base"):
        pass

    assert not hasattr(Base, "queue")
