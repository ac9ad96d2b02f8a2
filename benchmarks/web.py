"""Web: what pages cost the server that renders them, on a Redis with a million dead jobs, 1 000 queues, 500 processes.

    python -m benchmarks.web [--quick | --small]      a line for each page

--quick has a part of that, --small what a small site has.  Time on the CPU is that of the process which renders.

Both applications are called in their own process, warm, without a web server and without compression: ours as WSGI,
Ruby's Sidekiq::Web as Rack.  They read the same database.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import FULL, Figures, Scale
from benchmarks.peers import Peer
from benchmarks.stage import ROOT, Failed, Stage
from kiqcluster.sidekiq.keys import Keys

__all__ = ["SHARED", "web"]

FILLED = "bench:web"  # the key that says with how much the database is filled
CALLS, MAX_SECONDS = 25, 4.0  # of each page
PROGRAMS = {
    "kiqcluster": [sys.executable, "-m", "benchmarks.apps.web"],
    "sidekiq": ["ruby", str(ROOT / "benchmarks/ruby/web.rb")],
}
# Page of ours → Sidekiq's; {dead}, {retry} and {schedule} stand for an entry.
SHARED = {
    "dashboard": "/",
    "queues": "/queues",
    "queue": "/queues/q7",
    "busy": "/busy",
    "dead": "/morgue",
    "dead_entry": "/morgue/{dead}",
    "retries": "/retries",
    "retries_entry": "/retries/{retry}",
    "scheduled": "/scheduled",
    "scheduled_entry": "/scheduled/{schedule}",
}
FILL = """
local kind, from, count, at = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local classes = {'OrderConfirmation', 'WebhookDelivery', 'Shop::CaptureBatch', 'ImportCatalogue', 'ThumbnailJob'}
for number = from, from + count - 1 do
  local class = classes[number % #classes + 1]
  local job = string.format('{"class":"%s","args":[%d,"order"],"jid":"%024x","queue":"q%d","created_at":%.3f,' ..
    '"enqueued_at":%.3f,"retry":true,"retry_count":25,"failed_at":%.3f,"retried_at":%.3f,' ..
    '"error_class":"TimeoutError","error_message":"hooks.example.com did not answer within 10 s"}',
    class, number, number, number % 1000, at - 60, at - 60, at - 30, at - 1)
  if kind == 'queue' then redis.call('LPUSH', 'queue:q' .. number % tonumber(ARGV[5]), job)
  else redis.call('ZADD', kind, at + number / 1000, job) end
end
"""
PER_CALL = 5_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is.

    jobs: in all queues.  entries: of the schedule and the retry set, each.  classes: that have run.
    """

    dead: int
    queues: int
    processes: int
    jobs: int
    entries: int
    classes: int = 100


WHOLE = Size(dead=1_000_000, queues=1_000, processes=500, jobs=100_000, entries=10_000)
PART = Size(dead=2_000, queues=50, processes=20, jobs=500, entries=100)
SMALL = Size(dead=20, queues=4, processes=2, jobs=20, entries=20, classes=10)
SIZES = {"--quick": PART, "--small": SMALL}


def web(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return milliseconds of each shared page, and of all pages the slowest, the most round trips, the largest."""
    found = measure(stage, peer.name, WHOLE if scale.seconds >= FULL.seconds else PART)
    return {
        **{f"{name}_ms": 1e3 * page["seconds"] for name, page in found.items() if name in SHARED},
        "slowest_ms": max(1e3 * page["seconds"] for page in found.values()),
        "most_trips": max(page["round_trips"] for page in found.values()),
        "largest_kb": max(page["bytes"] for page in found.values()) / 1e3,
    }


def measure(stage: Stage, name: str, size: Size) -> dict[str, dict[str, Any]]:
    """Return page → what it costs.  name: kiqcluster or sidekiq."""
    fill(stage, size)
    with program(name, stage.server.url) as ask:
        paths: Mapping[str, str] = ask("pages") if name == "kiqcluster" else ruby_paths(stage)
        found = {page: ask([path, CALLS, MAX_SECONDS]) for page, path in paths.items()}
    if wrong := {page: each["status"] for page, each in found.items() if each["status"] != 200}:
        raise Failed(f"pages of {name} failed: {wrong}")
    return found


def ruby_paths(stage: Stage) -> dict[str, str]:
    """Return page of ours → path of Sidekiq's."""
    keys = {}
    for name in ("dead", "retry", "schedule"):
        found: Any = stage.server.redis.zrange(name, 0, 0, desc=True, withscores=True)
        ((raw, score),) = found
        keys[name] = f"{score!r}-{json.loads(raw)['jid']}"
    return {page: path.format(**keys) for page, path in SHARED.items()}


@contextmanager
def program(name: str, url: str) -> Iterator[Any]:
    """Run an application for a `with` block; yields what asks it."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    process = subprocess.Popen(
        [*PROGRAMS[name], url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "RACK_ENV": "production", "LANG": "C.UTF-8"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def answer() -> Any:
        if not (line := stdout.readline()):
            raise Failed(f"the pages of {name} ended with {process.wait()}")
        return json.loads(line)

    def ask(request: Any) -> Any:
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return answer()

    try:
        answer()
        yield ask
    finally:
        process.kill()
        process.wait()
        stdin.close()
        stdout.close()


def fill(stage: Stage, size: Size) -> None:
    """Fill the database, unless it is filled; the processes beat now."""
    redis = stage.server.redis
    if redis.get(FILLED) != repr(size):
        stage.clear()
        now = time.time()
        lua = redis.register_script(FILL)
        for kind, count, at in (
            ("dead", size.dead, now - size.dead / 1e3),
            ("queue", size.jobs, now),
            ("retry", size.entries, now + 3_600),
            ("schedule", size.entries, now + 3_600),
        ):
            for start in range(0, count, PER_CALL):
                lua(args=[kind, start, min(PER_CALL, count - start), at, size.queues])
        redis.sadd("queues", *[f"q{number}" for number in range(size.queues)])
        fill_counters(stage, size, now)
        fill_features(stage, size, now)
        redis.set(FILLED, repr(size))
    beat(stage, size, time.time())


def fill_counters(stage: Stage, size: Size, now: float) -> None:
    """The totals, the days of half a year, and the runs of the last two hours."""
    pipeline = stage.server.redis.pipeline(transaction=False)
    pipeline.mset({"stat:processed": 184_204_331, "stat:failed": 2_120_455})
    for back in range(180):
        day = time.strftime("%Y-%m-%d", time.gmtime(now - 86_400 * back))
        pipeline.mset({f"stat:processed:{day}": 400_000 + back, f"stat:failed:{day}": 4_000 + back})
    for back in range(120):
        at = time.gmtime(now - 60 * back)
        key = f"j|{time.strftime('%y%m%d', at)}|{at.tm_hour}:{at.tm_min:02d}"
        for number in range(size.classes):
            fields: dict[Any, Any] = {f"Class{number}|p": 60, f"Class{number}|f": 1, f"Class{number}|ms": 4_000}
            pipeline.hset(key, mapping=fields)
    pipeline.execute()


def fill_features(stage: Stage, size: Size, now: float) -> None:
    """What only our pages show: cron entries, batches, lines of limits, locks, strikes; each as often as queues."""
    keys, pipeline = Keys(), stage.server.redis.pipeline(transaction=False)
    for number in range(size.queues):
        entry = {"schedule": "*/5 * * * *", "job": f"Class{number % 100}", "args": [number], "queue": "q1", "tz": "UTC"}
        pipeline.hset(keys.cron, f"entry {number}", json.dumps(entry))
        pipeline.zadd(keys.cron_ticks, {f"entry {number}": now + 60 + number})
        batch, slots = f"{number:024x}", keys.slots("Sync", f"shop {number}")
        fields: dict[Any, Any] = {"name": "import", "worker": "Row", "created_at": now, "total": 10, "finish": 10}
        pipeline.hset(keys.batch(batch), mapping=fields)
        pipeline.zadd(keys.batches, {batch: now - number})
        job = f'{{"class":"Sync","args":[{number}],"jid":"{batch}","queue":"q1"}}'
        pipeline.zadd(keys.parked(slots), {f"queue:q1\0{job}": 1e6 * now})
        pipeline.sadd(keys.parked_sets, slots)
        pipeline.hset(keys.limits, f"Class{number}", 5)
        pipeline.set(keys.lock(f"Sync:{number}"), batch, ex=86_400)
    pipeline.hset(keys.limits, "Sync", 1)
    for number in range(100):
        strike = {"name": f"Class{number}", "action": "defer", "until": now + 86_400, "arguments": {}, "delay": 60.0}
        pipeline.hset(keys.strikes, f"{number:012x}", json.dumps(strike))
    pipeline.execute()


def beat(stage: Stage, size: Size, now: float) -> None:
    """Have the processes be listed: by hosts of ten, each with a few queues, and running two jobs."""
    pipeline = stage.server.redis.pipeline(transaction=False)
    for number in range(size.processes):
        host, pid = f"app-{number // 10}", 1_000 + number
        identity = f"{host}:{pid}:{number:012x}"
        queues = [f"q{(number * 7 + each) % size.queues}" for each in range(5)]
        info = {
            "hostname": host, "started_at": now - 7_200, "pid": pid, "tag": "shop", "concurrency": 10,
            "queues": queues, "labels": ["kiqcluster"], "identity": identity, "version": "0.1.0",
        }  # fmt: skip
        supervisor = f"{host}:1:{number // 10:012x}"
        state = {"supervisor": supervisor, "slots": 10, "at": now, "version": "0.1.0", "quiet_by": "", "answers": {}}
        facts: dict[Any, Any] = {
            "kiq_cluster": json.dumps(state),
            "kiq_supervisor": f"{now!r} {supervisor}",
            "info": json.dumps(info),
            "busy": 2,
            "beat": now,
            "quiet": "false",
            "rss": 80_000,
            "rtt_us": 90,
        }
        job = {"class": "WebhookDelivery", "args": [number], "jid": f"{number:024x}", "queue": queues[0]}
        run = {"queue": queues[0], "payload": json.dumps({**job, "created_at": now, "enqueued_at": now}), "run_at": now}
        pipeline.hset(identity, mapping={**facts, "concurrency": 10})
        pipeline.hset(
            f"{identity}:work", mapping={f"t{each}": json.dumps({**run, "run_at": int(now)}) for each in (1, 2)}
        )
        pipeline.expire(identity, 3_600)  # without one, it is no process
        pipeline.sadd("processes", identity)
    pipeline.execute()


def report(stage: Stage, size: Size) -> Iterator[str]:
    """Yield a table of all pages."""
    ours, theirs = (measure(stage, name, size) for name in ("kiqcluster", "sidekiq"))
    heads = ["ms", "Sidekiq::Web", "÷", "ms on the CPU", "Sidekiq::Web", "÷", "round trips", "Sidekiq::Web"]
    heads = ["page", *heads, "KB, gzip", "Sidekiq::Web"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for name, page in sorted(ours.items(), key=lambda pair: -pair[1]["seconds"]):
        other = theirs.get(name)
        cells = [name]
        for key in ("seconds", "cpu"):
            cells.append(f"{1e3 * page[key]:.1f}")
            cells += [f"{1e3 * other[key]:.1f}", f"{page[key] / other[key]:.2f}"] if other else ["–", "–"]
        cells += [str(page["round_trips"]), str(other["round_trips"]) if other else "–"]
        cells += [f"{page['bytes'] / 1e3:.1f}", f"{other['bytes'] / 1e3:.1f}" if other else "–"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    with TemporaryDirectory(prefix="kiq-bench-") as folder:
        stage = Stage(Path(folder))
        try:
            for line in report(stage, next((SIZES[word] for word in sys.argv if word in SIZES), WHOLE)):
                print(line)
        finally:
            stage.close()


if __name__ == "__main__":
    main()
