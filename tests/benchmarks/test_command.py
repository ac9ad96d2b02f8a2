"""The benchmarks run, and say what they could not run; what they measure is not judged here.

The short form has one scenario, which lacks a program; the others share all with it but their jobs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import Results, render
from tests.kit import ROOT


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS_"))}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT, env={**clean, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_run_prints_a_table_says_which_peer_is_missing_and_saves_what_it_is_made_of(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = bench("noop", "--quick", "--peers", "kiqcluster,bare-loop,sidekiq", "--json", str(file), PATH=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert "| noop | jobs/s ÷ the bare loop's |" in done.stdout
    assert "| sidekiq | not run: ruby is not installed |" in done.stdout
    assert "\n| kiqcluster | " in done.stdout
    assert render(Results.from_json(json.loads(file.read_text()))) == done.stdout


@pytest.mark.full
def test_jobs_of_a_batch_are_measured_beside_plain_ones() -> None:
    done = bench("batches", "--quick", "--peers", "kiqcluster")

    assert done.returncode == 0, done.stderr
    assert "| kiqcluster | " in done.stdout
    assert "not run" not in done.stdout.partition("## Versions")[0]


@pytest.mark.full
def test_a_poll_of_cron_entries_enqueues_a_job_of_each() -> None:
    done = bench("cron", "--quick", "--peers", "kiqcluster")

    assert done.returncode == 0, done.stderr
    assert "| kiqcluster | " in done.stdout
    assert "not run" not in done.stdout.partition("## Versions")[0]


@pytest.mark.full
def test_an_export_in_parts_writes_the_file_that_one_program_writes() -> None:
    done = bench("export", "--quick")

    assert done.returncode == 0, done.stderr
    assert "| kiqcluster | " in done.stdout
    assert "not run" not in done.stdout.partition("## Versions")[0]


@pytest.mark.full
def test_pages_are_called_in_their_own_process() -> None:
    done = bench("web", "--quick", "--peers", "kiqcluster")

    assert done.returncode == 0, done.stderr
    assert "| web | ms of the slowest page | " in done.stdout
    assert "not run" not in done.stdout.partition("## Versions")[0]


@pytest.mark.full
def test_typed_arguments_are_measured_beside_those_without_types() -> None:
    done = bench("typed", "--quick")

    assert done.returncode == 0, done.stderr
    (cells,) = re.findall(r"^\| kiqcluster \| ((?:[\d.]+ \| ){9})", done.stdout, re.MULTILINE)
    assert min(float(cell) for cell in cells.split(" | ")[:9]) > 0


@pytest.mark.full
def test_what_preload_saves_is_a_table_with_and_without_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.preload", "--workers", "1"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[0] for line in done.stdout.splitlines()[2:]]
    states = ("idle", "1 % read", "all read")
    assert rows == [f"| {option}, {state}" for option in ("without", "--preload") for state in states]


@pytest.mark.full
def test_jobs_that_compute_are_measured_in_threads_and_in_processes() -> None:
    done = bench("cpu", "--quick")

    assert done.returncode == 0, done.stderr
    assert "| kiqcluster | " in done.stdout
    assert "not run" not in done.stdout.partition("## Versions")[0]
