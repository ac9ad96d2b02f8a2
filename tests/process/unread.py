"""A cluster whose output nobody reads, with its pipe full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests import forkserver
from tests.kit import ROOT, free_port, is_ready, wait_until
from tests.proc import children, fill_output


@contextmanager
def unread_cluster(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run such a cluster; yield its process and its port once it is ready and its output is full."""
    port = free_port()
    process = forkserver.Popen(
        [sys.executable, "-m", "kiqcluster", *arguments, "--listen", f"127.0.0.1:{port}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        wait_until(lambda: is_ready(port), "the cluster to be ready")
        fill_output(process.pid)
        yield process, port
    finally:
        for pid in children(process.pid) if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()
