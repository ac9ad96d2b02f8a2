"""A chain of a Python job and a Ruby job: Ruby keeps the chain of a job that it moves, and runs the last one."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster.client.chains import Chain
from tests.apps.interop import fragile
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup", "ruby_server")]


def test_a_job_that_ruby_has_retried_still_pushes_the_next_one_which_ruby_runs(stage, ruby):
    chain: Chain[..., Any] = fragile.then({"class": "Echo", "queue": "ruby", "tags": ["vip"]}, "own")
    stage.run_cluster("default", "-c", "2").wait_ready(1)
    handle = chain.enqueue("a")
    wait_until(lambda: stage.store.call("ZCARD", "retry"), "the first job to have failed")
    stage.store.call("SET", "mended", "1")

    ruby("Sidekiq::RetrySet.new.find_job(jid).retry", jid=handle.jids[0])

    echo = stage.echo_of(handle.jid)
    assert (echo["by"], echo["args"], echo["payload"]["tags"]) == ("ruby", [None, "own"], ["vip"])
    assert stage.ran() == list(handle.jids)
