"""Jobs with typed arguments, for all kinds of tests.  The list `got` has what they got, as Python shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum

from kiqcluster import Job, job
from kiqcluster.iterable import IterableJob, sequence_enumerator
from kiqcluster.process.runtime import current_setup

TYPE_OF_TOTAL = Decimal


class Currency(Enum):
    EUR = "EUR"
    CHF = "CHF"


@dataclass
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    placed_at: datetime
    currency: Currency = Currency.EUR
    lines: list[Line] = field(default_factory=list)


# A value, and its JSON.
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = Order(7, AT, Currency.CHF, [Line("a", Decimal("1.50"))])
STORED = {
    "id": 7,
    "placed_at": "2026-11-20T12:00:00Z",
    "currency": "CHF",
    "lines": [{"article": "a", "price": "1.50", "count": 1}],
}


def tell(what: object) -> None:
    current_setup().current_store().call("RPUSH", "got", repr(what))


class SendInvoice(Job, name="Typed::SendInvoice"):
    def perform(self, order: Order, due: date | None = None) -> None:
        tell((order, due))


@job(name="Typed::Total", result_ttl=60)
def total(order: Order) -> TYPE_OF_TOTAL:
    return sum((each.price * each.count for each in order.lines), Decimal(0))


@job(name="Typed::Remind", result_ttl=60)
async def remind(amount: Decimal, days: list[date]) -> tuple[Decimal, date]:
    tell(amount)
    return amount, max(days)


class Walk(IterableJob, name="Typed::Walk"):
    def build_enumerator(self, order: Order, *, cursor: int | None):  # type: ignore[no-untyped-def]
        return sequence_enumerator(order.lines, cursor=cursor)

    def each_iteration(self, line: Line, order: Order) -> None:
        tell((order.id, line.article))


@job(name="Typed::Fragile", retry=0)
def fragile(due: date) -> None:
    """Fails until the key `mended` exists."""
    if not current_setup().current_store().call("EXISTS", "mended"):
        raise ValueError(due.isoformat())
    tell(due)
