"""Hostile payloads in a real browser: whatever lies in Redis, no page runs it, loads it, or is bent by it.

The policy of the pages would stop most of it; this holds that there is nothing to stop: a script, a picture or a style
that came from Redis would show as an error of the console, and fail the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kiqcluster.api import DeadSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.store import Store
from kiqcluster.web.routing import table
from tests.browser.chromium import Watched
from tests.browser.conftest import OpenPage
from tests.browser.live import WebServer
from tests.fake_supervisor import publish
from tests.kit import RedisServer
from tests.redis.web import fleet
from tests.redis.web.features import add_features
from tests.redis.web.test_hostile import ALONE, BAD_INPUT, FIELDS, NAMES, PAYLOADS, TEXTS, payload
from tests.stored_jobs import NOW, add_entries, push_payloads

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

ACTIVE = {
    **TEXTS,
    "picture": "<img src=/static/x onerror=\"document.title='pwned'\">",
    "style": "<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x>",
    "htmx": '<div hx-get="/queues" hx-trigger="load" data-live></div>',
    "refresh": '<meta http-equiv="refresh" content="0;url=//evil.example">',
    "base": "<base href=//evil.example/>",
    "form": "</form><form action=//evil.example><button autofocus onfocus=alert(1)>Retry</button></form>",
    "chart": "' data-chart='[[1],[2],[3]]' onload='alert(1)",
}
# What pages of a kind have in common; how many are looked at; how many of those whose paths have names.
SIZES = [("template", 1, 1), pytest.param("name", 2, 5, marks=pytest.mark.full)]
TITLE = " · kiqcluster"
# Has all live parts loaded again, by the key for it, and waits until they are.
REFRESH = """() => new Promise((resolve) => {
  let left = document.querySelectorAll("[data-live]").length;
  if (!left) resolve();
  document.body.addEventListener("htmx:afterRequest", (event) => {
    left -= 1;
    if (!left && !event.detail.successful) resolve();
  });
  document.body.addEventListener("htmx:afterSettle", () => { if (!left) resolve(); });
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "r", bubbles: true}));
})"""
SEEN = """[document.title, "pwned" in window, document.querySelector("main").checkVisibility(),
  [...document.querySelectorAll("a[href^='/']")].map((each) => each.getAttribute("href"))]"""


@pytest.fixture
def hostile(own_server: RedisServer, tmp_path: Path) -> Iterator[WebServer]:
    """The pages in front of a Redis that is full of it."""
    fill(own_server.store())
    web = WebServer(own_server.url, tmp_path)
    yield web
    web.close()


def fill(store: Store) -> None:
    """Fill every place that pages read."""
    everywhere = [payload(**{field: make(text) for field, make in FIELDS.items()}) for text in ACTIVE.values()]
    raw = [*everywhere, *dict.fromkeys([*BAD_INPUT, *ALONE.values(), *PAYLOADS.values()])]
    push_payloads(store, raw)
    for key in ("retry", "schedule", "dead", store.keys.dropped):
        add_entries(store, key, *[(NOW + 1e7 - number, each) for number, each in enumerate(raw)])
    for name in (*NAMES, *ACTIVE.values()):
        queue = name.encode(errors="surrogatepass")
        store.pipeline([("SADD", "queues", queue), ("LPUSH", b"queue:" + queue, payload())])
    for number, text in enumerate(ACTIVE.values()):
        add_features(store, text, everywhere[number])
        more = {"tag": text, "version": text, "queues": ["default", text], "labels": [text]}
        host = text[:40].replace(":", "").encode(errors="replace").decode()
        publish(store, f"{host}:{number}:x", 600, **more)
    bulk = ask(store, DeadSet, "kill", Selection(name=TEXTS["script"], error=TEXTS["quotes"]), by=TEXTS["script"])
    store.call("HSET", store.keys.bulk(bulk), "state", "failed", "error", TEXTS["template"])
    fleet.publish_cluster(store, "<i>app:100:x", "<i>app:101:y", version=TEXTS["script"], quiet_by=TEXTS["quotes"])


@pytest.mark.parametrize(("kind", "few", "some"), SIZES)
def test_no_page_runs_what_lies_in_redis(
    hostile: WebServer, open_page: OpenPage, kind: str, few: int, some: int
) -> None:
    adapter, pages = table().url_map.bind("localhost"), table().pages
    kinds = {name: getattr(page, kind) for name, page in pages.items() if page.template}
    waiting, seen, visits = {"/": "dashboard"}, set[str](), Counter[str]()
    with open_page(hostile.origin) as watched:
        while waiting:
            path = min(waiting, key=lambda each: visits[kinds[waiting[each]]])
            name = waiting.pop(path)
            if path in seen or visits[kinds[name]] >= (some if "/<" in pages[name].path else few):
                continue
            seen.add(path)
            visits[kinds[name]] += 1
            for link in look(watched, path):
                found = adapter.match(urlsplit(link).path, method="GET")[0]
                if found in kinds:
                    waiting[link] = found

    assert set(visits) == set(kinds.values())


def look(watched: Watched, path: str) -> list[str]:
    """Look at a page, and have its live parts loaded again; return its links."""
    watched.open(path)
    page = watched.page
    page.evaluate(REFRESH)
    title, pwned, shown, links = page.evaluate(SEEN)
    assert title.endswith(TITLE), path
    assert not pwned, path
    assert shown, path
    assert urlsplit(page.url).path == urlsplit(watched.origin + path).path
    assert watched.faults == [], path
    return [str(link) for link in links]
