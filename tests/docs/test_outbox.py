"""The examples about the outbox run, and the page names the gauges that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kiqcluster.contrib.outbox import metrics
from tests.docs.test_docs import blocks, output
from tests.kit import ROOT
from tests.stage import Stage

PAGE = ROOT / "docs/guides/outbox.md"
USE = """
use_outbox(engine).move()
print(handle.jid)
"""


def test_its_examples_run(tmp_path: Path, stage: Stage) -> None:
    script = "\n".join([*blocks(PAGE, "python"), USE]).replace("sqlite:///shop.db", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "page.py").write_text(script)

    jid = output(tmp_path / "page.py", stage.redis).split()[-1]

    (raw,) = stage.store.call("LRANGE", "queue:default", 0, -1)
    payload = json.loads(raw)
    assert (payload["jid"], payload["class"], payload["args"]) == (jid, "ship_order", [1])


def test_every_gauge_is_on_the_page() -> None:
    gauges = (metrics.WAITING, metrics.REFUSED, metrics.OLDEST)
    names = {metric.name for gauge in gauges for metric in gauge.collect()}
    assert set(re.findall(r"`(kiq_outbox_\w+)`", PAGE.read_text())) == names
