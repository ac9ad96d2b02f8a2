"""Cron: entries that are all due at the same tick; how long one process takes to enqueue their jobs, and at what cost.

kiqcluster runs its poller's source, sidekiq what the poller of sidekiq-cron does: each in a program of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.measure import FULL, Figures, Scale
from benchmarks.peers import Peer
from benchmarks.stage import ROOT, Failed, Stage

__all__ = ["cron"]

ENTRIES, FEW_ENTRIES = 10_000, 200
PROGRAMS = {
    "kiqcluster": [sys.executable, "-m", "benchmarks.apps.cron_poll"],
    "sidekiq": ["ruby", str(ROOT / "benchmarks/ruby/cron_poll.rb")],
}
TIMEOUT_SECONDS = 600.0


def cron(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return seconds of the poll, jobs a second, CPU in ms per 1 000 jobs, commands and round trips per job."""
    entries = ENTRIES if scale.seconds >= FULL.seconds else FEW_ENTRIES
    stage.clear()
    command = [*PROGRAMS[peer.name], stage.server.url, str(entries)]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as program:
        assert program.stdout is not None
        if program.stdout.readline() != "ready\n":
            raise Failed(f"{peer.name} could not add its cron entries")
        before = stage.server.counters()
        answer, _ = program.communicate("go\n", TIMEOUT_SECONDS)
    spent = stage.server.counters().since(before)
    found = json.loads(answer)
    if found["jobs"] != entries:
        raise Failed(f"{peer.name} enqueued {found['jobs']} jobs for {entries} entries")
    return {
        "seconds": found["seconds"],
        "rate": entries / found["seconds"],
        "worker_cpu": 1e6 * found["cpu"] / entries,
        "redis_cpu": 1e6 * spent.cpu / entries,
        "commands": spent.commands / entries,
        "round_trips": spent.reads / entries,
    }
