"""docs/guides/statsd.md: its examples run, and its tables name every option and metric."""

from __future__ import annotations

import inspect
import re
import socket
from pathlib import Path

import pytest

from kiqcluster.contrib import statsd
from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guides/statsd.md"


@pytest.mark.parametrize(
    ("upto", "expected"), [(1, "sidekiq.jobs.count:1|c|#worker:welcome,queue:mailers"), (2, "shop.jobs.count:1|c")]
)
def test_its_examples_send(tmp_path: Path, redis_server: RedisServer, upto: int, expected: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as agent:
        agent.bind(("127.0.0.1", 0))
        agent.settimeout(10)
        source = "\n".join([*blocks(PAGE, "python")[:upto], "welcome.perform_inline(7)"])
        (tmp_path / "page.py").write_text(source.replace("8125", str(agent.getsockname()[1])))

        assert output(tmp_path / "page.py", redis_server) == ""

        assert agent.recv(65_536).decode().startswith(expected)


def test_every_option_and_metric_is_in_a_table() -> None:
    named = set(re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE))

    assert set(inspect.signature(statsd.instrument).parameters) <= named
    assert set(re.findall(r'"(jobs\.\w+)"', Path(statsd.__file__).read_text())) <= named
