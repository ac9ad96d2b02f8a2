"""examples/import_export: rows are imported, and an export in parts is one file."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

from examples.import_export.jobs import rows
from tests import forkserver
from tests.chaos.scale import sized
from tests.kit import ROOT
from tests.stage import Stage

IMPORTED, EXPORTED = sized((300, 25_000), (10_000, 500_000))


def example(stage: Stage, folder: Path, *words: str) -> list[str]:
    done = forkserver.run(
        [sys.executable, "-m", "examples.import_export", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REDIS_URL": stage.redis.url},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_import_tells_which_rows_are_wrong_and_an_export_is_one_file(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "default", app="examples.import_export")
    cluster.wait_ready(2)
    (tmp_path / "customers.csv").write_text("".join(f"c{n},{n % 100 and 'a@b'}\n" for n in range(1, IMPORTED + 1)))

    printed = example(stage, tmp_path, "import", "customers.csv")
    wrong = IMPORTED // 100
    assert f"100.0 %  {IMPORTED - wrong} finished, {wrong} failed, 0 errors" in printed
    assert "  row 100: '0' is not an address (c100)" in printed or wrong > 10

    example(stage, tmp_path, "export", "orders.csv", "--rows", str(EXPORTED))
    with (tmp_path / "orders.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [[*map(str, row)] for row in rows(0, EXPORTED)]
    assert sorted(path.name for path in tmp_path.glob("orders*")) == ["orders.csv"]
