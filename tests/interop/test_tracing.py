"""Traces go on from Ruby to Python and back, and their keys survive what either side does to a job.

Debian has no gem of OpenTelemetry: RUBY_PUSH writes the keys as opentelemetry-instrumentation-sidekiq does, by
client middleware and into the top level of the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.apps.interop import Echo, fragile
from tests.interop.stage import InteropStage
from tests.kit import Cluster, wait_until
from tests.tracing import SPAN_ID, SPELT, TRACE_ID, TRACEPARENT, instrumented, traceparent

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

Ruby = Callable[..., Any]
CARRIED: dict[str, Any] = decode(b"{" + ",".join(SPELT).encode() + b"}")
RUBY_PUSH = """
  middleware = Class.new
  middleware.class_exec(keys) do |keys|
    define_method(:call) { |_class, job, _queue, _pool, &push| job.merge!(keys); push.call }
  end
  Sidekiq.client_middleware.add(middleware)
  begin
    Sidekiq::Client.push("class" => "Echo", "args" => [1], "queue" => queue)
  ensure
    Sidekiq.client_middleware.remove(middleware)
  end
"""
TRACE_OF_FIRST = """
  job = Sidekiq::Queue.new(queue).first
  version, trace, span, flags = job["traceparent"].split("-")
  {"version" => version, "trace" => trace, "span" => span, "flags" => flags, "baggage" => job["baggage"],
   "keys" => job.item.keys}
"""


@pytest.fixture
def carried() -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda payload: {key: payload.get(key) for key in CARRIED}


Carried = Callable[[dict[str, Any]], dict[str, Any]]


class TestSpans:
    def test_the_span_of_a_job_that_ruby_pushed_links_to_rubys(
        self, stage: InteropStage, ruby: Ruby, tmp_path: Path
    ) -> None:
        cluster = stage.run_cluster("default", app="tests.apps.traced", KIQ_SPANS=str(tmp_path / "spans"))

        jid = ruby(RUBY_PUSH, keys={"traceparent": TRACEPARENT, "baggage": "user=7"}, queue="default")

        assert stage.echo_of(jid)["by"] == "python"
        assert cluster.stop() == 0
        (span,) = map(json.loads, (tmp_path / "spans").read_text().splitlines())
        (link,) = span["links"]
        assert span["name"] == "default process"
        assert int(link["context"]["trace_id"], 16) == int(TRACE_ID, 16)
        assert int(link["context"]["span_id"], 16) == int(SPAN_ID, 16)
        assert span["attributes"]["messaging.message_id"] == jid

    def test_ruby_reads_the_context_of_our_push_where_it_looks_for_it(self, store: Store, ruby: Ruby) -> None:
        with instrumented() as spans:
            Echo.set(queue="letters").perform_async(1)

        found = ruby(TRACE_OF_FIRST, queue="letters")

        context = spans.one("letters publish").context
        assert "-".join(found[each] for each in ("version", "trace", "span", "flags")) == traceparent(context)
        assert found["keys"][-2:] == ["traceparent", "enqueued_at"]

    def test_a_job_of_a_ruby_server_gets_it_with_its_payload(self, stage: InteropStage, ruby_server: Any) -> None:
        with instrumented() as spans:
            jid = Echo.set(queue="ruby").perform_async(1)
            (bulk,) = Echo.set(queue="ruby").perform_bulk([[2]])
            later = Echo.set(queue="ruby").perform_in(0.1, 3)

        pushed = {span.attributes["messaging.message.id"]: traceparent(span.context) for span in spans.all()}  # type: ignore[index]
        assert pushed == {each: stage.echo_of(each)["payload"]["traceparent"] for each in (jid, bulk, later)}
        assert {stage.echo_of(each)["by"] for each in pushed} == {"ruby"}


class TestKeys:
    @pytest.fixture
    def cluster(self, stage: InteropStage) -> Cluster:
        return stage.run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    def test_a_failure_in_ruby_and_the_retries_in_python_keep_them(
        self, stage: InteropStage, ruby: Ruby, ruby_server: Any, carried: Carried
    ) -> None:
        jid = ruby(RUBY_PUSH.replace("Echo", "Acme::Fragile"), keys=CARRIED, queue="ruby")
        wait_until(lambda: stage.store.call("ZCARD", "retry"), "the failure in Ruby")

        ruby("entry = Sidekiq::RetrySet.new.find_job(jid); entry.delete; "
             "Sidekiq::RetrySet.new.schedule(0, entry.item.merge('queue' => 'default'))", jid=jid)  # fmt: skip
        stage.run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
        wait_until(lambda: ruby("Sidekiq::RetrySet.new.any? { |entry| entry['retried_at'] }"), "the failure in Python")

        assert carried(ruby("Sidekiq::RetrySet.new.find_job(jid).item", jid=jid)) == CARRIED

    def test_a_retry_from_the_dead_set_by_rubys_api_keeps_them(
        self, stage: InteropStage, ruby: Ruby, cluster: Cluster, carried: Carried
    ) -> None:
        jid = fragile.set(retry=0).perform_async("x")
        (raw,) = wait_until(lambda: stage.store.call("ZRANGE", "dead", 0, -1), "the burial")
        stage.store.call("DEL", "dead")
        stage.store.call("ZADD", "dead", 1.5, raw[:-1] + b"," + ",".join(SPELT).encode() + b"}")
        assert carried(ruby("Sidekiq::DeadSet.new.find_job(jid).item", jid=jid)) == CARRIED

        ruby("Sidekiq::DeadSet.new.find_job(jid).retry", jid=jid)

        wait_until(lambda: stage.store.call("ZCARD", "dead"), "the second burial")
        (again,) = stage.store.call("ZRANGE", "dead", 0, -1)
        assert carried(decode(again)) == CARRIED

    def test_each_side_moves_due_jobs_of_the_other_with_them(
        self, stage: InteropStage, ruby: Ruby, ruby_server: Any, cluster: Cluster, carried: Carried
    ) -> None:
        jids = [
            ruby(RUBY_PUSH.replace('"queue" => queue', '"queue" => queue, "at" => Time.now.to_f + 0.3'),
                 keys=CARRIED, queue=queue)
            for queue in ("default", "ruby")
        ]  # fmt: skip

        for jid in jids:
            assert carried(stage.echo_of(jid)["payload"]) == CARRIED
