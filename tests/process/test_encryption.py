"""Encrypted arguments in a real cluster, whose process is killed in the middle of the job."""

from __future__ import annotations

import base64
import os
import signal

from kiqcluster import Client
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from tests.kit import http_get, require_module, wait_until
from tests.stage import Stage

require_module("cryptography")
KEY, OTHER = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SECRET = "hunter2"


def push(stage: Stage, keys: str) -> str | None:
    return Client(stage.store, Setup(config=Config(encryption_keys=keys))).push(
        {"class": "stubborn", "args": [SECRET], "encrypt": True}
    )


def test_a_killed_job_runs_again_with_its_secret_and_nothing_tells_it(stage: Stage) -> None:
    jid = push(stage, f"1:{KEY}")
    push(stage, f"1:{OTHER}")
    cluster = stage.run_cluster("default", "-c", "1", KIQ_ENCRYPTION_KEYS=f"1:{KEY}", KIQ_LOG_LEVEL="debug")
    stage.wait_noted(f"began {SECRET}")

    os.kill(cluster.pids()[0], signal.SIGKILL)
    wait_until(lambda: stage.notes().count(f"began {SECRET}") == 2, "it to run again")
    (identity,) = stage.holders()
    (held,) = [raw for raw in stage.held(identity) if str(jid).encode() in raw]
    status = http_get(cluster.port, "/status")[2]
    stage.release()

    (buried,) = wait_until(lambda: stage.dead(), "the one of another key to be buried")
    assert buried["error_class"] == "kiqcluster.errors.PayloadDecryptionError"
    stage.wait_settled()
    for said in (held, status, "\n".join(cluster.lines).encode()):
        assert not any(word.encode() in said for word in (SECRET, KEY, OTHER))
