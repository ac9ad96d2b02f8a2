"""A worker process alone: `python -m tests.apps.lone_worker FD REDIS`.

FD is its end of a socketpair; whoever holds the other end is its supervisor.
"""

from __future__ import annotations

import socket
import sys

from kiqcluster.ipc.exits import exit_process
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.config import Config
from kiqcluster.process.logs import log
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.worker.child import run_child
from kiqcluster.worker.child_spec import ChildSpec


def main() -> None:
    parent = socket.socket(fileno=int(sys.argv[1]))
    config = Config(require=("tests.apps.basic",), redis=sys.argv[2], stop_timeout=5.0)
    log.configure("json", "debug")
    spec = ChildSpec(
        slot=0,
        config=config,
        group=parse_group("default"),
        known_queues=("default",),
        concurrency=2,
        quiet=False,
        running_jobs=RunningJobs(2),
        parent=parent,
    )
    exit_process(run_child(spec))


if __name__ == "__main__":
    main()
