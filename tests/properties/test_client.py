"""Laws of the client: what a bulk push writes or refuses does not depend on the way in which it is made."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiqcluster.application.registry import Definition
from kiqcluster.client.draft import Drafts
from kiqcluster.client.sending import send_all
from kiqcluster.errors import PushError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.chaos.scale import sized

FAR = 4_000_000_000.25
OWN = re.compile(rb'"jid":"[0-9a-f]{24}","created_at":\d+\.\d+(?:(,"enqueued_at":)\d+\.\d+)?}$')

plain = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
odd = st.sampled_from(
    [
        *(1e16, 1e-5, float("nan"), float("inf"), 10**5_000, "\ud800"),
        *(Decimal(1), b"x", (1, 2), {3}, {5: 1}, object(), datetime(2030, 1, 1, tzinfo=UTC)),
        *(msgspec.Raw(b"[1,\n2]"), msgspec.Raw(b"1e16")),
    ]
)
values = st.recursive(
    plain | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
entries = (
    st.lists(plain, max_size=3)
    | st.lists(values | odd, max_size=3)
    | st.lists(plain, max_size=3).map(tuple)
    | st.sampled_from(["ab", {"a": 1}, None, 5])
)
times = st.sampled_from([1.0, FAR])
options = st.fixed_dictionaries(
    {"retry": st.booleans() | st.integers(0, 30), "queue": st.sampled_from(["default", "a:é", "with space"])},
    optional={"tags": st.lists(st.text(max_size=3), max_size=2), "custom": values | odd},
)
names = st.sampled_from(["Mail", "Acme::Mäil", 'a"b\\c'])


@contextmanager
def complaints() -> Iterator[list[str]]:
    """Collect what is logged."""
    heard: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("kiqcluster")
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


def outcome(store: Store, mode: str, links: list[Any], *push: Any) -> list[Any]:
    """Return what a bulk push has written, said and raised; jids and times apart, which are each job's own."""
    store.call("FLUSHALL")
    setup = Setup(store=store, config=Config(strict_args=mode))
    for link in links:
        setup.client_middleware.add(link)
    result: list[Any] = []
    with complaints() as heard:
        try:
            jids = send_all(setup, Drafts(*push, store=store))
            result += [len(jids), len(set(jids))]
        except PushError as error:
            result += [type(error), str(error)]
    for key in sorted(store.call("KEYS", "*")):
        match store.call("TYPE", key):
            case b"list":
                content = list(reversed(store.call("LRANGE", key, 0, -1)))
            case b"zset":
                content = sorted(store.call("ZRANGE", key, 0, -1, "WITHSCORES"))
            case _:
                content = store.call("SMEMBERS", key)
        result.append((key, [OWN.sub(rb"\1", each) for each in content]))
    return [*result, heard]


def perform(number: int, text: str = "") -> None: ...


DEFINED = Definition("X", "default", {}, lambda: (None, perform), inspect.signature(perform), ("app", "X"))


@settings(
    max_examples=sized(60, 4_000), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data(), st.sampled_from(["raise", "warn", "off"]), names, options, st.lists(entries, max_size=6))
def test_a_bulk_push_does_the_same_with_and_without_a_link(
    store: Store, data: st.DataObject, mode: str, name: str, options: dict[str, Any], lists: list[Any]
) -> None:
    at = data.draw(st.none() | times | st.lists(times, min_size=len(lists), max_size=len(lists)), "at")
    definition = data.draw(st.sampled_from([None, DEFINED]), "definition")

    at_once = outcome(store, mode, [], name, options, lists, definition, at)

    one_by_one = outcome(store, mode, [lambda push, proceed: proceed()], name, options, lists, definition, at)
    assert at_once == one_by_one
