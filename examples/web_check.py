"""What the checks of the web shops share (README.md): a web server and workers as users start them, and one order.

1. tests     the project's own tests pass
2. start     workers with a Redis of their own (--embedded), and the web server
3. order     a request enqueues a job; wait until what it does can be seen
4. stop      both end, the workers with 0
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from kiqcluster.testing import wait_until
from kiqcluster.testing.server import free_port

__all__ = ["check", "request"]

SECONDS = 60.0
STOP_SECONDS = 40.0
OK = 200
ADDRESS = "embedded:.kiqcluster"


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
        program([*workers, "--embedded"], {**environ, "KIQ_LISTEN": f"127.0.0.1:{probes}"}),
        program(web(port), {**environ, "REDIS_URL": ADDRESS}),
    ):
        wait_until(lambda: _status(f"http://127.0.0.1:{probes}/readiness") == OK, "the workers to be ready", SECONDS)
        wait_until(lambda: _status(f"http://127.0.0.1:{port}/"), "the web server", SECONDS)
        wait_until(lambda: order(f"http://127.0.0.1:{port}"), "the effect of the job", SECONDS)
        done = subprocess.run(
            [sys.executable, "-m", "kiqcluster.ctl", "stats", "--redis", ADDRESS],
            env=environ, check=True, capture_output=True, text=True,
        )  # fmt: skip
    print(done.stdout)
    return 0 if "processed" in done.stdout else 1


def request(url: str, **fields: str) -> str:
    """Return the answer to a GET, or to a POST of these fields."""
    data = urlencode(fields).encode() if fields else None
    with urlopen(url, data, timeout=SECONDS) as answer:  # noqa: S310 (of this host)
        text: str = answer.read().decode()
    return text


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
def program(words: Sequence[str], environ: dict[str, str]) -> Iterator[None]:
    """A program that runs during the block; the workers among them have to end with 0."""
    process = subprocess.Popen([sys.executable, "-m", *words], env=environ)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        if code not in (0, -signal.SIGTERM):
            raise RuntimeError(f"{' '.join(words)} ended with {code}")
    finally:
        process.kill()
        process.wait()
