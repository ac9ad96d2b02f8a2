"""Compressed jobs in a real cluster, whose processes are killed or end in the middle of them."""

from __future__ import annotations

import os
import signal
from typing import Any

from kiqcluster import Client
from kiqcluster.errors import PayloadDecompressionError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from tests.kit import wait_until
from tests.stage import Stage

WORD = "x" * 3_000


def push(stage: Stage, name: str, *arguments: Any, **keys: Any) -> None:
    config = Config(size_limiter_mode="compress", size_limiter_compression_threshold=1_000)
    Client(stage.store, Setup(config=config)).push({"class": name, "args": list(arguments), **keys})


def test_a_job_runs_again_with_its_arguments_after_its_process_was_killed(stage: Stage) -> None:
    push(stage, "stubborn", WORD)
    (payload,) = stage.queued()
    cluster = stage.run_cluster("default", "-c", "1")
    stage.wait_noted(f"began {WORD}")

    os.kill(cluster.pids()[0], signal.SIGKILL)
    wait_until(lambda: stage.notes().count(f"began {WORD}") == 2, "it to run again")
    (identity,) = stage.holders()
    (held,) = stage.held(identity)
    stage.release()

    stage.wait_noted(f"ended {WORD}")
    stage.wait_settled()
    assert payload["args"][0].encode() in held  # as it was pushed
    assert stage.remaining() == {}


def test_one_that_a_stop_puts_back_stays_compressed(stage: Stage) -> None:
    push(stage, "stubborn", WORD)
    (payload,) = stage.queued()
    cluster = stage.run_cluster("default", "-t", "0.2")
    stage.wait_noted(f"began {WORD}")

    assert cluster.stop() == 0

    (back,) = stage.queued()
    assert back.pop("interrupted_count") == 1
    assert back == payload


def test_one_that_cannot_be_read_is_buried_and_holds_up_no_other(stage: Stage) -> None:
    stage.push("record", "no zlib", compressed=True)
    stage.push("record", "fine")
    stage.run_cluster("default", "-c", "1")

    stage.wait_noted("ran fine")
    wait_until(stage.dead, "the other one to be buried")

    (dead,) = stage.dead()
    assert dead["error_class"] == f"kiqcluster.errors.{PayloadDecompressionError.__name__}"
    assert (dead["args"], dead["compressed"]) == (["no zlib"], True)
