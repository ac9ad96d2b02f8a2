"""The examples about tracing run, and the page names what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kiqcluster.contrib import otel
from kiqcluster.process.runtime import Push, Run, Setup
from tests.docs.test_docs import blocks, first_cells, output
from tests.kit import ROOT
from tests.stage import Stage
from tests.tracing import instrumented

PAGE = ROOT / "docs/guides/tracing.md"
USE = """
from kiqcluster.process.runtime import current_setup

welcome.perform_inline(7)
for hook in current_setup().hooks.of("fork"):
    hook()
welcome.perform_inline(8)
for hook in current_setup().hooks.of("exit"):
    hook()
"""


def test_its_examples_run(tmp_path: Path, stage: Stage) -> None:
    (tmp_path / "page.py").write_text("\n".join([*blocks(PAGE, "python"), USE]))

    printed = output(tmp_path / "page.py", stage.redis)

    names = re.findall(r'^    "name": "(.*)"', printed, re.MULTILINE)
    assert sorted(names) == sorted(
        ["welcome publish", "render", "welcome process", "mailers publish", "render", "mailers process"]
    )
    assert {"welcome, 7", "welcome, 8"} <= set(printed.splitlines())
    assert b"traceparent" in stage.store.call("LINDEX", "queue:default", 0)


def test_every_option_is_in_the_table() -> None:
    section = PAGE.read_text().partition("## When")[0]

    assert first_cells(section) == list(inspect.signature(otel.instrument).parameters)


def test_every_attribute_is_on_the_page(setup: Setup) -> None:
    with instrumented() as spans:
        push = Push({"class": "X", "args": [], "queue": "q", "jid": "a"})
        setup.client_middleware.invoke(push, lambda: push)
        setup.server_middleware.invoke(Run(push.payload, "q", None, None), lambda: None)

    named = set(re.findall(r"`([\w.]+)`", PAGE.read_text()))
    assert {name for span in spans.all() for name in span.attributes or {}} <= named
