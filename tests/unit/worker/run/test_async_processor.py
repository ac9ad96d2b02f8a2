"""Whose event loop runs async jobs: asyncio's, unless the setting asks for another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.worker.run.async_processor import new_loop


class Loop(asyncio.SelectorEventLoop):
    """Stands for the one of uvloop."""


@pytest.fixture
def uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have uvloop installed."""
    module = ModuleType("uvloop")
    module.new_event_loop = Loop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uvloop", module)


def kinds(library: str) -> Iterator[type]:
    loop = new_loop(library)
    yield type(loop)
    loop.close()


@pytest.mark.usefixtures("uvloop")
def test_an_installed_uvloop_is_used_only_where_it_is_asked_for() -> None:
    (by_default,), (asked,) = kinds(Config().event_loop), kinds("uvloop")

    assert by_default is not Loop
    assert asked is Loop


def test_a_uvloop_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    with pytest.raises(UsageError, match="uvloop cannot be imported"):
        new_loop("uvloop")
