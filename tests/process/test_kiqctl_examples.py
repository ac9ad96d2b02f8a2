"""The examples in the help of every command of kiqctl, run as they stand there against a real cluster with real data.

Examples.replacements names what the test puts in place of a placeholder.  Jobs, queues and ids: examples.py.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kiqcluster.control import process_registry
from tests.kit import Cluster, free_port, wait_until
from tests.process.examples import lay_out, run_example
from tests.process.kiqctl import Kiqctl, all_commands
from tests.process.kiqctl import examples as examples_of
from tests.stage import Stage

COMMANDS_OF_CLUSTERS = {"quiet", "roll", "reload", "deploy", "signal"}


class Examples:
    """A cluster that is there for every example, also after one that has ended it."""

    def __init__(self, stage: Stage, control: Path) -> None:
        self._stage = stage
        self.control = control
        self.cluster = self._run()

    def _run(self) -> Cluster:
        cluster = self._stage.run_cluster("work", "work", "-c", "2", KIQ_CONTROL=str(self.control))
        cluster.wait_ready(2)
        self.worker(cluster)
        return cluster

    def prepare(self) -> None:
        if self.cluster.seen("cluster_stopping"):
            self.cluster.process.wait(30)
        if self.cluster.process.poll() is not None:
            self.cluster = self._run()
        lay_out(self._stage)
        self._stage.push("nap", "a", 0.5, queue="work")

    def run_for(self, jid: str) -> None:
        """Have a job of that jid run for some seconds."""
        before = self._stage.notes().count("began long")
        self._stage.push("nap", "long", 8, queue="work", jid=jid)
        wait_until(lambda: self._stage.notes().count("began long") > before, f"the job {jid} to run")

    def worker(self, cluster: Cluster | None = None) -> str:
        """Return host and pid of a worker that is listed, once all of them are."""
        there = cluster or self.cluster

        def is_listed() -> bool:  # a kill has just replaced one, perhaps
            return set(there.pids().values()) <= {
                each.pid for each in process_registry.list_processes(self._stage.store)
            }

        wait_until(is_listed, "all workers to be listed")
        return f"{socket.gethostname()}:{there.pids().popitem()[1]}"

    def replacements(self) -> dict[str, str]:
        """Return what stands in the examples → what is there, in the order in which it is to be replaced."""
        return {
            "app.jobs": "tests.apps.basic",
            "app-1:4243": self.worker(),
            "app-1": socket.gethostname(),
            "app-2": socket.gethostname(),
            "/run/kiqcluster.sock": str(self.control),
            "0.0.0.0:9168": f"127.0.0.1:{free_port()}",
            "redis://redis-1/0": self._stage.store.address,
        }


@pytest.mark.timeout(400)
@pytest.mark.parametrize("most", [pytest.param(1, id="first"), pytest.param(None, marks=pytest.mark.full, id="all")])
def test_the_examples_of_every_command_do_what_they_say(
    stage: Stage, kiqctl: Kiqctl, tmp_path: Path, most: int | None
) -> None:
    examples = Examples(stage, tmp_path / "control.sock")
    failed: dict[str, str] = {}

    for words in sorted(all_commands()):
        for example in examples_of(words)[:most]:
            examples.prepare()
            if words == "kill":
                examples.run_for(example[1])
            replacements = examples.replacements()
            call = list(example)
            for word, real in replacements.items():
                call = [each.replace(word, real) for each in call]
            done = run_example(kiqctl, call, stage.redis.url)
            if done.returncode != 0 or "Traceback" in done.stderr:
                failed[f"kiqctl {' '.join(example)}"] = f"exit {done.returncode}: {done.stderr}"
            if call[0] in COMMANDS_OF_CLUSTERS and examples.cluster.process.poll() is None:
                kiqctl("resume")

    assert not failed, "\n".join(f"{call}\n  {why}" for call, why in failed.items())
