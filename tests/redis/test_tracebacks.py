"""The traceback of a failed job, where people look for it: kiqctl, the web pages, the API."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import DeadSet
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.testing import dead, drain, fake
from tests.redis.kiqctl import Kiqctl
from tests.redis.web.site import Site
from tests.stored_jobs import NOW, add_entries


def read_catalogue(shop: int, wanted: int) -> int:
    if shop < wanted and wanted > 3:
        raise LookupError(f"shop {shop}")
    return shop


@pytest.fixture
def buried(registry: Registry, setup: Setup, store: Store) -> dict[str, Any]:
    """Put a job that has failed for good into the dead set."""

    @job(retry=0)
    def import_catalogue(shop: int) -> None:
        try:
            read_catalogue(shop, 8)
        except LookupError as error:
            raise ValueError("no catalogue") from error

    with fake():
        import_catalogue.perform_async(7)
        drain(raise_errors=False)
        payload = dict(dead()[0].payload)
    add_entries(store, "dead", (NOW, ruby_json.encode(payload)))
    return payload


def is_shown_in(text: str) -> bool:
    """Return whether a text has both errors, each with its source line."""
    wanted = [
        "Traceback (most recent call last):",
        "in read_catalogue",
        '    raise LookupError(f"shop {shop}")',
        "LookupError: shop 7",
        "The above exception was the direct cause of the following exception:",
        '    raise ValueError("no catalogue") from error',
        "ValueError: no catalogue",
    ]
    _, _, shown = text.partition(wanted[0])
    places = [(wanted[0] + shown).find(each) for each in wanted]
    return -1 not in places and places == sorted(places)


def test_kiqctl_shows_it(buried: dict[str, Any], kiqctl: Kiqctl) -> None:
    assert is_shown_in(kiqctl("dead", "show", buried["jid"]).stdout)
    assert is_shown_in("\n".join(kiqctl.ask("dead", "show", buried["jid"])["backtrace"]))


def test_the_pages_of_the_job_show_it(buried: dict[str, Any], store: Store) -> None:
    site = Site(store)
    (entry,) = DeadSet(store=store)

    pages = re.findall(r'href="(/(?:dead/(?!export)|jobs/)[^"]+)"', site.get("/dead").text)
    assert {page.split("/")[1] for page in pages} == {"dead", "jobs"}
    for page in pages:
        assert is_shown_in(unescape(site.get(unescape(page)).text))
    assert is_shown_in("\n".join(entry.error_backtrace))


def test_it_has_the_frames_of_the_application_alone(buried: dict[str, Any], store: Store) -> None:
    (entry,) = DeadSet(store=store)

    files = {line.strip() for line in entry.error_backtrace if line.strip().startswith("File ")}
    assert {line.split('"')[1] for line in files} == {__file__}
