"""The demonstration behind `make demo`: the shop under a cluster with a server of its own, and work for it.

With a terminal it runs until Ctrl-C; without one it ends with 0 once every job was seen done, with 1 after 60 s.
The web pages run beside it where their extra is installed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kiqcluster import KiqError, Store
from kiqcluster.store import embedded

ADDRESS = f"{embedded.SCHEME}{embedded.DEFAULT_DIRECTORY}"
LIMIT_SECONDS = 60.0  # until the demonstration counts as failed
USUAL_PORT = 8082  # where kiqcluster listens by default
USUAL_PAGES_PORT = 8083  # the same of kiqctl web
PAGES_SECONDS = 20.0  # until they have to answer
PAGES_NEED = ("werkzeug", "jinja2", "polib", "waitress")  # the extra `web`
SETTINGS = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "1"}  # so that the retry is not waited for


def main() -> int:
    port = free_port(USUAL_PORT)
    log_format = [] if sys.stdout.isatty() else ["--log-format", "pretty"]
    options = ["--embedded", "-r", "examples.shop", "--listen", f"127.0.0.1:{port}", *log_format]
    command = [python(), "-m", "kiqcluster", *options, "cronjob:*", "default,mailers"]
    print("$", *(f"{name}={value}" for name, value in SETTINGS.items()), shlex.join(command), flush=True)
    cluster = subprocess.Popen(command, env={**os.environ, **SETTINGS})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`: the cluster would stay behind
    try:
        return watch(cluster, port)
    except KeyboardInterrupt:  # the cluster got the same Ctrl-C and is stopping
        wait_for_end(cluster)
        return 0
    except (KiqError, OSError) as error:
        print(f"\nThe demonstration ends early ({error}); the log above says why.", file=sys.stderr)
        return 1
    finally:
        stop(cluster)


def watch(cluster: subprocess.Popen[bytes], port: int) -> int:
    """Give the cluster work, and tell how it went; with a terminal, let it go on.  Return the exit code."""
    deadline = time.monotonic() + LIMIT_SECONDS
    wait_until_ready(cluster, port, deadline)
    jids = enqueue(ADDRESS)
    store = Store(ADDRESS)
    with pages() as place:
        return show(cluster, store, port, jids, place, deadline)


def show(
    cluster: subprocess.Popen[bytes], store: Store, port: int, jids: list[str], place: str, deadline: float
) -> int:
    """Tell how the work went, and where to look; with a terminal, let it go on.  Return the exit code."""
    is_done = wait_until_done(cluster, store, jids, deadline)
    print("\n" + "\n".join(completed(port, len(jids))), flush=True)
    if not is_done:
        print(
            f"\nNot all of the {len(jids)} jobs were done within {LIMIT_SECONDS:.0f} s; the log above says why.",
            flush=True,
        )
        return 1
    print(
        f"\nAll {len(jids)} jobs are done: mails, a nightly job, a report, and an import that failed and was retried.",
        flush=True,
    )
    print(f"Metrics: http://127.0.0.1:{port}/metrics\nWeb pages: {place}", flush=True)
    if sys.stdout.isatty():
        advise(port, cluster.pid, worker_pids(store))
        return cluster.wait()
    return 0


@contextmanager
def pages() -> Iterator[str]:
    """Serve the web pages meanwhile; yield where they are, or why they are not."""
    if any(importlib.util.find_spec(name) is None for name in PAGES_NEED):
        yield "not here; they need an extra: pip install 'kiqcluster[web]'"
        return
    port = free_port(USUAL_PAGES_PORT)
    command = [python(), "-m", "kiqcluster.ctl", "web", "-r", "examples.shop", "--listen", f"127.0.0.1:{port}"]
    print("$", f"REDIS_URL={ADDRESS}", shlex.join(command), flush=True)
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/" if answers(server, port) else "they did not start; run that command by itself"
    finally:
        stop(server)


def answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Return whether the pages answer within their time."""
    deadline = time.monotonic() + PAGES_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def python() -> str:
    """Return what to type for this interpreter, which need not be on PATH."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


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
    while time.monotonic() < deadline:
        check(cluster)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readiness", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(f"the cluster was not ready within {LIMIT_SECONDS:.0f} s")


def check(cluster: subprocess.Popen[bytes]) -> None:
    if cluster.poll() is not None:
        raise ChildProcessError(f"the cluster stopped with exit code {cluster.returncode}")


def wait_until_done(cluster: subprocess.Popen[bytes], store: Store, jids: list[str], deadline: float) -> bool:
    """Return whether every job has left Redis the right way: it is in no queue, in no set, and with no worker."""
    while time.monotonic() < deadline:
        check(cluster)
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


def worker_pids(store: Store) -> list[int]:
    """Return the pids of the worker processes, by Sidekiq's process list."""
    identities = [name.decode() for name in store.call("SMEMBERS", store.keys.processes)]
    return sorted(int(identity.split(":")[-2]) for identity in identities)


def advise(port: int, supervisor: int, workers: list[int]) -> None:
    """Say what can be tried while it runs."""
    ctl = Path(python()).with_name("kiqctl")
    tries = {
        f"curl http://127.0.0.1:{port}/metrics": "every series of both worker processes",
        f"curl http://127.0.0.1:{port}/readiness": "what a load balancer or Kubernetes asks",
        f"REDIS_URL={ADDRESS} {ctl} top": "queues, workers and throughput, live",
        f"kill -9 {workers[0]}": "a worker: it is replaced, and its jobs run again",
        f"kill -TSTP {supervisor}": f"the supervisor: quiet; kill -CONT {supervisor} resumes",
    }
    print("\nIt goes on running; Ctrl-C stops it cleanly.  What to try meanwhile, in another terminal:")
    for command, effect in tries.items():
        print(f"  {command:40} {effect}")
    print(f"  REDIS_URL={ADDRESS} {python()} -c 'from examples.shop import welcome; welcome.perform_async(9)'")
    print("The jobs are in examples/shop/jobs.py.\n", flush=True)


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
    wait_for_end(cluster)


def wait_for_end(cluster: subprocess.Popen[bytes]) -> None:
    try:
        cluster.wait(LIMIT_SECONDS)
    except KeyboardInterrupt:
        cluster.wait(LIMIT_SECONDS)


def free_port(wanted: int) -> int:
    """Return the wanted port, or another one when that is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
            print(f"Port {wanted} is in use; this run uses {probe.getsockname()[1]} instead.", flush=True)
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
