"""Names that all applications on a Redis share: one that is declared otherwise elsewhere is said, with both of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Job, limits
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.application.shared_names import KINDS, digest_of, shared_names
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.routing import digest, parse_rules
from kiqcluster.store import Store
from kiqcluster.store.shards import parse_shards, shards_digest
from kiqcluster.worker.fleet_checks import FleetChecks
from tests.kit import ManualClock

Told = list[tuple[str, dict[str, Any]]]
SHARDS = {"eu": "redis://eu:6379/1"}


def names_of(shards: dict[str, str] | None = None, **options: Any) -> dict[str, str]:
    """Return what an application with one job, Sync, declares."""
    with using_registry(Registry()) as registry:

        class Sync(Job, **options):
            def perform(self, account: int) -> None: ...

        return shared_names(Config(shards=parse_shards(shards or {})), registry)


DECLARED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # kind → two declarations that differ
    "concurrency limit": ({"concurrency_limit": 5}, {"concurrency_limit": 7}),
    "rate limit": (
        {"rate_limit": limits.sliding_window(5, 60, name="crm")},
        {"rate_limit": limits.fixed_window(5, 60, name="crm")},
    ),
    "lock": ({"deduplicate": "until_executed"}, {"deduplicate": "until_executed", "deduplicate_ttl": 60}),
    "shard": ({"shards": SHARDS}, {"shards": {"eu": "redis://eu:6379/2"}}),
}


def kind_of(name: str) -> str:
    return name.rpartition(" ")[0]


class TestDeclarations:
    def test_each_kind_is_tried_here(self) -> None:
        assert DECLARED.keys() == KINDS.keys()

    @pytest.mark.parametrize("kind", DECLARED)
    def test_each_kind_has_a_name_under_which_others_may_say_something_else(self, kind: str) -> None:
        first, second = (names_of(**each) for each in DECLARED[kind])

        assert first.keys() == second.keys()
        assert [kind_of(name) for name in first] == [kind]
        assert first != second
        assert digest_of(first) != digest_of(second)

    def test_a_job_that_uses_nothing_of_it_declares_nothing(self) -> None:
        assert names_of(queue="mail", retry=3, deduplicate="none") == {}
        assert digest_of({}) == ""

    def test_a_class_in_another_queue_is_another_one(self) -> None:
        here, there = names_of(concurrency_limit=5), names_of(concurrency_limit=5, queue="mail")

        assert here["concurrency limit Sync"] != there["concurrency limit Sync"]

    def test_functions_are_not_compared(self) -> None:
        assert names_of(concurrency_limit=lambda: 5) == names_of(concurrency_limit=lambda: 6)

    @pytest.mark.parametrize(
        ("address", "other", "is_same"),
        [
            ("redis://ann:a@eu/1", "redis://bob:b@eu:6379/1", True),
            ("redis://eu/1", "redis://eu/2", False),
            ("unix:///run/r.sock?db=1", "unix:///run/r.sock?db=1&password=x", True),
            ("redis+sentinel://a,b/main/1", "redis+sentinel://b:26379,a/main/1", True),
            ("redis+sentinel://a,b/main/1", "redis+sentinel://a,b/other/1", False),
            ("redis+cluster://a:1,b:2", "redis+cluster://u:p@b:2,a:1", True),
        ],
    )
    def test_a_shard_is_the_server_that_it_leads_to(self, address: str, other: str, is_same: bool) -> None:
        first, second = ({"eu": each} for each in (address, other))

        assert (names_of(shards=first) == names_of(shards=second)) is is_same
        assert (shards_digest(parse_shards(first)) == shards_digest(parse_shards(second))) is is_same


class TestChecks:
    @pytest.fixture
    def told(self) -> Told:
        return []

    @pytest.fixture
    def checks(self, store: Store, setup: Setup, told: Told) -> Callable[..., FleetChecks]:
        """The checks of a process: `checks("shop", names)`."""

        def make(application: str, names: dict[str, str], **settings: Any) -> FleetChecks:
            events = Events()
            events.listen(lambda event, fields: told.append((event, dict(fields))))
            return FleetChecks(Runtime(Config(**settings), store, setup, events, ManualClock()), application, names)

        return make

    def publish(self, store: Store, application: str, names: dict[str, str], **more: str) -> None:
        """Have a process of an application in Sidekiq's list of processes."""
        identity = f"host:1:{application}"
        info = {"labels": ["kiqcluster"], "application": application, "declared": digest_of(names), **more}
        store.call("SADD", store.keys.processes, identity)
        store.call("HSET", store.keys.process(identity), "info", ruby_json.encode(info))
        store.call("EXPIRE", store.keys.process(identity), 60)

    @pytest.mark.parametrize("kind", DECLARED)
    def test_a_name_with_two_meanings_is_said_once_with_both_applications(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told, kind: str
    ) -> None:
        ours, theirs = (names_of(**each) for each in DECLARED[kind])
        checks("blog", theirs).check_processes()
        self.publish(store, "blog", theirs)
        process = checks("shop", ours)

        for _ in range(3):
            process.check_processes()

        ((event, fields),) = told
        assert event == "declarations_differ"
        (name,) = ours
        assert (fields["name"], fields["application"], fields["other"]) == (name, "shop", "blog")
        assert (fields["declared"], fields["theirs"]) == (ours[name], theirs[name])
        assert fields["consequence"] == KINDS[kind]

    def test_what_both_declare_alike_is_shared(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told
    ) -> None:
        ours = names_of(shards=SHARDS, rate_limit=limits.sliding_window(5, 60), deduplicate="until_executed")
        theirs = {**ours, "lock Other": "deduplicate=until_executed, queue=default"}
        checks("blog", theirs).check_processes()
        self.publish(store, "blog", theirs)

        checks("shop", ours).check_processes()

        assert told == []

    def test_another_release_of_the_application_may_declare_something_else(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told
    ) -> None:
        ours, theirs = (names_of(**each) for each in DECLARED["lock"])
        checks("shop", theirs).check_processes()
        self.publish(store, "shop", theirs)

        checks("shop", ours).check_processes()

        assert told == []

    def test_routing_rules_are_those_of_an_application(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told
    ) -> None:
        rules, others = parse_rules([["*", "a"]]), digest(parse_rules([["*", "b"]]))
        self.publish(store, "blog", {}, routing=others)
        checks("shop", {}, routing=rules).check_processes()
        assert told == []

        self.publish(store, "shop", {}, routing=others)
        checks("shop", {}, routing=rules).check_processes()
        assert [event for event, _ in told] == ["routing_differs"]

    def test_declarations_that_redis_has_lost_are_written_again(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told
    ) -> None:
        ours, theirs = (names_of(**each) for each in DECLARED["lock"])
        process, other = checks("shop", ours), checks("blog", theirs)
        other.check_processes()
        store.call("FLUSHDB")
        self.publish(store, "blog", theirs)
        process.check_processes()
        assert told == []

        other.check_processes()
        process.check_processes()

        assert [(event, fields["other"]) for event, fields in told] == [("declarations_differ", "blog")]
        assert store.call("TTL", store.keys.declared(digest_of(theirs))) > 0

    def test_a_key_of_another_type_stops_no_check(
        self, store: Store, checks: Callable[..., FleetChecks], told: Told
    ) -> None:
        ours, theirs = (names_of(**each) for each in DECLARED["lock"])
        store.call("SET", store.keys.declared(digest_of(theirs)), "x")
        self.publish(store, "blog", theirs)

        checks("shop", ours).check_processes()

        assert told == []
