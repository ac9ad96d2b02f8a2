"""The pages where applications mount them: Flask, Django, FastAPI, and alone under waitress and gunicorn.

Each is a real server process with an example of examples/web, on a real Redis.  A browser signs in as the application
has it, follows every link, and presses a button.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from http.cookiejar import Cookie, CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

import pytest

from kiqcluster.store import Store
from kiqcluster.web.routing import table
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, RedisServer, free_port, wait_until
from tests.stored_jobs import fill_queue, fill_set

PREFIX = "/ops/jobs"
ADDRESS = re.compile(r'(?:href|src|action|formaction|hx-get)="([^"#][^"]*)"')
LINK = re.compile(r'(?:href|src)="([^"#][^"]*)"')
FORM = re.compile(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')
LIVE = re.compile(r'id="(\w+)" data-live hx-get="([^"]*)"')
PASSWORDS, ROLES = {"ada": "admin", "bob": "viewer"}, {"ada": "admin", "bob": "view"}
TOKENS = {name: f"token of {name}" for name in ROLES}
WEB = {"tokens": [f"{name} {ROLES[name]} {hashlib.sha256(TOKENS[name].encode()).hexdigest()}" for name in ROLES]}
MAX_PAGES = 30  # more than the navigation and the files; tests/redis/web crawls them all


@dataclass(frozen=True)
class Mount:
    """A server.  command: {port} and {prefix} stand for these.  stranger: what somebody gets who has not signed in."""

    command: Sequence[str]
    login: str  # form, json or token
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    stranger: int = 403


WAITRESS = ("waitress", "--listen=127.0.0.1:{port}")
PLAIN = "kiqcluster.web.wsgi:application"
MOUNTS = {
    "flask": Mount([*WAITRESS, "examples.web.flask_shop:app"], "form"),
    "django": Mount(
        [*WAITRESS, "examples.web.django_shop:application"], "form", prepare="examples.web.django_shop", stranger=302
    ),
    "fastapi": Mount(["uvicorn", "--host", "127.0.0.1", "--port", "{port}", "examples.web.fastapi_shop:app"], "json"),
    "waitress": Mount([*WAITRESS, "--url-prefix={prefix}", PLAIN], "token", stranger=401),
    "gunicorn": Mount(
        ["gunicorn", "--bind", "127.0.0.1:{port}", "--threads", "4", PLAIN],
        "token",
        environ={"SCRIPT_NAME": PREFIX},
        stranger=401,
    ),
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    text: str
    path: str


class Stay(HTTPRedirectHandler):
    """Does not follow redirections."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Visitor:
    """A browser with cookies, which it sends only below their paths."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.cookies = CookieJar()
        self.headers: dict[str, str] = {}
        self._opener = build_opener(HTTPCookieProcessor(self.cookies), Stay)

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(self.origin + path, data, {**self.headers, **named})
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as reply:
                return Answer(reply.status, reply.headers, reply.read().decode(), path)
        except HTTPError as reply:
            with reply:
                return Answer(reply.code, reply.headers, reply.read().decode(), path)

    def send(self, path: str, form: Mapping[str, str]) -> Answer:
        """Send a form as a browser does."""
        return self.ask(path, urlencode(form).encode(), Origin=self.origin, Sec_Fetch_Site="same-origin")

    def sign_in(self, kind: str, name: str) -> Visitor:
        if kind == "form":
            hidden = dict(HIDDEN.findall(self.ask("/login").text))
            assert self.send("/login", {**hidden, "name": name, "password": PASSWORDS[name]}).status == 302
        elif kind == "json":
            told = json.dumps({"name": name, "password": PASSWORDS[name]}).encode()
            assert self.ask("/login", told, Content_Type="application/json").status == 200
        else:
            self.headers["Authorization"] = f"Bearer {TOKENS[name]}"
        return self

    def press(self, page: str, ending: str, **changed: str) -> Answer:
        """Send the form of a page whose action ends so; `changed` replaces its fields."""
        forms = FORM.findall(self.ask(page).text)
        ((action, fields),) = {each for each in forms if each[0].endswith(ending)}
        hidden = {name: unescape(value) for name, value in HIDDEN.findall(fields)}
        return self.send(unescape(action), {**hidden, **changed})

    def crawl(self) -> dict[str, Answer]:
        """Follow all links from the first page; return path → answer."""
        seen: dict[str, Answer] = {}
        waiting = [f"{PREFIX}/"]
        while waiting and len(seen) < MAX_PAGES:
            path = waiting.pop(0)
            if path not in seen:
                seen[path] = answer = self.ask(path)
                if "text/html" in answer.headers["Content-Type"]:
                    waiting += [unescape(each) for each in LINK.findall(answer.text)]
        return seen


@dataclass(frozen=True)
class Server:
    """sessions: name → the cookies of somebody who has just signed in; an application takes long to hash a password."""

    mount: Mount
    port: int
    sessions: dict[str, list[Cookie]] = field(default_factory=dict)

    def visitor(self, name: str | None = "ada") -> Visitor:
        visitor = Visitor(self.port)
        if name is None:
            return visitor
        if self.mount.login == "token" or name not in self.sessions:
            visitor.sign_in(self.mount.login, name)
            self.sessions[name] = [*visitor.cookies]
        for each in self.sessions[name]:
            visitor.cookies.set_cookie(each)
        return visitor


@pytest.fixture(scope="module", params=MOUNTS)
def server(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[Server]:
    """The server process of each mount."""
    mount, port = MOUNTS[request.param], free_port()
    folder: Path = tmp_path_factory.mktemp(request.param)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "COVERAGE"))},
        "PYTHONPATH": str(ROOT),
        "REDIS_URL": redis_server.url,
        "SHOP_DATABASE": str(folder / "shop.sqlite3"),
        **({"KIQ_WEB": json.dumps(WEB)} if mount.login == "token" else {}),
        **mount.environ,
    }
    if mount.prepare:
        prepared = forkserver.run([sys.executable, "-m", mount.prepare], env=environ, cwd=folder)
        assert prepared.returncode == 0, prepared.stderr
    words = [each.format(port=port, prefix=PREFIX) for each in mount.command]
    with (folder / "log").open("wb") as log:
        process = forkserver.Popen([sys.executable, "-m", *words], env=environ, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or answers(port), "the server to listen")
        assert process.poll() is None, (folder / "log").read_text()
        yield Server(mount, port)
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


def answers(port: int) -> bool:
    try:
        return Visitor(port).ask(f"{PREFIX}/").status < 500
    except URLError:
        return False


@pytest.fixture(autouse=True)
def _jobs(store: Store) -> None:
    fill_queue(store, range(30))
    fill_set(store, "dead", range(30))


def test_nobody_is_let_in_whom_the_application_does_not_know(server: Server) -> None:
    answer = server.visitor(None).ask(f"{PREFIX}/queues")

    assert answer.status == server.mount.stranger
    assert "default" not in answer.text


def test_every_page_and_file_is_below_the_mount(server: Server) -> None:
    seen = server.visitor().crawl()

    assert {path: each.status for path, each in seen.items() if each.status != 200} == {}
    outside = {
        address
        for each in seen.values()
        for address in ADDRESS.findall(each.text)
        if "text/html" in each.headers["Content-Type"] and not address.startswith(f"{PREFIX}/")
    }
    assert outside == set()
    assert {f"{PREFIX}{page.path}" for page in table().navigation()} <= seen.keys()
    files = [each for path, each in seen.items() if "/static/" in path]
    assert len(files) >= 4
    assert all("immutable" in each.headers["Cache-Control"] for each in files)


def test_the_address_without_a_slash_leads_there_too(server: Server) -> None:
    answer = server.visitor().ask(PREFIX)

    assert answer.status in (307, 308)
    assert urlsplit(answer.headers["Location"]).path == f"{PREFIX}/"


def test_a_live_part_is_loaded_again(server: Server) -> None:
    visitor = server.visitor()
    for block, address in LIVE.findall(visitor.ask(f"{PREFIX}/queues").text):
        part = visitor.ask(unescape(address), HX_Request="true", HX_Target=block)

        assert part.status == 200
        assert ">default<" in part.text
        assert "<html" not in part.text


def test_a_button_changes_redis_and_leads_back_below_the_mount(server: Server, store: Store) -> None:
    visitor = server.visitor()

    answer = visitor.press(f"{PREFIX}/queues/default", "/pause")

    assert answer.status == 303
    assert store.call("SISMEMBER", "paused", "default") == 1
    place = urlsplit(answer.headers["Location"])
    assert place.path.startswith(f"{PREFIX}/")
    assert "message-done" in visitor.ask(place.path).text
    assert "message-done" not in visitor.ask(place.path).text  # its cookie is taken back


def test_preferences_are_kept_and_lead_back_to_the_page(server: Server) -> None:
    visitor = server.visitor()

    answer = visitor.press(f"{PREFIX}/queues?sort=size", "/preferences", kiqweb_theme="dark", kiqweb_language="ja")

    assert answer.status == 303
    assert answer.headers["Location"].endswith(f"{PREFIX}/queues?sort=size")
    assert '<html lang="ja" dir="ltr" data-theme="dark">' in visitor.ask(f"{PREFIX}/queues").text


def test_cookies_of_the_pages_are_sent_to_the_pages_only(server: Server) -> None:
    visitor = server.visitor()
    visitor.press(f"{PREFIX}/queues/default", "/pause")

    ours = [each for each in visitor.cookies if each.name.startswith("kiqweb_")]

    assert {each.name for each in ours} == {"kiqweb_token", "kiqweb_message"}
    assert {each.path for each in ours} == {PREFIX}


def test_a_form_without_our_token_changes_nothing(server: Server, store: Store) -> None:
    answer = server.visitor().press(f"{PREFIX}/queues/default", "/pause", csrf_token="")

    assert answer.status == 403
    assert store.call("EXISTS", "paused") == 0


def test_a_viewer_sees_and_changes_nothing(server: Server, store: Store) -> None:
    visitor = server.visitor("bob")
    page = visitor.ask(f"{PREFIX}/queues/default")
    token = dict(HIDDEN.findall(page.text))["csrf_token"]

    answer = visitor.send(f"{PREFIX}/queues/default/pause", {"csrf_token": unescape(token)})

    assert page.status == 200
    assert "/pause" not in page.text
    assert answer.status == 403
    assert store.call("EXISTS", "paused") == 0
