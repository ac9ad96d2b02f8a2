"""Typed arguments on a real Redis: what is stored, and what middleware, features, batches and cron make of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from markupsafe import Markup

from kiqcluster import Client, Push, Run, job
from kiqcluster.api import CronSet
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch
from kiqcluster.errors import InvalidArguments, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Done, Parked, Retry
from kiqcluster.store import Store
from tests.apps.typed import AT, ORDER, STORED, Line, Order
from tests.in_process_worker import Worker
from tests.redis.test_client import payloads

pytestmark = pytest.mark.usefixtures("setup")


class Item(pydantic.BaseModel):
    price: Decimal


class FrozenDatetime(datetime):
    pass


class FrozenDate(date):
    pass


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def send(worker: Worker, seen: list[Any]) -> Any:
    @job
    def send(order: Order, due: date | None = None) -> None:
        seen.append((order, due))

    return send


def arguments(store: Store) -> list[Any]:
    return [each["args"] for each in payloads(store)]


class TestPushes:
    def test_every_verb_writes_plain_json(self, send: Any, store: Store) -> None:
        send.perform_async(ORDER)
        send.perform_async(due=date(2026, 12, 1), order=ORDER)
        send.perform_bulk([[ORDER], (STORED,)])
        Client().push({"class": send, "args": [ORDER]})
        Client().push_bulk({"class": "send", "args": [[STORED]]})

        assert arguments(store) == [[STORED], [STORED, "2026-12-01"], *([[STORED]] * 4)]

    def test_a_bulk_push_with_one_misfit_enqueues_nothing(self, send: Any, store: Store) -> None:
        with pytest.raises(InvalidArguments, match=r"entry 1: send was not enqueued: order\.lines\[0\]"):
            send.perform_bulk([[ORDER], [Order(1, AT, lines=[None])]])  # type: ignore[list-item]

        assert arguments(store) == []

    @pytest.mark.parametrize("mode", ["raise", "warn", "off"])
    def test_misfits_are_refused_whatever_strict_args_says(self, send: Any, setup: Setup, mode: Any) -> None:
        setup.config = setup.current_config().__class__(strict_args=mode)

        with pytest.raises(InvalidArguments, match=r"order\.placed_at: has no time zone"):
            send.perform_async(Order(1, AT.replace(tzinfo=None)))

    @pytest.mark.parametrize(
        ("change", "path"),
        [
            ({"lines": [Line(b"pen", Decimal(1))]}, r"order\.lines\[0\]\.article"),  # type: ignore[arg-type]
            ({"lines": [Line("pen", "1.50")]}, r"order\.lines\[0\]\.price"),  # type: ignore[arg-type]
            ({"placed_at": "2026-11-20T12:00:00Z"}, r"order\.placed_at"),
            ({"currency": "EUR"}, r"order\.currency"),
        ],
    )
    def test_a_value_that_the_job_would_get_as_another_one_is_refused(
        self, send: Any, store: Store, change: Any, path: str
    ) -> None:
        with pytest.raises(InvalidArguments, match=path):
            send.perform_async(replace(ORDER, **change))

        assert arguments(store) == []

    @pytest.mark.parametrize("prices", [{1: Decimal(10), "1": Decimal(20)}, {1: Decimal(10)}])
    def test_a_dict_with_keys_of_another_type_is_refused(self, worker: Worker, store: Store, prices: Any) -> None:
        @job
        def reprice(prices: dict[str, Decimal]) -> None: ...

        with pytest.raises(InvalidArguments, match="prices: a key: expected str, got int"):
            reprice.perform_async(prices)

        assert arguments(store) == []

    def test_middleware_sees_plain_json_on_both_sides(
        self, send: Any, worker: Worker, setup: Setup, seen: list[Any]
    ) -> None:
        def client(push: Push, proceed: Any) -> Any:
            seen.append(push.payload["args"])
            return proceed()

        def server(run: Run, proceed: Any) -> Any:
            seen.append(run.payload["args"])
            return proceed()

        setup.client_middleware.add(client)
        setup.server_middleware.add(server)

        send.perform_async(ORDER)
        worker.run()

        assert seen == [[STORED], [STORED], (ORDER, None)]


class TestRuns:
    def test_perform_gets_values(self, send: Any, worker: Worker, seen: list[Any]) -> None:
        send.perform_async(ORDER, date(2026, 12, 1))

        assert isinstance(worker.run(), Done)
        assert seen == [(ORDER, date(2026, 12, 1))]

    def test_values_of_subclasses_arrive_as_those_of_their_base(
        self, send: Any, worker: Worker, store: Store, seen: list[Any]
    ) -> None:
        send.perform_async(
            replace(ORDER, placed_at=FrozenDatetime.fromtimestamp(AT.timestamp(), UTC)), FrozenDate(2026, 12, 1)
        )

        assert arguments(store) == [[STORED, "2026-12-01"]]
        assert isinstance(worker.run(), Done)
        assert seen == [(ORDER, date(2026, 12, 1))]
        assert (type(seen[0][0].placed_at), type(seen[0][1])) == (datetime, date)

    def test_text_of_a_template_arrives_as_plain_text(
        self, send: Any, worker: Worker, store: Store, seen: list[Any]
    ) -> None:
        send.perform_async(replace(ORDER, lines=[replace(ORDER.lines[0], article=Markup("a"))]))

        assert arguments(store) == [[STORED]]
        assert isinstance(worker.run(), Done)
        assert type(seen[0][0].lines[0].article) is str

    @pytest.mark.parametrize(("retry", "outcome"), [(True, Retry), (0, Dead), (False, Dead)])
    def test_a_forged_payload_is_kept_with_the_reason_and_the_path(
        self, worker: Worker, store: Store, seen: list[Any], retry: Any, outcome: type
    ) -> None:
        @job
        def send(order: Order) -> None: ...

        forged = {**STORED, "lines": [{"article": "a", "price": {}}]}
        Client().push({"class": "forged", "args": [forged], "retry": retry})
        job(name="forged")(send.__wrapped__)

        ended = worker.run()

        assert isinstance(ended, outcome)
        entry = ended.payload.decode()  # type: ignore[attr-defined]
        assert "kiqcluster.errors.MisfitArguments" in entry
        assert "order.lines[0].price: expected decimal, got object" in entry


class TestKeys:
    def test_a_key_of_deduplication_is_called_with_values(self, worker: Worker, store: Store) -> None:
        @job(deduplicate="until_executed", deduplicate_key=lambda order, note: order.placed_at.date().isoformat())
        def report(order: Order, note: str) -> None: ...

        first = report.perform_async(ORDER, "a")
        second = report.perform_async(Order(8, AT), "b")

        assert second == first
        assert len(payloads(store)) == 1

    def test_equal_arguments_are_equal_whatever_their_form(self, worker: Worker) -> None:
        @job(deduplicate="until_executed")
        def report(order: Order) -> None: ...

        assert report.perform_async(STORED) == report.perform_async(ORDER)

    def test_a_key_of_a_concurrency_limit_is_called_with_values(self, worker: Worker, seen: list[Any]) -> None:
        def by_currency(order: Order) -> str:
            seen.append(order)
            return order.currency.value

        @job(concurrency_limit=1, concurrency_key=by_currency)
        def sync(order: Order) -> None: ...

        sync.perform_async(ORDER)
        sync.perform_async(ORDER)
        units = [worker.take(), worker.take()]
        first, second = (worker.execute(each) for each in units)

        assert (type(first), type(second)) == (Done, Parked)
        assert seen == [ORDER, ORDER]


class TestBatches:
    def test_rows_are_values(self, send: Any, worker: Worker, store: Store, seen: list[Any]) -> None:
        @job
        def price(item: Item) -> None:
            seen.append(item)

        batch = Batch.create("import", send, [[ORDER], [STORED, date(2026, 12, 1)]])
        other = Batch.create("prices", price, [[Item(price=Decimal(2))]])

        assert arguments(store) == [[STORED], [STORED, "2026-12-01"], [{"price": "2"}]]
        for _ in range(3):
            worker.run()
        assert seen == [(ORDER, None), (ORDER, date(2026, 12, 1)), Item(price=Decimal(2))]
        assert (batch.status().finish, other.status().finish) == (2, 1)

    def test_a_row_that_does_not_fit_creates_no_job(self, send: Any, worker: Worker, store: Store) -> None:
        with pytest.raises(InvalidArguments, match=r"entry 1.*order: expected object, got int"):
            Batch.create("import", send, [[ORDER], [5]])

        assert arguments(store) == []


class TestCron:
    def test_args_of_an_entry_are_values_or_json(self, send: Any, store: Store) -> None:
        entry = CronSet(store=store).add("nightly", "0 4 * * *", send, [ORDER, date(2026, 12, 1)])

        assert entry.args == [STORED, "2026-12-01"]
        with pytest.raises(UsageError, match=r"cron entry nightly: args do not fit: .*due: invalid"):
            CronSet(store=store).add("nightly", "0 4 * * *", send, [STORED, "soon"])
