"""What is declared counts as declared, also where its value is that of the default: each option, each setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.application.options import OPTIONS, check_options
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.client.router import rules_of
from kiqcluster.process.config import FIELD_TYPES, Config, settings
from kiqcluster.process.config_sources import load, with_configured
from kiqcluster.process.durations import Bytes, show_size
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.cron_entries import parse_entries
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.sidekiq.selectors import described
from kiqcluster.supervisor.catalogue import Catalogue
from kiqcluster.supervisor.cluster.expansion import setting_warnings
from kiqcluster.supervisor.cluster.reload import pending_settings

pytestmark = pytest.mark.usefixtures("registry")

OPTION_VALUES: dict[str, tuple[Any, Any]] = {  # option → its default, another value
    "queue": ("default", "other"),
    "retry": (True, 3),
    "backtrace": (False, True),
    "dead": (True, False),
    "tags": ([], ["vip"]),
    "version": (0, 2),
    "encrypt": (False, True),
    "active_job": (False, True),
    "wait_replicas": (0, 1),
    "urgency": ("low", "throttled"),
    "resource_boundary": ("unknown", "cpu"),
    "external_dependencies": (False, True),
    "weight": (1, 3),
    "idempotent": (False, True),
    "data_consistency": ("always", "sticky"),
    "loggable_arguments": ([], [0]),
    "big_payload": (False, True),
    "max_retries_after_interruption": (Config.max_retries_after_interruption, 7),
    "policy": ([], [print]),
    "concurrency_limit": (0, 5),
    "deduplicate": ("none", "until_executed"),
    "deduplicate_scheduled": (False, True),
    "reschedule_once": (False, True),
    "enqueue_on_commit": (False, True),
}
WITHOUT_A_DEFAULT = {  # no value means the same as leaving it out
    *("retry_for", "retry_queue", "log_level", "expires_in", "queue_namespace", "feature_category", "cron", "tz"),
    *("timeout", "timeout_hard", "rate_limit", "concurrency_key", "max_iteration_runtime", "result_ttl"),
    *("deduplicate_key", "deduplicate_ttl", "retry_in", "retries_exhausted", "interruptions_exhausted"),
}
NEEDS = {
    "deduplicate_scheduled": {"deduplicate": "until_executed"},
    "reschedule_once": {"deduplicate": "until_executed"},
}
SETTING_VALUES: dict[str, Any] = {  # setting of configure() → a value that is not its default
    "redis": "redis://elsewhere/1",
    "max_retries": 3,
    "max_retries_after_interruption": 7,
    "max_forced_stops": 7,
    "dead_max_jobs": 7,
    "dead_timeout": 7.0,
    "log_jobs": "full",
    "average_scheduled_poll_interval": 7.0,
    "strict_args": "warn",
    "ruby_json": "2.6",
    "size_limiter_mode": "raise",
    "size_limiter_compression_threshold": "7kB",
    "size_limiter_limit": "7kB",
    "routing": [["*", "other"]],
    "encryption_keys": "1:" + "A" * 43 + "=",
    "strict_routing": True,
}


def default_of(name: str) -> Any:
    """Return the default of a setting as a source gives it."""
    value = getattr(Config, name)
    return show_size(value) if FIELD_TYPES[name] == Bytes else value


def declare(base: type[Job] = Job, **options: Any) -> type[Job]:
    class Declared(base, **options):  # type: ignore[misc, valid-type]
        def perform(self, *args: Any) -> None: ...

    return Declared


def value_of(definition: Definition, option: str) -> Any:
    return {**definition.options, **definition.local}[option]


class TestOptions:
    def test_each_one_is_tried_here(self) -> None:
        assert OPTION_VALUES.keys() | WITHOUT_A_DEFAULT == OPTIONS.keys()
        assert OPTION_VALUES.keys().isdisjoint(WITHOUT_A_DEFAULT)
        for option, values in OPTION_VALUES.items():
            for value in values:
                check_options({option: value}, "J")

    @pytest.mark.parametrize("option", OPTION_VALUES)
    def test_one_that_is_given_its_default_is_declared(self, option: str) -> None:
        assert declare(**NEEDS.get(option, {})).definition.declared.isdisjoint({option})

        definition = declare(**{option: OPTION_VALUES[option][0], **NEEDS.get(option, {})}).definition

        assert option in definition.declared

    @pytest.mark.parametrize("option", OPTION_VALUES)
    def test_the_default_of_a_class_replaces_what_its_base_declares(self, option: str) -> None:
        default, other = OPTION_VALUES[option]
        base = declare(**{option: other, **NEEDS.get(option, {})})

        definition = declare(base, **{option: default}).definition

        assert value_of(definition, option) == (frozenset() if option == "loggable_arguments" else default)
        assert option in declare(base).definition.declared, "an inherited one is declared as well"

    @pytest.mark.parametrize("option", [each for each in OPTION_VALUES if OPTIONS[each].on_wire])
    def test_the_default_of_a_push_replaces_what_the_class_declares(self, option: str, setup: Setup) -> None:
        default, other = OPTION_VALUES[option]
        setup.config = Config(routing=parse_rules([["*", "routed"]]))

        assert declare(**{option: other}).set(**{option: default}).options[option] == default


class TestCron:
    """The queue and the retries of an entry's jobs."""

    def found(self, setup: Setup, job: type[Job], **entry: Any) -> tuple[str, Any]:
        (declared,) = parse_entries({"e": {"schedule": "@daily", "job": job.definition.name, **entry}})
        made, _ = resolved(setup, job.definition, declared)
        self.check_catalogue(setup, job, made.queue, entry.get("queue", ""))
        return made.queue, made.options["retry"]

    def check_catalogue(self, setup: Setup, job: type[Job], queue: str, own: str) -> None:
        """The supervisor, which asks another process, comes to the same queue."""
        config, definition = setup.current_config(), job.definition
        report = {"name": definition.name, "queue": definition.queue, "attributes": definition.attributes}
        catalogue = Catalogue.of(
            [{**report, "declares_queue": definition.declares_queue}], cron=[(definition.name, own)]
        )
        assert queue in catalogue.known_queues(config)

    def test_an_entry_of_a_job_with_retry_for_is_retried(self, setup: Setup) -> None:
        setup.config = Config()

        assert self.found(setup, declare(retry_for=60))[1] is True

    def test_where_nothing_names_a_queue_the_namespace_does(self, setup: Setup) -> None:
        setup.config = Config()

        assert self.found(setup, declare()) == ("cronjob:declared", 0)

    @pytest.mark.parametrize("options", [{"queue": "default"}, {"cron": "@daily", "queue": "default"}])
    def test_a_class_names_the_default_queue(self, setup: Setup, options: dict[str, Any]) -> None:
        setup.config = Config()

        assert self.found(setup, declare(**options))[0] == "default"
        assert self.found(setup, declare(declare(**options)))[0] == "default", "its base names it"

    def test_a_rule_names_the_default_queue(self, setup: Setup) -> None:
        setup.config = Config(routing=parse_rules([["*", "default"]]))

        assert self.found(setup, declare())[0] == "default"

    def test_a_rule_that_leaves_the_queue_names_none(self, setup: Setup) -> None:
        setup.config = Config(routing=parse_rules([["*", ""]]))

        assert self.found(setup, declare())[0] == "cronjob:declared"

    def test_an_entry_names_the_default_queue(self, setup: Setup) -> None:
        setup.config = Config()

        assert self.found(setup, declare(), queue="default")[0] == "default"

    @pytest.mark.parametrize("retry", [True, 25, 0])
    def test_the_retries_of_a_class_and_of_an_entry_count_whatever_they_are(
        self, setup: Setup, retry: bool | int
    ) -> None:
        setup.config = Config()

        assert self.found(setup, declare(retry=retry))[1] is retry
        assert self.found(setup, declare(cron="@daily", retry=retry))[1] is retry
        assert self.found(setup, declare(), retry=retry)[1] is retry
        assert self.found(setup, declare(retry=3), retry=retry)[1] is retry


class TestSettings:
    def loaded(self, **sources: Any) -> Config:
        flags = sources.pop("flags", {})
        return load(flags, environ={}, directory=Path("/nonexistent"), **sources)[0]

    @pytest.mark.parametrize("name", [each.name for each in settings()])
    def test_one_that_is_given_its_default_is_declared(self, name: str) -> None:
        assert not self.loaded().is_declared(name)
        default = {} if name == "shards" else default_of(name)

        assert default is None or self.loaded(flags={name: default}).is_declared(name)

    def test_each_one_of_configure_is_tried_here(self) -> None:
        assert SETTING_VALUES.keys() == {each.name for each in settings() if each.metadata["in_code"]}

    @pytest.mark.parametrize("name", SETTING_VALUES)
    def test_the_default_of_a_closer_source_hides_what_configure_says(self, name: str) -> None:
        default, said, given = getattr(Config, name), {name: SETTING_VALUES[name]}, {name: default_of(name)}

        assert getattr(self.loaded(configured=said), name) != default
        assert getattr(self.loaded(configured=said, flags=given), name) == default
        assert getattr(with_configured(self.loaded(), said), name) != default
        assert getattr(with_configured(self.loaded(flags=given), said), name) == default

    def test_no_rules_are_rules_as_well(self, setup: Setup) -> None:
        setup.settings["routing"] = [["*", "of_the_code"]]
        catalogue = Catalogue((), rules=parse_rules(setup.settings["routing"]))
        config = self.loaded(flags={"routing": ()})

        assert rules_of(config, setup) == catalogue.rules_in_force(config) == ()
        assert rules_of(self.loaded(), setup) == catalogue.rules_in_force(self.loaded()) != ()

    def test_fewest_threads_that_exceed_the_most_are_said_also_at_the_default(self) -> None:
        most = Config.min_concurrency - 1

        assert setting_warnings(self.loaded(flags={"max_concurrency": most}), 1) == []
        said = setting_warnings(
            self.loaded(flags={"max_concurrency": most, "min_concurrency": Config.min_concurrency}), 1
        )
        assert [each.partition(" ")[0] for each in said] == ["min_concurrency"]

    def test_a_default_that_hides_what_configure_says_waits_for_a_roll(self) -> None:
        new = self.loaded(flags={"max_retries": Config.max_retries, "stop_timeout": Config.stop_timeout})

        assert pending_settings(self.loaded(), new) == ([], ["max_retries"])


def test_what_is_described_to_the_supervisor_says_whether_a_queue_is_declared(registry: Registry) -> None:
    declare(queue="default")
    (definition,) = registry
    report = {"name": "Declared", "queue": "default", "attributes": {}, "declares_queue": definition.declares_queue}

    assert described(report).is_queue_declared
    assert not described({**report, "declares_queue": False}).is_queue_declared
