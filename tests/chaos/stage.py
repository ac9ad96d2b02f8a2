"""ChaosStage: a stage whose jobs write to a ledger, with the chance and the report of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.ledger import Ledger
from tests.kit import Cluster, RedisServer
from tests.stage import Stage


class ChaosStage(Stage):
    """A stage with the jobs of tests/apps/chaos.py.

    ledger: where they note begin and end.  rng: chance, repeatable with KIQ_SEED.
    report: adds counts to the scenario's line, `stage.report({"kills": 31, **audit.counts()})`.
    """

    def __init__(
        self,
        redis: RedisServer,
        folder: Path,
        ledger: Ledger,
        rng: Random,
        report: Callable[[Mapping[str, Any]], None],
    ) -> None:
        super().__init__(redis, folder)
        self.ledger = ledger
        self.rng = rng
        self.report = report

    def _ends(self) -> Counter[str]:
        """Return the jobs that have ended by the ledger, once each: kills lose lines of logs, and jobs end twice."""
        return Counter(self.ledger.ended().keys())

    def run_cluster(self, *arguments: str, app: str = "tests.apps.chaos", **environ: str) -> Cluster:
        """Start a cluster with those jobs, which write to the ledger."""
        return super().run_cluster(*arguments, app=app, **{**self.ledger.environ, **environ})
