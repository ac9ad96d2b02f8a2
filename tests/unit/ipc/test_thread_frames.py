"""The frames of threads are read without a deadlock, whatever finalizers do."""

from __future__ import annotations

import subprocess
import sys

from tests.kit import ROOT

SCRIPT = """
import gc, threading
from kiqcluster.ipc.thread_frames import frames_by_thread
gc.set_threshold(1, 1, 1)
class Node:
    def __init__(self):
        self.own = self
    def __del__(self):
        threading.Thread(target=int).start()
for _ in range(300):
    for _ in range(20):
        Node()
    frames_by_thread()
assert gc.isenabled()
"""


def test_a_finalizer_may_start_a_thread_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_else_reads_them() -> None:
    found = [
        path.name for path in (ROOT / "kiqcluster").rglob("*.py") if "sys._current_frames" in path.read_text("utf-8")
    ]

    assert found == ["thread_frames.py"]
