"""A real Prometheus that scrapes one target, for as long as a `with` block."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.kit import free_port, http_get, require, wait_until

__all__ = ["Prometheus", "prometheus"]

INTERVAL = "1s"  # between two scrapes; the longest that one may take, too, also on a busy machine


class Prometheus:
    """Queries of a server that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        result: list[dict[str, Any]] = self._ask(f"query?query={quote(expression)}")["result"]
        return result

    def series(self, selector: str) -> set[str]:
        """Return every series that was there at any time."""
        return {str(sorted(labels.items())) for labels in self._ask(f"series?match[]={quote(selector)}")}

    def _ask(self, request: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{request}", timeout=20) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def value(self, expression: str) -> float:
        """Return the value of a query that has one series; 0 when it has none."""
        return sum(float(series["value"][1]) for series in self.query(expression))


@contextmanager
def prometheus(target: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a port of this host; skip the test where there is none."""
    program = require("prometheus", "prometheus")
    folder, port = Path(tempfile.mkdtemp(prefix="kiq-prometheus-")), free_port()
    (folder / "prometheus.yml").write_text(
        dedent(f"""
            global: {{scrape_interval: {INTERVAL}}}
            scrape_configs:
              - job_name: kiqcluster
                static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
        """)
    )
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _is_ready(port), "Prometheus to be ready")
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _is_ready(port: int) -> bool:
    try:
        return http_get(port, "/-/ready", headers="Connection: close\r\n")[0] == 200
    except OSError:
        return False
