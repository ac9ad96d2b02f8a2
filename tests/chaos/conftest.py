"""Fixtures of the chaos tests: the ledger, the seed, and a report that each scenario adds its counts to.

KIQ_CHAOS=full   full size (tests/chaos/scale.py)
KIQ_SEED=<n>     repeat a run's choices; each test draws from the seed and its own name, so one alone repeats as well
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from tests.chaos.ledger import Ledger
from tests.chaos.scale import FULL
from tests.chaos.stage import ChaosStage
from tests.kit import RedisServer

SCENARIO_TIMEOUT_SECONDS = 3_600  # that a scenario of full size may take
SEED = int(os.environ.get("KIQ_SEED") or SystemRandom().randrange(10**9))
REPORT = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give scenarios of full size the time that they need."""
    for item in items:
        if FULL and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_SECONDS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the scenarios counted, where they ran in full size."""
    lines = config.stash.get(REPORT, [])
    if FULL and lines:
        terminalreporter.section(f"chaos, KIQ_SEED={SEED}")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """Chance for the test's choices; printed, and repeatable with KIQ_SEED."""
    print(f"{request.node.name}: KIQ_SEED={SEED}")
    return Random(f"{SEED} {request.node.name}")


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Add counts to the scenario's line: `report({"kills": 31, **audit.counts()})`; it is printed at the end."""
    counts: dict[str, object] = {}
    yield counts.update
    line = f"{request.node.name}: " + ", ".join(f"{name} {value}" for name, value in counts.items())
    print(f"KIQ_SEED={SEED} {line}")
    request.config.stash.setdefault(REPORT, []).append(line)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path)


@pytest.fixture
def stage(
    stage_server: RedisServer,
    tmp_path: Path,
    ledger: Ledger,
    rng: Random,
    report: Callable[[Mapping[str, Any]], None],
) -> Iterator[ChaosStage]:
    """An empty Redis, clusters on it with jobs that write to the ledger, chance and a report."""
    stage = ChaosStage(stage_server, tmp_path, ledger, rng, report)
    yield stage
    stage.close()
