"""Settings of a Celery app: what they give to its tasks, to shared tasks and to tasks that are sent by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import Celery, Unsupported, shared_task
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import Fake, enqueued


@pytest.fixture(autouse=True)
def _own(registry: Registry, setup: Setup) -> None: ...


@pytest.fixture
def kept(setup: Setup, kiq_fake: Fake) -> Iterator[Fake]:
    """Keep the jobs of the test's own set-up in memory."""
    from kiqcluster.testing import fake

    with fake() as jobs:
        yield jobs


class TestSettings:
    def test_settings_are_options_of_later_tasks(self) -> None:
        app = Celery("shop")
        app.conf.update(task_default_queue="mailers", result_expires=60)
        app.conf.task_time_limit = 30

        @app.task(queue="own")
        def first() -> None: ...

        @app.task
        def second() -> None: ...

        assert (first.queue, second.queue) == ("own", "mailers")
        assert second.definition.local["result_ttl"] == 60
        assert second.definition.local["timeout_hard"] == 30
        with pytest.raises(Unsupported, match="before the first task"):
            app.conf.task_default_queue = "late"

    def test_shared_tasks_have_the_settings_of_the_app(self) -> None:
        app = Celery("shop")
        app.conf.update(task_default_queue="mailers", task_time_limit=30)

        @shared_task
        def shared() -> None: ...

        assert shared.queue == "mailers"
        assert shared.definition.local["timeout_hard"] == 30
        with pytest.raises(Unsupported, match="before the first task"):
            app.conf.task_ignore_result = True

    def test_a_setting_that_came_after_the_shared_tasks_is_refused(self) -> None:
        @shared_task
        def early() -> None: ...

        app = Celery("shop")
        app.conf.timezone = "UTC"  # no task reads it
        with pytest.raises(Unsupported, match="before the first task is declared"):
            app.conf.task_default_queue = "late"

    @pytest.mark.parametrize(
        ("routes", "queue"),
        [
            ({"shop.mail": "mail"}, "mail"),
            ({"shop.*": {"queue": "wide"}, "shop.mail": {"queue": "exact"}}, "exact"),
            ([("shop.[mn]*", {"queue": "listed"}), ("*", "rest")], "listed"),
            (([("other", "x"), (re.compile(r".*\.mail"), "pattern")],), "pattern"),
            ({"other.*": "x"}, "usual"),
        ],
    )
    def test_routes_name_the_queue_of_a_task(self, kept: Fake, routes: Any, queue: str) -> None:
        app = Celery("shop")
        app.conf.update(task_routes=routes, task_default_queue="usual")

        @shared_task(name="shop.mail")
        def mail() -> None: ...

        @shared_task(name="shop.mailed", queue="own")
        def own() -> None: ...

        assert (mail.queue, own.queue) == (queue, "own")

    def test_a_task_that_is_sent_by_its_name_is_routed(self, kept: Fake) -> None:
        app = Celery("shop")
        app.conf.update(task_routes={"far.*": "far"}, task_default_queue="usual")

        app.send_task("far.away")
        app.send_task("near")
        app.send_task("far.away", queue="asked")

        assert [job.queue for job in enqueued()] == ["far", "usual", "asked"]

    def test_a_task_that_has_not_run_is_pending(self, kept: Fake) -> None:
        app = Celery("shop")

        for result in (app.send_task("far.away"), app.AsyncResult("0123456789abcdef01234567")):
            assert result.status == "PENDING"
            with pytest.raises(TimeoutError, match=r"drain\(\)"):
                result.get(0)

    def test_settings_of_django_are_read_with_their_prefix(self) -> None:
        app = Celery("shop")
        app.config_from_object(
            {"CELERY_TASK_DEFAULT_QUEUE": "q", "DEBUG": True, "CELERY_TIMEZONE": "UTC"}, namespace="CELERY"
        )

        assert (app.conf.task_default_queue, app.conf["timezone"]) == ("q", "UTC")

    def test_names_from_before_celery_4_are_keys_without_a_namespace(self) -> None:
        app = Celery("shop")

        app.config_from_object({"CELERY_DEFAULT_QUEUE": "q", "DEBUG": True})

        assert app.conf.task_default_queue == "q"
        with pytest.raises(Unsupported, match="kiq_inline"):
            app.config_from_object({"CELERY_ALWAYS_EAGER": True})

    @pytest.mark.parametrize(
        ("key", "value", "counterpart"),
        [
            ("task_always_eager", True, "kiq_inline"),
            ("CELERY_ALWAYS_EAGER", True, "kiq_inline"),
            ("beat_schedule", {}, "schedule PATH"),
            ("task_routes", {"shop.*": {"exchange": "media"}}, "kiqcluster.toml"),
            ("task_routes", [lambda name, *_: None], "kiqcluster.toml"),
            ("task_serializer", "pickle", "JSON"),
            ("task_acks_late", False, "always True"),
            ("broker_url", "amqp://localhost", "URL of a Redis"),
            ("result_backend", "rpc://", "URL of a Redis"),
            ("worker_concurrency", 4, "kiqcluster -c"),
            ("what_is_this", 1, "does not know it"),
        ],
    )
    def test_a_setting_without_effect_is_refused(self, key: str, value: Any, counterpart: str) -> None:
        app = Celery("shop")

        with pytest.raises(Unsupported, match=counterpart):
            app.config_from_object({key: value}, namespace="CELERY" if key.isupper() else "")

    def test_the_broker_is_the_redis_of_the_process(self, setup: Setup) -> None:
        from kiqcluster.process.runtime import using_setup

        with using_setup(Setup()) as own:
            Celery("shop", broker="redis://redis.example:6379/2", backend="redis://redis.example:6379/2")
            assert own.settings["redis"] == "redis://redis.example:6379/2"
            with pytest.raises(Unsupported, match="Redis of the jobs"):
                Celery("shop", broker="redis://one/0", backend="redis://two/0")

    @pytest.mark.parametrize("name", ["autodiscover_tasks", "control", "signature", "add_periodic_task"])
    def test_an_attribute_of_the_app_without_effect_is_refused(self, name: str) -> None:
        with pytest.raises(Unsupported, match="Celery"):
            getattr(Celery("shop"), name)
