"""kiqctl monitor beside Debian's sidekiqmon, on the same Redis: the same figures, line by line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import publish
from tests.interop.stage import InteropStage
from tests.kit import RedisServer, require, wait_until
from tests.process.kiqctl import Kiqctl

pytestmark = pytest.mark.ruby
RUBY = "rails-1:7:cccccccccccc"


@pytest.fixture
def kiqctl(store: Store, redis_server: RedisServer) -> Iterator[Kiqctl]:
    running = Kiqctl(redis_server.url)
    yield running
    running.close()


def sidekiqmon(url: str) -> str:
    """Return what Ruby's prints."""
    require("sidekiqmon", "ruby-sidekiq")
    done = subprocess.run(
        ["sidekiqmon"],
        env={**os.environ, "REDIS_URL": url, "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def sections_of(text: str) -> dict[str, list[str]]:
    """Return the lines by section, without what differs by nature: versions, latencies, words about times.

    Weights and versions of processes are left out as well: Debian's 6.4.1 prints neither, and commas between queues.
    """
    sections: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        head = re.fullmatch(r"---- (.*) ----", line)
        if head:
            name = head[1]
        elif name and line.strip() and not line.startswith("  Version: "):
            if line.startswith("   Queues: "):
                line = re.sub(r": \d+(?=,|$)", "", line)
            line = re.sub(";(?= |$)", ",", line)
            steady = re.sub(r" \(.* ago\)| \(just now\)$", "", line)
            sections.setdefault(name, []).append(re.sub(r"\d+\.\d\d$", "latency", steady))
    return sections


def test_it_says_what_rubys_says(sidekiq_is_there: None, stage: InteropStage, kiqctl: Kiqctl) -> None:
    cluster = stage.run_cluster("default,low", "-c", "3", app="tests.apps.basic")
    stage.occupy(cluster)
    publish(stage.store, RUBY, labels=["reliable"], busy=2, quiet="true", queues=[f"queue-{n:02}" for n in range(30)])
    publish(stage.store, "rails-2:7:dddddddddddd", labels=[], tag="")
    for queue, count in (("mailers", 3), ("empty", 0), ("reports", 12)):
        stage.store.call("SADD", "queues", queue)
        for number in range(count):
            stage.push("SendInvoice", number, queue=queue)
    now = SystemClock.now()
    for key, count in (("retry", 2), ("dead", 1), ("schedule", 4)):
        for number in range(count):
            job = {"class": "A", "args": [], "jid": f"{number}", "queue": "low"}
            stage.store.call("ZADD", key, now + 1e6 + number, ruby_json.encode(job))
    stage.store.pipeline([("SET", "stat:processed", 1_234_567), ("SET", "stat:failed", 1_234)])

    def both() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        return sections_of(kiqctl("monitor").stdout), sections_of(sidekiqmon(stage.redis.url))

    wait_until(lambda: " (1 busy)" in kiqctl("monitor").stdout, "the running job to show")
    ours, rubys = wait_until(lambda: (pair := both())[0] == pair[1] and pair, "both to say the same")

    assert set(ours) == {"Overview", "Processes (3)", "Queues (4)"}
    assert ours["Overview"][:3] == ["  Processed: 1,234,567", "     Failed: 1,234", "       Busy: 3"]
    assert len(rubys["Processes (3)"]) == len(ours["Processes (3)"]) > 6
    stage.release()
