"""Filters never mean more than was asked: what one would leave out is refused, on pages, in exports and in bulk."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from kiqcluster.web.views.set_kinds import QUEUE, SETS
from tests.redis.web.site import Site, bulk_of
from tests.stored_jobs import NOW, add_entries, job, push_payloads

LISTS = {**{f"/{kind.name}": kind for kind in SETS}, "/queues/mailers": QUEUE}
REFUSED = {
    "too long": {"args": "y" * 501},
    "too long a class": {"class": "y" * 501},
    "a field that no list has": {"errror": "Nothing"},
    "blank": {"tag": " "},
    "two values": [("jid", "j1"), ("jid", "j2")],
}


@pytest.fixture
def filled(site: Site) -> Site:
    """Have three jobs in each list."""
    payloads = [job(at, jid=f"j{at}", args=["y" * 500 + str(at)], error_class="Gone") for at in range(3)]
    for kind in SETS:
        add_entries(site.store, kind.key_name, *[(NOW + at, raw) for at, raw in enumerate(payloads)])
    push_payloads(site.store, payloads, "mailers")
    return site


def formatted(site: Site) -> Site:
    return Site(site.store, format_arguments=lambda _, arguments: str(arguments[0]))


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_filter_that_would_mean_more_is_refused(filled: Site, path: str, name: str) -> None:
    given = urlencode(REFUSED[name])

    for page in (path, f"{path}/export"):
        assert filled.get(f"{page}?{given}").status_code == 400, page
    for verb in LISTS[path].verbs:
        form = {"when": "5m", "target": "low"}
        pairs = REFUSED[name] if isinstance(REFUSED[name], list) else [*REFUSED[name].items()]
        for key, value in pairs:
            form[key] = [*form.get(key, []), value]
        assert filled.post(f"{path}/bulk/{verb}", form).status_code == 400, verb
    assert filled.store.call("EXISTS", filled.store.keys.bulks) == 0


@pytest.mark.parametrize("path", [path for path, kind in LISTS.items() if "error" not in kind.fields])
def test_an_error_is_no_filter_of_jobs_that_have_not_failed(filled: Site, path: str) -> None:
    answer = filled.post(f"{path}/bulk/delete", {"error": "Nothing"})

    assert answer.status_code == 400
    assert "class" in answer.text
    assert filled.get(f"{path}?error=Nothing").status_code == 400
    assert filled.get(f"{path}/export?error=Nothing").status_code == 400


@pytest.mark.parametrize("path", LISTS)
def test_a_time_that_is_none_exports_nothing(filled: Site, path: str) -> None:
    assert filled.get(f"{path}/export?from=nonsense").status_code == 400


def test_a_part_of_a_text_is_looked_for_with_its_spaces(filled: Site) -> None:
    payloads = [job(at, args=[text]) for at, text in enumerate(("a b", "ab", "a"))]
    filled.store.call("DEL", "dead")
    add_entries(filled.store, "dead", *[(NOW + at, raw) for at, raw in enumerate(payloads)])
    site = formatted(filled)

    asked = site.post("/dead/bulk/delete", {"args": " "})
    assert "1 job matches" in site.get(asked.headers["Location"]).text
    site.post(f"/bulk/{bulk_of(asked)}/start")

    assert site.store.call("ZCARD", "dead") == 2


def test_a_text_as_long_as_it_may_be_means_its_jobs_only(filled: Site) -> None:
    site = formatted(filled)

    asked = site.post("/dead/bulk/delete", {"args": "y" * 499 + "1"})
    site.post(f"/bulk/{bulk_of(asked)}/start")

    assert site.store.call("ZCARD", "dead") == 2


def test_what_a_list_sends_besides_its_filter_is_no_filter(filled: Site) -> None:
    form = {"key": ["a", "b"], "when": "", "target": "", "sort": "newest", "class": "", "queue": "", "errror": ""}

    assert filled.post("/dead/bulk/retry", form).status_code == 303
    assert filled.get("/dead?class=Job&sort=oldest&after=x&before=&error=").status_code == 200
    assert filled.fragment("/dead?class=Job&have=3&after=x", "more").status_code == 200
