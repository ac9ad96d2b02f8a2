"""A browser in front of the web pages, on a real Redis: what it sees, how often Redis was asked, what has changed."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter
from werkzeug.test import Client, TestResponse

from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.events import Events, Fields
from kiqcluster.store import Connection, Store
from kiqcluster.store.wire import Reply
from kiqcluster.web import Role, User, create_app
from kiqcluster.web.assets import asset_path
from kiqcluster.web.rate_limit import RateLimit
from kiqcluster.web.routing import Action
from kiqcluster.web.security.entry_keys import EntryKeys
from kiqcluster.web.security.guard import SharedSecret

ORIGIN = "http://localhost"
LOCAL = {"REMOTE_ADDR": "127.0.0.1"}
TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e]")
NUMBERS = re.compile(r"\d+")
HARMLESS = set[str]()  # pieces of pages in which nothing was found
LINK = re.compile(r'(?:href|hx-get)="(/[^"]*)"')
BULK_SECONDS = 30.0  # within which bulk actions of tests end
SCENES = Path(__file__).parent / "scenes"


@dataclass(frozen=True)
class Scene:
    """What an action is done to.  route: values of its path.  form: its fields, without token."""

    route: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, Any] = field(default_factory=dict)


def entry_keys(store: Store) -> EntryKeys:
    """Return what makes the keys by which pages of this Redis name jobs."""
    return EntryKeys(SharedSecret("", SystemClock()).of(store))


def scenes() -> dict[str, Any]:
    """Return action → function that prepares Redis so that the action changes something, and returns the Scene."""
    found: dict[str, Any] = {}
    for path in sorted(SCENES.glob("*.py")):
        found |= importlib.import_module(f"tests.redis.web.scenes.{path.stem}").SCENES
    return found


class CountingConnection(Connection):
    """Counts the round trips."""

    home: CountingStore

    def finish(self, timeout: float | None = None) -> list[Reply]:
        self.home.round_trips += 1
        return super().finish(timeout)


class CountingStore(Store):
    """A store that counts its round trips."""

    round_trips = 0

    def connection(self, *arguments: Any, **options: Any) -> Connection:
        made = super().connection(*arguments, **options)
        made.__class__ = CountingConnection
        made.home = self  # type: ignore[attr-defined]
        return made


class Site:
    """A browser.  events: those of the application."""

    def __init__(
        self,
        store: Store,
        role: Role = Role.ADMIN,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        *,
        is_limited: bool = False,
        **options: Any,
    ) -> None:
        self.store = store
        self.events: list[tuple[str, Fields]] = []
        bus = Events()
        bus.listen(lambda name, fields: self.events.append((name, fields)))
        authorize = options.pop("authorize", lambda _: User("ada", role))
        self.app = create_app(authorize, store=store, settings=settings or {}, clock=clock, events=bus, **options)
        if not is_limited:  # a test looks at all pages within a second
            self.app._costly = RateLimit(SystemClock(), 1e6, 1e6)
        self.client = Client(self.app)

    def get(self, path: str, headers: Mapping[str, str] | None = None, **options: Any) -> TestResponse:
        return self.client.get(path, headers=headers, environ_base=LOCAL, **options)

    def fragment(self, path: str, block: str) -> TestResponse:
        return self.get(path, {"HX-Request": "true", "HX-Target": block})

    def app_asset(self, name: str) -> str:
        """Return the path of a file of static/."""
        return asset_path(name)

    def token(self) -> str:
        """Return a token of a form that this browser was shown."""
        found = TOKEN.search(self.get("/").text)
        assert found is not None
        return unescape(found[1])

    def path(self, action: Action, scene: Scene) -> str:
        adapter = self.app.routes.url_map.bind("localhost")
        return adapter.build(action.name, scene.route)

    def post(
        self, path: str, form: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> TestResponse:
        """Send a form as a page of ours sends it; `headers` replace those of a browser, None leaves the token out."""
        data = {"confirmed": "1", **(form or {})}
        if "csrf_token" not in data:
            data["csrf_token"] = self.token()
        data = {name: value for name, value in data.items() if value is not None}
        sent = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"} if headers is None else headers
        answer = self.client.post(path, data=data, headers=sent, environ_base=LOCAL, **options)
        self.app.bulk.wait(BULK_SECONDS)
        return answer

    def crawl(
        self,
        start: Sequence[str] = ("/",),
        most: int = 60,
        often: Collection[str] | None = None,
        only: Collection[str] | None = None,
    ) -> dict[str, TestResponse]:
        """Follow links, those first to pages that were seen least; return path → answer.

        often: pages that are looked at again and again, where others are only once; None for all of them.
        only: pages whose links are followed; None for all of them.
        """
        adapter = self.app.routes.url_map.bind("localhost")
        seen: dict[str, TestResponse] = {}
        visits: Counter[str] = Counter()
        waiting = {path: _page_of(adapter, path) for path in start}
        while waiting and len(seen) < most:
            path = min(waiting, key=lambda each: visits[waiting[each]])
            name = waiting.pop(path)
            if often is not None and name not in often and visits[name]:
                continue
            visits[name] += 1
            seen[path] = answer = self.get(path)
            for link in map(unescape, LINK.findall(answer.text)):
                if link not in seen and link not in waiting and not link.startswith("/static/"):
                    found = _page_of(adapter, link)
                    if only is None or found in only:
                        waiting[link] = found
        return seen


def _page_of(adapter: MapAdapter, path: str) -> str:
    """Return the name of the page at a path, "" where there is none."""
    try:
        return str(adapter.match(path.partition("?")[0], method="GET")[0])
    except HTTPException:
        return ""


def bulk_of(answer: TestResponse) -> str:
    """Return the id of the bulk action that an answer leads to."""
    return str(answer.headers["Location"].rpartition("/")[2])


def snapshot(store: Store) -> dict[bytes, bytes]:
    """Return all that lies in a database."""
    keys = sorted(store.call("KEYS", "*"))
    return dict(zip(keys, store.pipeline([("DUMP", key) for key in keys]), strict=True)) if keys else {}


class Active(HTMLParser):
    """Finds in a piece of a page what a browser would run: scripts and styles that are no files of ours, handlers,
    odd addresses.  A piece is what a page has from one "<" to the next; in text and attributes it is escaped.
    """

    def __init__(self, piece: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(piece)
        if self.rawdata.startswith("<") and not self.rawdata.startswith(
            "<!"
        ):  # it has no end; its next quote may be in the text of a user
            self.found.append(f"unfinished: {piece[:100]}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_ours = tag == "script" and (values.get("src") or "").startswith("/static/")
        if tag in ("script", "iframe", "object", "embed", "base", "style") and not is_ours:
            self.found.append(f"<{tag} {values}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.found.append(f"{tag} {name}")
            if name in ("href", "src", "action", "formaction", "hx-get") and not _is_ours(value or ""):
                self.found.append(f"{tag} {name}={value}")


def _is_ours(address: str) -> bool:
    return address.startswith(("/", "#")) and not address.startswith("//")


def active(text: str) -> list[str]:
    """Return what a browser would run.  Pages share most of their tags; each is parsed once."""
    pieces = set(NUMBERS.sub("0", TOKEN.sub("", text)).split("<")[1:]) - HARMLESS
    found = {piece: Active(f"<{piece}").found for piece in pieces}
    HARMLESS.update(piece for piece in pieces if not found[piece])
    return [each for piece in pieces for each in found[piece]]


def controls(text: str) -> Iterator[str]:
    """Yield the characters that no page should have."""
    return (found[0] for found in CONTROL.finditer(text))
