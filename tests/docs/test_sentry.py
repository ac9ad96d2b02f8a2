"""docs/guides/sentry.md: its example runs, and its table has every option."""

from __future__ import annotations

import inspect
from pathlib import Path

from kiqcluster.contrib import sentry
from tests.docs.test_docs import blocks, first_cells, output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guides/sentry.md"
USE = """
from kiqcluster.process.runtime import current_setup

sentry_sdk.get_client().transport.capture_envelope = lambda envelope: print(
    *[f"{item.type} {item.payload.json.get('transaction')}" for item in envelope.items]
)
current_setup().notify_death_handlers({"class": "welcome", "args": [7], "jid": "a"}, ValueError("no user 7"))
with sentry_sdk.start_transaction(name="GET /"):
    welcome.perform_async(7)
"""


def test_its_example_runs(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join([*blocks(PAGE, "python"), USE]).replace("rate=0.1", "rate=1.0"))

    assert output(tmp_path / "page.py", redis_server) == "event welcome\ntransaction GET /\n"


def test_every_option_is_in_the_table() -> None:
    section = PAGE.read_text().partition("## Errors")[0]

    assert first_cells(section) == list(inspect.signature(sentry.instrument).parameters)
