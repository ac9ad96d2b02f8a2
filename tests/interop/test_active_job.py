"""ActiveJob of Rails and Python on the same queues: each runs what the other has enqueued."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from kiqcluster import Client, Job, job
from kiqcluster.api.records import JobRecord
from kiqcluster.sidekiq.ruby_json import decode
from tests.interop.programs import RubyProgram, RubyServer, running_server
from tests.kit import RedisServer, require, unavailable, wait_until

pytestmark = pytest.mark.ruby

# What ActiveJob has a form for: the same in Ruby and in Python.
SHARED: dict[str, Any] = {
    "nil": None,
    "[true, -7, 1.5, 2**70, 'é ✗']": [True, -7, 1.5, 2**70, "é ✗"],
    "{}": {},
    "{'a' => {'b' => [1, {'c' => nil}]}}": {"a": {"b": [1, {"c": None}]}},
    "Time.utc(2030, 1, 2, 3, 4, 5.25r)": datetime(2030, 1, 2, 3, 4, 5, 250_000, UTC),
    "Time.new(2030, 1, 2, 3, 4, 5, '+05:30')": datetime(2030, 1, 2, 3, 4, 5, 0, timezone(timedelta(hours=5.5))),
    "Date.new(2028, 2, 29)": date(2028, 2, 29),
    "90.seconds": timedelta(minutes=1.5),
    "-1.5.seconds": timedelta(seconds=-1.5),
}
# What only Ruby has, and what Python makes of it.
FROM_RUBY: dict[str, Any] = {
    ":symbol": "symbol",
    "{a: 1, 'b' => {c: :d}}": {"a": 1, "b": {"c": "d"}},
    "{a: 1}.with_indifferent_access": {"a": 1},
    "1.day + 3.hours": timedelta(days=1, hours=3),
    "DateTime.new(2030, 1, 2, 3, 4, 5)": datetime(2030, 1, 2, 3, 4, 5, 0, UTC),
    "Time.utc(2030, 1, 2).in_time_zone('Tokyo')": datetime(2030, 1, 2, 9, 0, 0, 0, timezone(timedelta(hours=9))),
    "BigDecimal('1.50')": "1.5",  # before Rails 7.1 it has no form of its own
}


@pytest.fixture(scope="session")
def active_job_is_there(sidekiq_is_there: None) -> None:
    """Skip loudly, or fail where everything is required, unless Ruby can load ActiveJob."""
    require("ruby", "ruby-activejob")
    code = 'require "active_job"; require "global_id"; print ActiveJob.version'
    answer = subprocess.run(["ruby", "-e", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        unavailable("Ruby has no ActiveJob (Debian: apt-get install ruby-activejob)")


@pytest.fixture(scope="module")
def rails(active_job_is_there: None, redis_server: RedisServer) -> Iterator[Callable[[str], Any]]:
    """Run Ruby code in a Rails application: `rails("SampleJob.perform_later(:a).provider_job_id")`."""
    program = RubyProgram("active_job_client.rb", redis_server.url)
    yield lambda code: program.ask({"ruby": code})
    program.close()


@pytest.fixture(scope="module")
def rails_server(active_job_is_there: None, redis_server: RedisServer) -> Iterator[RubyServer]:
    """A Sidekiq server of that application, on the queue `ruby`."""
    with running_server(redis_server, "active_job.rb") as server:
        yield server


@pytest.fixture
def cluster(stage):
    return stage.run_cluster(
        "default,reminders", "-c", "2", app="tests.apps.active_job", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1"
    )


@pytest.fixture
def python(setup):
    """The same jobs as an application in Python declares them, on the queue of the Ruby server."""

    @job(name="SampleJob", active_job=True, queue="ruby")
    def sample(*args: Any, **keywords: Any) -> None: ...

    class CompareJob(Job, active_job=True, queue="ruby"):
        def perform(self, pairs: list[list[Any]]) -> None: ...

    @job(name="StrictJob", active_job=True, queue="ruby")
    def strict(order: int, *, currency: str, note: str = "none") -> None: ...

    return SimpleNamespace(sample=sample, compare=CompareJob, strict=strict)


class TestRubyEnqueues:
    def test_python_gets_the_arguments_in_its_own_types(self, cluster, rails, stage):
        values = SHARED | FROM_RUBY

        jid = rails(f"SampleJob.perform_later({', '.join(values)}).provider_job_id")

        echo = stage.echo_of(jid)
        assert echo["name"] == "SampleJob"
        received = eval(echo["received"], {"datetime": __import__("datetime")})
        assert received == (tuple(values.values()), {})
        assert [type(value) for value in received[0]] == [type(value) for value in values.values()]

    def test_keywords_reach_the_parameters_of_that_name(self, cluster, rails, stage):
        full = rails("StrictJob.perform_later(7, note: 'x', currency: :EUR).provider_job_id")
        short = rails("StrictJob.perform_later(7, currency: 'CHF').provider_job_id")

        assert stage.echo_of(full)["received"] == "(7, 'EUR', 'x')"
        assert stage.echo_of(short)["received"] == "(7, 'CHF', 'none')"

    def test_a_job_that_ruby_has_scheduled_for_another_queue_runs_when_it_is_due(self, cluster, rails, stage):
        jid = rails("SampleJob.set(wait: 0.3.seconds, queue: :reminders, priority: 5).perform_later(1).provider_job_id")

        assert stage.echo_of(jid)["received"] == "((1,), {})"

    def test_a_record_of_rubys_database_ends_in_retry_with_that_reason(self, cluster, rails, store):
        jid = rails("SampleJob.perform_later(1, [Account.new(42)]).provider_job_id")

        (raw,) = wait_until(lambda: store.call("ZRANGE", "retry", 0, -1), "the job to be put in the retry set")
        record = JobRecord(raw)
        assert record.jid == jid
        assert record.error_class == "kiqcluster.errors.CannotDeserialize"
        assert "arguments[1][0] is the GlobalID gid://shop/Account/42" in record.error_message
        assert (record.display_class, record.display_args) == ("SampleJob", [1, ["gid://shop/Account/42"]])
        assert rails("Sidekiq::RetrySet.new.first.display_class") == "SampleJob"

    def test_a_class_that_python_does_not_have_waits_for_a_deploy_that_brings_it(self, cluster, rails, store):
        rails("CompareJob.perform_later([]).provider_job_id")

        (raw,) = wait_until(lambda: store.call("ZRANGE", "schedule", 0, -1), "the job to be deferred")
        payload = decode(raw)
        assert (payload["wrapped"], payload["deferred_by"]) == ("CompareJob", "unknown_class")


class TestPythonEnqueues:
    def test_ruby_gets_the_arguments_in_its_own_types(self, python, rails_server, stage):
        jid = python.compare.perform_async([[value, code] for code, value in SHARED.items()])

        echo = stage.echo_of(jid)
        assert (echo["by"], echo["compared"], echo["differences"]) == ("ruby", len(SHARED), "[]")
        assert (echo["queue"], echo["executions"]) == ("ruby", 1)

    @pytest.mark.parametrize("verb", ["perform_async", "perform_in", "perform_bulk", "set", "push"])
    def test_ruby_runs_it_however_it_was_enqueued(self, verb, python, rails_server, stage):
        sample = python.sample

        if verb == "perform_async":
            jid = sample.perform_async(1, two=3)
        elif verb == "perform_in":
            jid = sample.perform_in(0.2, 1, two=3)
        elif verb == "perform_bulk":
            jid = sample.perform_bulk([[1, 2]])[0]
        elif verb == "set":
            jid = sample.set(queue="ruby", retry=2).perform_async(1, two=3)
        else:
            jid = Client().push({"class": sample, "args": [1, 2]})

        assert stage.echo_of(jid)["received"] in ("[[1], {:two=>3}]", "[[1, 2], {}]")

    def test_keyword_only_parameters_are_keywords_in_ruby(self, python, rails_server, stage):
        assert stage.echo_of(python.strict.perform_async(7, currency="EUR"))["received"] == [7, "EUR", "none"]
        assert stage.echo_of(python.strict.perform_async(order=7, note="x", currency="EUR"))["received"] == [
            7,
            "EUR",
            "x",
        ]

    def test_a_record_of_rubys_database_is_passed_in_its_own_form(self, python, rails_server, stage):
        jid = python.sample.perform_async({"_aj_globalid": "gid://shop/Account/42"})

        assert "#<Account" in stage.echo_of(jid)["received"]

    def test_rubys_pages_show_the_class_and_its_arguments(self, python, rails, store):
        python.sample.set(queue="shown").perform_async(1, "two")

        assert rails("Sidekiq::Queue.new('shown').first.then { |job| [job.display_class, job.display_args] }") == [
            "SampleJob",
            [1, "two"],
        ]


def test_what_failed_in_python_is_retried_in_ruby_where_its_executions_begin_anew(
    cluster, registry, rails, rails_server, setup, stage
):
    @job(name="FragileJob", active_job=True, retry_queue="ruby")
    def fragile(number: int) -> None: ...

    jid = fragile.perform_async(1)
    (raw,) = wait_until(lambda: stage.store.call("ZRANGE", "retry", 0, -1), "the job to fail in Python")

    assert JobRecord(raw).retry_count == 0
    rails("Sidekiq::RetrySet.new.first.retry")

    echo = stage.echo_of(jid)
    assert (echo["by"], echo["executions"]) == ("ruby", 1)


def test_decimals_are_written_as_rails_7_1_reads_them(python, store):
    python.sample.set(queue="shown").perform_async(Decimal("1.50"))

    (raw,) = store.call("LRANGE", "queue:shown", 0, -1)
    assert decode(raw)["args"][0]["arguments"] == [
        {"_aj_serialized": "ActiveJob::Serializers::BigDecimalSerializer", "value": "1.50"}
    ]
