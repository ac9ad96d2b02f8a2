"""Typed arguments in a real cluster: values go there, dead jobs run again with them, results come back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster.api import DeadSet
from kiqcluster.client.handle import Handle
from kiqcluster.errors import ExitCode
from tests.apps import typed as app
from tests.apps.typed import Currency, Line, Order
from tests.kit import wait_until
from tests.stage import Stage

pytestmark = pytest.mark.usefixtures("setup")

SECONDS = 20.0
ORDER = Order(
    7, datetime(2026, 11, 20, 12, tzinfo=UTC), Currency.CHF, [Line("a", Decimal("1.50"), 2), Line("b", Decimal(3))]
)


@pytest.fixture
def running(stage: Stage) -> Stage:
    """A stage with a worker."""
    stage.run_cluster("default", "-c", "2", app="tests.apps.typed").wait_ready(1)
    return stage


def got(stage: Stage, count: int) -> list[str]:
    """Wait for so many lines of what jobs got."""
    return wait_until(
        lambda: len(lines := stage.store.call("LRANGE", "got", 0, -1)) >= count and [each.decode() for each in lines],
        f"{count} jobs to have run",
    )


def result(handle: Handle[Any] | None) -> Any:
    assert handle is not None
    return handle.result(SECONDS)


def test_jobs_of_all_forms_get_values_and_results_come_back(running: Stage) -> None:
    app.SendInvoice.perform_async(ORDER, date(2026, 12, 1))
    assert got(running, 1) == [repr((ORDER, date(2026, 12, 1)))]

    assert result(app.total.enqueue(ORDER)) == Decimal("6.00")
    days = [date(2026, 12, 1), date(2026, 12, 8)]
    assert result(app.remind.enqueue(Decimal("1.5"), days)) == (Decimal("1.5"), date(2026, 12, 8))
    assert result(app.total.then(app.remind, days).enqueue(ORDER)) == (Decimal("6.00"), date(2026, 12, 8))

    running.store.call("DEL", "got")
    app.Walk.perform_async(ORDER)
    assert got(running, 2) == ["(7, 'a')", "(7, 'b')"]
    running.wait_settled()
    assert running.dead() == []


def test_a_dead_job_that_is_retried_gets_its_values_again(running: Stage) -> None:
    app.fragile.perform_async(date(2026, 12, 1))
    wait_until(running.dead, "it to be dead")

    running.store.call("SET", "mended", "1")
    DeadSet(store=running.store).add_all_to_queue()

    assert got(running, 1) == [repr(date(2026, 12, 1))]


@pytest.mark.parametrize("name", ["Typed::SendInvoice", "Typed::Walk", "Typed::Remind"])
def test_forged_payloads_are_buried_with_the_path_and_the_worker_goes_on(running: Stage, name: str) -> None:
    forgeries = [
        [None],
        [[]],
        ["x"],
        ["7 EUR", []],
        [{}, "soon"],
        [{"id": 1, "placed_at": "soon"}, []],
        [{"id": True}, []],
    ]
    for forged in forgeries:
        running.push(name, *forged, retry=0)

    buried = wait_until(lambda: len(found := running.dead()) == len(forgeries) and found, "all to be dead")
    misfits = {each["jid"]: (each["error_class"], each["error_message"]) for each in buried}
    assert {error for error, _ in misfits.values()} == {"kiqcluster.errors.MisfitArguments"}
    assert all(name in message for _, message in misfits.values())

    app.SendInvoice.perform_async(ORDER)
    assert got(running, 1) == [repr((ORDER, None))]


def test_an_annotation_whose_name_nobody_knows_stops_the_boot(stage: Stage) -> None:
    source = """
        from typing import TYPE_CHECKING
        from kiqcluster import job
        if TYPE_CHECKING:
            from decimal import Decimal
        @job
        def pay(amount: "Decimal") -> None: ...
    """
    cluster = stage.run_cluster("default", "-c", "1", app=stage.write_application(source))

    assert cluster.wait() == ExitCode.APPLICATION
    assert any("pay(amount: 'Decimal')" in line and "TYPE_CHECKING" in line for line in cluster.lines)
