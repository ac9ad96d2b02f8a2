"""The demonstration behind `make demo`: the shop under a cluster with a server of its own, and work for it.

With a terminal it runs until Ctrl-C; without one it ends with 0 once every job was seen done, with 1 after 60 s.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from kiqcluster import Store
from kiqcluster.store import embedded

DIRECTORY = Path(".kiqcluster").absolute()
LIMIT = 60.0  # seconds until the demonstration counts as failed
GROUPS = ("cronjob:*", "default,mailers")


def main() -> int:
    port = free_port(8082)
    environ = {**os.environ, "REDIS_URL": f"{embedded.SCHEME}{DIRECTORY}", "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "1"}
    command = [sys.executable, "-m", "kiqcluster", f"--embedded={DIRECTORY}", "-r", "examples.shop", *GROUPS]
    print("$ kiqcluster --embedded -r examples.shop 'cronjob:*' default,mailers", flush=True)
    cluster = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}", "--log-format", "pretty"], env=environ)
    deadline = time.monotonic() + LIMIT
    try:
        wait_until_ready(cluster, port, deadline)
        jids = enqueue(environ["REDIS_URL"])
        is_done = wait_until_done(Store(environ["REDIS_URL"]), jids, deadline)
        show(port, len(jids), is_done=is_done)
        if sys.stdout.isatty() and is_done:
            cluster.wait()
        return 0 if is_done else 1
    except KeyboardInterrupt:  # the cluster got the same Ctrl-C and is stopping
        return 0
    finally:
        stop(cluster)


def enqueue(address: str) -> list[str]:
    """Enqueue the shop's work; return the jids."""
    os.environ["REDIS_URL"] = address
    from examples.shop import CleanUpCarts, ImportCatalogue, MonthlyReport, order_confirmation, welcome

    jids = [
        *welcome.perform_bulk([[customer] for customer in range(1, 6)]),
        order_confirmation.perform_async(4711, "23.50"),
        order_confirmation.perform_in(2, 4712, "7.00"),
        CleanUpCarts.perform_async(),
        ImportCatalogue.perform_async("Acme"),
        MonthlyReport.perform_async("2026-10"),
    ]
    return [jid for jid in jids if jid is not None]


def wait_until_ready(cluster: subprocess.Popen[bytes], port: int, deadline: float) -> None:
    while time.monotonic() < deadline and cluster.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readiness", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the cluster did not become ready; its log above says why")


def wait_until_done(store: Store, jids: list[str], deadline: float) -> bool:
    """Return whether every job has left Redis the right way: it is in no queue, in no set, and with no worker."""
    while time.monotonic() < deadline:
        if not any(jid in everything(store) for jid in jids):
            return True
        time.sleep(0.2)
    return False


def everything(store: Store) -> str:
    """Return all payloads that are somewhere in Redis, dead ones included."""
    keys = store.keys
    found: list[bytes] = []
    for name in store.call("SMEMBERS", keys.queues):
        queue = name.decode()
        found += store.call("LRANGE", keys.queue(queue), 0, -1)
        found += store.call("LRANGE", keys.wake(queue), 0, -1)
    for zset in (keys.schedule, keys.retry, keys.dead):
        found += store.call("ZRANGE", zset, 0, -1)
    for identity in store.call("HKEYS", keys.members):
        found += store.call("HVALS", keys.inflight(identity.decode()))
    return b"\n".join(found).decode(errors="replace")


def show(port: int, count: int, *, is_done: bool) -> None:
    print()
    print("\n".join(completed(port, count)))
    if not is_done:
        print(f"\nNot all of the {count} jobs were done within {LIMIT:.0f} s; the log above says why.", flush=True)
        return
    print(
        f"""
All {count} jobs are done: mails, a nightly job, a report, and an import that failed and was retried.

What to look at next:
  curl http://127.0.0.1:{port}/metrics         every series of both worker processes
  curl http://127.0.0.1:{port}/readiness       what a load balancer or Kubernetes asks
  kill -9 a worker's pid                     it is replaced, and its jobs run again
  kill -TSTP, then -CONT the supervisor      quiet, and back
  examples/shop/jobs.py                      the jobs
  REDIS_URL={embedded.SCHEME}{DIRECTORY.name} python3 -c 'from examples.shop import welcome; welcome.perform_async(9)'
""",
        flush=True,
    )
    if sys.stdout.isatty():
        print("It goes on running; Ctrl-C stops it cleanly.", flush=True)


def completed(port: int, count: int) -> list[str]:
    """Return the completion series, once they tell of every job: workers report about once a second."""
    deadline = time.monotonic() + 3
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("sidekiq_jobs_completion_seconds_count")]
        done = sum(float(line.rpartition(" ")[2]) for line in counts if 'job_status="done"' in line)
        if done >= count or time.monotonic() > deadline:
            return [f"  {line}" for line in counts if not line.endswith(" 0.0")]
        time.sleep(0.1)


def stop(cluster: subprocess.Popen[bytes]) -> None:
    if cluster.poll() is None:
        cluster.send_signal(signal.SIGTERM)
    try:
        cluster.wait(LIMIT)
    except KeyboardInterrupt:
        cluster.wait(LIMIT)


def free_port(wanted: int) -> int:
    """Return the wanted port, or another one when that is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
