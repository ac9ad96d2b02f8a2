"""Logs: the examples work, a line has the fields that docs/reference/log_fields.md shows, and named tests exist."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests import forkserver
from tests.docs.test_docs import blocks
from tests.kit import ROOT

PAGE = ROOT / "docs/guides/logs.md"
FIELDS = ROOT / "docs/reference/log_fields.md"
RUN = """
import json
import sys
import threading

from kiqcluster.application.registry import current_registry
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.logs import log
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, current_setup
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

payload = json.dumps({
    "retry": True, "queue": "default", "args": ["a.png", 20, "secret"], "class": "resize", "jid": "b" * 24,
    "created_at": 1.5, "enqueued_at": 3.0, "scheduled_at": 2.5, "correlation_id": "r-1", "meta.user": "ann",
}).encode()
log.configure("json", "info")
log.adopt_root()
events = Events()
log.word_events(events)
config = Config(log_jobs=sys.argv[1])
runtime = Runtime(config, current_setup().current_store(), current_setup(), events, slot=0)
execution = Execution(runtime, current_registry(), JobMetrics(1, list), threading.Event())
execution.execute(JobRun(Unit("default", payload, "", ""), 0.0))
"""


def lines(folder: Path, *sources: str, word: str) -> list[dict[str, object]]:
    """Run a job of an example; return the lines that are logged."""
    (folder / "page.py").write_text("\n".join([*sources, RUN]))
    done = forkserver.run([sys.executable, "page.py", word], cwd=folder, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_line_has_the_fields_that_the_page_shows(tmp_path: Path) -> None:
    (declaration,) = blocks(FIELDS, "python")
    (shown,) = map(json.loads, blocks(FIELDS, "json"))
    slow = "import time\nbegun = time.thread_time()\nwhile time.thread_time() < begun + 0.001: pass"
    declaration += "\n".join(f"        {line}" for line in slow.splitlines())

    first, last = lines(tmp_path, declaration, word="full")

    assert list(last) == list(shown)
    changing = {"ts", "pid", "tid", "msg", "ctx"}
    fixed = [key for key in shown if key not in changing and not key.endswith(("_at", "_s", "elapsed"))]
    assert {key: last[key] for key in fixed} == {key: shown[key] for key in fixed} | {"job_size_bytes": 21}
    assert first["job_status"] == "start"


def test_the_job_logger_of_the_page_logs(tmp_path: Path) -> None:
    said = [line["msg"] for line in lines(tmp_path, *blocks(FIELDS, "python"), *blocks(PAGE, "python"), word="off")]

    assert said == ["start resize", "done resize"]


def test_each_field_of_the_line_is_in_the_table() -> None:
    (shown,) = map(json.loads, blocks(FIELDS, "json"))
    rows = re.findall(r"^\| (`.*?) \|", FIELDS.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    of_any_line = {"ts", "pid", "tid", "lvl", "msg", "ctx", "event", "elapsed"}

    fields = {"meta.<name>" if key.startswith("meta.") else key for key in shown}

    assert fields - of_any_line - {"extra.resize.pixels"} <= named


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text() + FIELDS.read_text()))

    there = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }

    assert named - there == set()
