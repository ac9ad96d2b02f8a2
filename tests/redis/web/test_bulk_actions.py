"""Bulk actions on the web pages: all that match, in the background; what is refused, and what lies in Redis instead."""

from __future__ import annotations

import json

import pytest

from kiqcluster.api import DeadSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.web import Role
from tests.redis.web.site import Site, bulk_of
from tests.stored_jobs import add_entries, entry_numbers, fill_set, job, queued_numbers


class TestBulk:
    def test_all_that_match_are_counted_then_begun_then_done(self, site: Site) -> None:
        pairs = [(float(number), job(number, **{"class": "Red" if number % 2 else "Blue"})) for number in range(100)]
        add_entries(site.store, "dead", *pairs)

        asked = site.post("/dead/bulk/retry", {"class": "Red"})
        page = site.get(asked.headers["Location"]).text
        assert "50 jobs match; nothing was done yet" in page
        assert len(entry_numbers(site.store, "dead")) == 100
        site.post(f"/bulk/{bulk_of(asked)}/start")

        assert entry_numbers(site.store, "dead") == list(range(0, 100, 2))
        assert sorted(queued_numbers(site.store)) == list(range(1, 100, 2))
        assert "50 jobs were put back into their queues." in site.get(asked.headers["Location"]).text
        assert bulk_of(asked) in site.get("/bulk").text

    def test_one_that_nobody_works_on_goes_on_when_somebody_looks_who_may(self, site: Site) -> None:
        fill_set(site.store, "dead", range(10), score=1.0)
        asked = bulk_of(site.post("/dead/bulk/delete"))
        site.store.call("HSET", site.store.keys.bulk(asked), "state", "running", "owner", "gone", "until", 1)

        for other in (
            Site(site.store, Role.VIEW),
            Site(site.store, Role.OPERATE),
            Site(site.store, settings={"read_only": True}),
        ):
            assert "interrupted" in other.get(f"/bulk/{asked}").text
            assert other.app.bulk.wait(30.0)
            assert len(entry_numbers(site.store, "dead")) == 10
        site.get(f"/bulk/{asked}")
        assert site.app.bulk.wait(30.0)

        assert entry_numbers(site.store, "dead") == []

    def test_what_ends_all_jobs_of_a_set_needs_an_administrator(self, site: Site) -> None:
        fill_set(site.store, "dead", range(3))
        asked = bulk_of(site.post("/dead/bulk/delete"))
        operator = Site(site.store, Role.OPERATE)

        assert operator.post("/dead/bulk/delete").status_code == 403
        for step in ("start", "cancel", "resume"):
            assert operator.post(f"/bulk/{asked}/{step}").status_code == 403
        assert len(entry_numbers(site.store, "dead")) == 3
        assert operator.post("/dead/bulk/retry").status_code == 303

    def test_a_cancelled_one_cannot_begin(self, site: Site) -> None:
        fill_set(site.store, "dead", range(3))
        asked = bulk_of(site.post("/dead/bulk/delete"))

        site.post(f"/bulk/{asked}/cancel")
        answer = site.post(f"/bulk/{asked}/start")

        assert "message-failed" in site.get(answer.headers["Location"]).text
        assert len(entry_numbers(site.store, "dead")) == 3

    def test_what_a_process_has_no_room_for_is_refused_unchanged_and_can_be_cancelled(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill_set(site.store, "dead", range(3))
        asked = bulk_of(site.post("/dead/bulk/delete"))
        monkeypatch.setattr("kiqcluster.api.bulk.runner.MAX_RUNS", 0)

        assert site.post(f"/bulk/{asked}/start").status_code == 409
        assert site.post("/dead/bulk/retry").status_code == 409
        assert "3 jobs match; nothing was done yet" in site.get(f"/bulk/{asked}").text
        assert site.store.call("ZCARD", site.store.keys.bulks) == 1
        site.store.call("HSET", site.store.keys.bulk(asked), "state", "running")
        assert "interrupted" in site.get(f"/bulk/{asked}").text
        assert site.post(f"/bulk/{asked}/cancel").status_code == 303

    def test_one_that_is_not_known_is_not_found(self, site: Site) -> None:
        assert site.get("/bulk/none").status_code == 404
        assert site.post("/bulk/none/start").status_code == 404

    @pytest.mark.parametrize("kept", [{"lowest": "x"}, {"name": 5}, {"highest": True}, {"error": ["x"]}])
    def test_a_state_with_a_selection_that_is_none_hides_no_other(self, site: Site, kept: dict[str, object]) -> None:
        bad, good = ask(site.store, DeadSet, "retry", Selection()), ask(site.store, DeadSet, "retry", Selection())
        site.store.call("HSET", site.store.keys.bulk(bad), "selection", json.dumps(kept))

        assert good in site.get("/bulk").text
        assert site.get(f"/bulk/{bad}").status_code == 404

    def test_a_key_of_another_type_hides_no_other(self, site: Site) -> None:
        bad, good = ask(site.store, DeadSet, "retry", Selection()), ask(site.store, DeadSet, "retry", Selection())
        site.store.call("SET", site.store.keys.bulk(bad), "x")

        assert good in site.get("/bulk").text
        answer = site.get(f"/bulk/{bad}")
        assert answer.status_code == 500
        assert site.store.keys.bulk(bad) in answer.text
