"""What a caller says of itself goes from Ruby through a job of Python to a job of Ruby, and from Python to Ruby."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiqcluster import Client, application_context
from kiqcluster.api import RetrySet
from tests.interop.programs import RubyProgram, RubyServer, running_server
from tests.kit import RedisServer, require, unavailable, wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]


@pytest.fixture(scope="module")
def rails_is_there(sidekiq_is_there: None) -> None:
    """Skip loudly, or fail where everything is required, unless Ruby can load ActiveSupport."""
    require("ruby", "ruby-activesupport")
    code = 'require "active_support/current_attributes"; require "i18n"'
    if subprocess.run(["ruby", "-e", f'require "active_support"; {code}'], capture_output=True, check=False).returncode:
        unavailable("Ruby has no ActiveSupport (Debian: apt-get install ruby-activesupport)")


@pytest.fixture(scope="module")
def enqueue(rails_is_there: None, redis_server: RedisServer) -> Iterator[Callable[..., str]]:
    """Enqueue in Ruby: `enqueue("Relay", False, locale="de", user_id=7)` → jid."""
    program = RubyProgram("context_client.rb", redis_server.url)
    yield lambda name, *arguments, locale, **attributes: program.ask(
        {"class": name, "arguments": arguments, "locale": locale, "attributes": attributes}
    )
    program.close()


@pytest.fixture(scope="module")
def rails_server(rails_is_there: None, redis_server: RedisServer) -> Iterator[RubyServer]:
    """A Sidekiq server with CurrentAttributes and I18n, on the queue `ruby`."""
    with running_server(redis_server, "context.rb") as server:
        yield server


@pytest.fixture
def cluster(stage):
    return stage.run_cluster("default", "-c", "2")


def told(stage: Any) -> dict[str, Any]:
    """Wait for a job in Ruby, and return what it knew of its caller."""
    echoes = wait_until(lambda: [each for each in stage.echoes() if each["by"] == "ruby"], "a job to run in Ruby")
    assert len(echoes) == 1, echoes
    found: dict[str, Any] = echoes[0]
    return found


def test_locale_and_attributes_of_ruby_go_through_a_job_of_python(stage, cluster, enqueue, rails_server):
    jid = enqueue("Relay", False, locale="de", user_id=7, tenant="shop")

    in_ruby, in_python = told(stage), stage.echo_of(jid)
    assert (in_python["locale"], in_python["cattr"]) == ("de", {"user_id": 7, "tenant": "shop"})
    assert (in_ruby["locale"], in_ruby["user_id"], in_ruby["tenant"]) == ("de", 7, "shop")


def test_a_retry_in_python_keeps_them(stage, cluster, enqueue, rails_server):
    jid = enqueue("Relay", True, locale="fr", user_id=8)
    failed = wait_until(lambda: RetrySet().find_job(jid), "the failure in Python")
    stage.mend_jobs()
    failed.retry()

    in_ruby = told(stage)
    assert (in_ruby["locale"], in_ruby["user_id"], in_ruby["tenant"]) == ("fr", 8, None)


def test_ruby_has_what_python_says(stage, rails_server):
    facts: Any = {"correlation_id": "r-1", "caller_id": "POST /orders", "user": "ann"}
    with application_context(**facts, locale="de", cattr={"user_id": 9}):
        Client().push({"class": "Tell", "args": [], "queue": "ruby"})

    in_ruby = told(stage)
    assert (in_ruby["locale"], in_ruby["user_id"]) == ("de", 9)
    keys = {key: value for key, value in in_ruby["payload"].items() if key.startswith(("meta.", "correlation"))}
    assert keys == {
        "correlation_id": "r-1",
        "meta.caller_id": "POST /orders",
        "meta.root_caller_id": "POST /orders",
        "meta.user": "ann",
    }


def test_a_correlation_id_is_in_every_line_of_its_jobs(stage, cluster, rails_server):
    with application_context(correlation_id="r-2"):
        jid = Client().push({"class": "Relay", "args": [True], "retry": 0})
        Client().push({"class": "Relay", "args": [False]})

    assert told(stage)["payload"]["correlation_id"] == "r-2"
    lines = [cluster.wait_for("job_failed", jid=jid), cluster.wait_for("job_done")]
    assert [line["correlation_id"] for line in lines] == ["r-2", "r-2"]
    assert json.loads(stage.store.call("ZRANGE", "dead", 0, -1)[0])["correlation_id"] == "r-2"
