"""What the checks of the web shops share (README.md): a web server and workers as users start them, and one order.

1. tests     the project's own tests pass
2. start     workers with a Redis of their own (--embedded), and the web server
3. order     a request enqueues a job; wait until what it does can be seen, and the job has been counted
4. stop      both end, the workers with 0
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from kiqcluster.testing import wait_until
from kiqcluster.testing.server import free_port

__all__ = ["WORKERS_LOG", "check", "request"]

SECONDS = 60.0
STOP_SECONDS = 40.0
OK = 200
ADDRESS = "embedded:.kiqcluster"
WORKERS_LOG = Path("workers.log")  # what the workers have printed


def check(
    tests: Sequence[str], workers: Sequence[str], web: Callable[[int], Sequence[str]], order: Callable[[str], bool]
) -> int:
    """Do the four steps in the working directory; return the exit code of the check.

    tests, workers, web: words for `python -m`; web gets its port.  order: places an order at this address; whether that
    has had its effect.  It is called again until it has.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS_"))}
    subprocess.run([sys.executable, "-m", *tests], env=environ, check=True)
    port, probes = free_port(), free_port()
    with (
        WORKERS_LOG.open("wb") as log,
        program([*workers, "--embedded"], {**environ, "KIQ_LISTEN": f"127.0.0.1:{probes}"}, log, (0,)),
        program(web(port), {**environ, "REDIS_URL": ADDRESS}, None, (0, -signal.SIGTERM)),
    ):
        wait_until(lambda: _status(f"http://127.0.0.1:{probes}/readiness") == OK, "the workers to be ready", SECONDS)
        wait_until(lambda: _status(f"http://127.0.0.1:{port}/"), "the web server", SECONDS)
        wait_until(lambda: order(f"http://127.0.0.1:{port}"), "the effect of the job", SECONDS)
        wait_until(lambda: _stats(environ)["processed"] >= 1, "the job to be counted", SECONDS)
        stats = _stats(environ)
    print(stats)
    return 1 if stats["failed"] else 0


def request(url: str, **fields: str) -> str:
    """Return the answer to a GET, or to a POST of these fields."""
    data = urlencode(fields).encode() if fields else None
    with urlopen(url, data, timeout=SECONDS) as answer:  # noqa: S310 (of this host)
        text: str = answer.read().decode()
    return text


def _stats(environ: Mapping[str, str]) -> dict[str, int]:
    """Return what `kiqctl stats` prints."""
    command = [sys.executable, "-m", "kiqcluster.ctl", "stats", "--json", "--redis", ADDRESS]
    printed = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout
    stats: dict[str, int] = json.loads(printed)
    return stats


def _status(url: str) -> int:
    """Return the status of an answer, 0 for none."""
    try:
        request(url)
    except HTTPError as error:
        return error.code
    except URLError:
        return 0
    return OK


@contextmanager
def program(
    words: Sequence[str], environ: dict[str, str], log: IO[bytes] | None, codes: Collection[int]
) -> Iterator[None]:
    """A program that runs during the block, and ends with one of these exit codes at a SIGTERM.

    log: what it prints goes there; None: to where we print.
    """
    process = subprocess.Popen([sys.executable, "-u", "-m", *words], env=environ, stdout=log, stderr=log)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        if code not in codes:
            raise RuntimeError(f"{' '.join(words)} ended with {code}")
    finally:
        process.kill()
        process.wait()
