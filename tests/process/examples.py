"""Jobs that the examples of kiqctl name, in its help and on its page, and how such an example is run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

from kiqcluster.api import CronSet
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store, batches
from tests.kit import free_port
from tests.process.kiqctl import Kiqctl
from tests.process.terminal import Terminal
from tests.stage import Stage

EXAMPLE_JID = "b4a577edbccf1d805744efa9"
EXAMPLE_BATCH = "5f0c1d6b7a8e9f0a1b2c3d4e"
NOW = 1_795_168_740.5  # epoch second at which the example jobs failed
JOB_KEYS = (
    "queue:*",
    "queues",
    "paused",
    "schedule",
    "retry",
    "dead",
    "stat:*",
    "*-marks",
    "deploylock-*",
    "kiq:dropped",
    "kiq:str*",
    "kiq:lock:*",
    "kiq:cron*",
    "kiq:batch*",
    "cron_job*",
)
LIMIT_KEYS = ("kiq:slots:*", "kiq:parked", "kiq:limits*")


def lay_out(stage: Stage) -> None:
    """Have jobs lie where the examples look for them."""
    found = [key for pattern in (*JOB_KEYS, *LIMIT_KEYS) for key in stage.store.call("KEYS", pattern)]
    if found:
        stage.store.call("UNLINK", *found)
    for queue in ("default", "low", "mailers", "reports"):  # in the order of their names: two may be equally old
        stage.push("SendInvoice", 7, "EUR", queue=queue, jid=EXAMPLE_JID)
        stage.push("Reports::Yearly", 2026, queue=queue)
    stage.push("SendInvoice", 7, at=NOW + 1e8, jid=EXAMPLE_JID)
    failed = {"retry": True, "queue": "default", "args": [7], "class": "SendInvoice", "jid": EXAMPLE_JID}
    error = {"created_at": NOW, "failed_at": NOW, "retry_count": 0, "error_class": "OSError", "error_message": "away"}
    for key, score in (("retry", NOW + 1e8), ("dead", NOW)):
        add(stage.store, key, {**failed, **error}, score)
        add(stage.store, key, {**failed, **error, "class": "Reports::Yearly", "jid": "0" * 24}, score + 1)
    parked = ruby_json.encode({**failed, "class": "SyncAccount", "args": [4711]})
    stage.store.call("ZADD", "kiq:slots:SyncAccount:parked", NOW * 1e6, b"queue:default\0" + parked)
    stage.store.call("SADD", "kiq:parked", "kiq:slots:SyncAccount")
    stage.store.call("HSET", "kiq:limits", "SyncAccount", 5)
    add(stage.store, "kiq:dropped", {**failed, "dropped_by": "strike:3fa9c1"}, NOW)
    strike = {"name": "SendInvoice", "action": "drop", "until": SystemClock.now() + 3_600}
    stage.store.call("HSET", stage.store.keys.strikes, "3fa9c1", ruby_json.encode(strike))
    stage.store.call("SET", "kiq:lock:SendInvoice:c6e4b2", EXAMPLE_JID, "EX", 21_590)
    for name, schedule in (("cleanup", "0 3 * * *"), ("daily_report", "0 9 * * *"), ("one_off", "30 12 24 12 *")):
        CronSet(store=stage.store).add(name, schedule, "Reports::Yearly", [2026], queue="reports")
    record = {"name": "purge", "cron": "0 4 * * *", "klass": "Purge", "queue_name": "low", "status": "enabled"}
    stage.store.call("SADD", stage.store.keys.cron_jobs("default"), "cron_job:default:purge")
    stage.store.call("HSET", "cron_job:default:purge", *(word for pair in record.items() for word in pair))
    lay_out_batch(stage.store)
    stage.store.pipeline([("SET", "stat:processed", 1_204), ("SET", "stat:failed", 12)])


def lay_out_batch(store: Store) -> None:
    """Have a batch with a job that has failed, one that waits for a retry, and one whose queue was cleared."""
    fields: dict[str, str | int] = {
        "name": "import",
        "worker": "SendInvoice",
        "expected": 3,
        "ttl": 86_400,
        "kept": 3_600,
    }
    batches.create_batch(store, EXAMPLE_BATCH, "", {**fields, **dict.fromkeys(("total", *batches.STATUSES), 0)})
    jobs = [batches.NewBatchJob(Jid(jid), "batch", None, b"{}", (), "[7]") for jid in (EXAMPLE_JID, "1" * 24, "2" * 24)]
    batches.push_jobs(store, EXAMPLE_BATCH, jobs)
    batches.close_batch(store, EXAMPLE_BATCH)
    store.pipeline([("DEL", "queue:batch"), ("SREM", "queues", "batch")])
    batches.mark_jobs(store, EXAMPLE_BATCH, ["1" * 24], "failed", '"row 7 has no name"')


def add(store: Store, key: str, payload: dict[str, object], score: float) -> None:
    store.call("ZADD", key, repr(score), ruby_json.encode(payload))


def run_example(kiqctl: Kiqctl, call: Sequence[str], url: str) -> subprocess.CompletedProcess[str]:
    """Run the words after `kiqctl`; what runs until somebody ends it is ended so."""
    if call[0] == "top" and "--once" not in call and "--json" not in call:
        terminal = Terminal([sys.executable, "-m", "kiqcluster.ctl", *call], REDIS_URL=url)
        try:
            terminal.wait_shown("jobs", "busy", "Queues")
            terminal.press("q")
            return subprocess.CompletedProcess(call, terminal.wait(), "", terminal.text)
        finally:
            terminal.close()
    if call[0] in ("exporter", "web"):
        running = kiqctl.start(*call, "--listen", f"127.0.0.1:{free_port()}")
        assert running.process.stderr is not None
        said = running.process.stderr.readline()  # that it listens
        running.process.send_signal(signal.SIGTERM)
        done = kiqctl.end(running)
        return subprocess.CompletedProcess(call, done.returncode, done.stdout, said + done.stderr)
    return kiqctl(*call)
