"""Strikes: which jobs one is about, and what becomes of these."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.strikes import Strike, Strikes
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.outcome import Deferred, Discard, Done, Dropped, Effect, Outcome
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.units import BeginVerdict
from tests.kit import ManualClock

NOW = 1_795_168_740.0
JOB = ("SendInvoice", [7, "EUR", True], ["order_id", "currency", "urgent"])


def strike(**fields: Any) -> Strike:
    return Strike(**{"id": "3fa9c1", "name": "", "action": "drop", "until": NOW + 60, **fields})


@pytest.mark.parametrize(
    ("fields", "is_meant"),
    [
        ({"name": "SendInvoice"}, True),
        ({"name": "Other"}, False),
        ({"arguments": {"order_id": 7}}, True),
        ({"arguments": {"order_id": 8}}, False),
        ({"arguments": {"order_id": "7"}}, False),
        ({"arguments": {"0": 7, "1": "EUR"}}, True),
        ({"arguments": {"0": 7, "1": "USD"}}, False),
        ({"arguments": {"2": 1}}, False),
        ({"arguments": {"2": True}}, True),
        ({"arguments": {"3": None}}, False),
        ({"arguments": {"nobody": None}}, False),
        ({"arguments": {"1" * 5_000: None}}, False),
        ({"name": "SendInvoice", "arguments": {"order_id": 7}}, True),
        ({"name": "Other", "arguments": {"order_id": 7}}, False),
    ],
)
def test_it_is_about_jobs_that_have_the_class_and_all_arguments(fields: dict[str, Any], is_meant: bool) -> None:
    assert strike(**fields).is_about(*JOB) is is_meant


def test_it_is_read_as_it_was_written() -> None:
    given = strike(arguments={"order_id": 7}, delay=2.5, by="ann@app-1", reason="down")

    assert Strike.read(b"3fa9c1", given.encoded()) == given


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name":"X"}',
        b'{"name":"X","action":"kill","until":5}',
        b'{"name":"X","action":"drop","until":"soon"}',
        b'{"name":"X","action":"drop","until":5,"arguments":[]}',
        b'{"name":"X","action":"drop","until":5,"other":1}',
        b'{"name":7,"action":"drop","until":5}',
        b'{"name":"X","action":"drop","until":"99999999999"}',
        b'{"name":"X","action":"drop","until":true}',
        b'{"name":"X","action":"drop","until":1%b}' % (b"0" * 400),
        b'{"name":"X","action":"drop","until":1e999}',
        b'{"name":"X","action":"defer","until":5,"delay":"60"}',
        b'{"name":"X","action":"defer","until":5,"delay":-1}',
        b'{"name":"X","action":"defer","until":5,"delay":1e300}',
        b'{"name":"X","action":"defer","until":5,"by":{}}',
        b'{"name":"X","action":"defer","until":5,"reason":[1]}',
        b'{"name":"X","action":["defer"],"until":5}',
    ],
)
def test_other_values_are_refused_by_themselves(raw: bytes) -> None:
    strikes = Strikes(ManualClock(NOW))

    is_new, errors = strikes.apply({b"bad": raw, b"good": strike(name="SendInvoice").encoded()})

    assert (is_new, len(errors)) == (True, 1)
    assert "kiq:strikes" in str(errors[0])
    assert [each.id for each in strikes._strikes] == ["good"]


class TestRuns:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(NOW)

    @pytest.fixture
    def strikes(self, clock: ManualClock) -> Strikes:
        return Strikes(clock)

    @pytest.fixture
    def definition(self, registry: Registry) -> Definition:
        class SendInvoice(Job):
            def perform(self, order_id: int) -> None: ...

        return SendInvoice.definition

    def begin(self, strikes: Strikes, definition: Definition, *args: Any) -> object:
        payload = {"class": "SendInvoice", "args": list(args), "jid": "j"}
        return strikes.on_begin(Run(payload, "default", definition, None)) or None

    def test_a_class_without_strikes_is_not_asked(self, strikes: Strikes, definition: Definition) -> None:
        strikes.apply({b"a": strike(name="Other").encoded()})

        assert not strikes.is_used_by(definition)

    def test_strikes_that_are_the_same_change_nothing(self, strikes: Strikes) -> None:
        raw = {b"a": strike(name="Other").encoded()}

        assert [strikes.apply(dict(raw))[0] for _ in range(2)] == [True, False]

    def test_a_job_is_deferred_or_dropped_until_the_strike_ends(
        self, strikes: Strikes, definition: Definition, clock: ManualClock
    ) -> None:
        strikes.apply(
            {b"a": strike(name="SendInvoice", action="defer", delay=300, arguments={"order_id": 7}).encoded()}
        )

        assert strikes.is_used_by(definition)
        assert self.begin(strikes, definition, 7) == BeginVerdict("defer", 300, reason="strike:a")
        assert self.begin(strikes, definition, 8) is None
        clock.time += 61
        assert self.begin(strikes, definition, 7) is None

    @pytest.mark.parametrize(
        ("outcome", "is_counted"),
        [
            (Dropped(encode({"dropped_by": "strike:a"}), NOW), True),
            (Deferred(encode({"deferred_by": "strike:a"}), NOW), True),
            (Deferred(encode({"deferred_by": "rate_limit"}), NOW), False),
            (Dropped(), False),
            (Done(), False),
            (Discard(), False),
        ],
    )
    def test_it_counts_what_it_has_kept_from_running(
        self, strikes: Strikes, outcome: Outcome, is_counted: bool
    ) -> None:
        rows = strikes.on_end(JobEnd(outcome, {}, "default", "SendInvoice", "me", "token"))

        assert list(rows) == ([Effect("increment", "kiq:struck", ("a",))] if is_counted else [])
