"""A browser for Sidekiq's web pages: it reads what they show, fills in their forms and presses the buttons.

What is posted is what the page's own form holds, its token and its hidden fields included: if our data broke a form,
the button would do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import pytest

__all__ = ["Browser", "Form", "Page"]


@dataclass
class Form:
    """action: where it is sent, "" for the page itself.  fields: what is always sent.  choices: its check boxes."""

    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    choices: list[tuple[str, str]] = field(default_factory=list)
    buttons: dict[str, str] = field(default_factory=dict)


class Reader(HTMLParser):
    """Takes forms, links and the table rows' text from a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.rows: list[str] = []
        self._form: Form | None = None
        self._row: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        have = {name: value or "" for name, value in attributes}
        if tag == "form":
            self._form = Form(have.get("action", ""))
            self.forms.append(self._form)
        elif tag == "a" and "href" in have:
            self.links.append(have["href"])
        elif tag == "tr":
            self._row = []
        elif tag in ("input", "button") and self._form is not None and "name" in have:
            self._take(self._form, have["name"], have.get("value", ""), have.get("type", ""))

    def _take(self, form: Form, name: str, value: str, kind: str) -> None:
        if kind == "submit":
            form.buttons[name] = value
        elif kind == "checkbox":
            form.choices.append((name, value))
        else:
            form.fields.append((name, value))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "tr" and self._row is not None:
            self.rows.append(" ".join(" ".join(self._row).split()))
            self._row = None

    def handle_data(self, data: str) -> None:
        if self._row is not None:
            self._row.append(data)


@dataclass
class Page:
    """rows: the text of each table row.  choices: the values of its check boxes, from top to bottom."""

    path: str
    status: int
    headers: dict[str, str]
    text: str

    def __post_init__(self) -> None:
        reader = Reader(self.text)
        self.forms, self.links, self.rows = reader.forms, reader.links, reader.rows

    @property
    def choices(self) -> list[str]:
        return [value for form in self.forms for _, value in form.choices]

    def form(self, button: str, action: str | None = None, **having: str | None) -> Form:
        """Return the one form with that button.

        action: sent to there.  having: with that hidden field, or without it for None.
        """

        def fits(form: Form) -> bool:
            fields = dict(form.fields)
            return action in (None, form.action) and all(fields.get(name) == value for name, value in having.items())

        found = [form for form in self.forms if button in form.buttons and fits(form)]
        if len(found) != 1:
            pytest.fail(f"{self.path} has {len(found)} forms with the button {button} {action or ''} {having}")
        return found[0]


class Browser:
    """posted: the routes of Sidekiq::Web that buttons were sent to, as its application spells them."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any]) -> None:
        self._ask = ask
        self._patterns = [(route, re.compile(re.sub(r":\w+", "[^/]+", route))) for route in ask({"routes": True})]
        self.posted: set[str] = set()
        ask({"forget": True})

    @property
    def routes(self) -> list[str]:
        return [route for route, _ in self._patterns]

    def get(self, path: str, method: str = "GET", **headers: str) -> Page:
        """Return a page as it is, a redirection too.  headers: in Rack's spelling, HTTP_ACCEPT_LANGUAGE="de"."""
        return self._page(self._ask({"method": method, "path": path, "headers": headers}), path)

    def see(self, path: str) -> Page:
        """Return a page that has to be there."""
        page = self.get(path)
        assert page.status == 200, (path, page.status, page.text[:500])
        return page

    def press(
        self, path: str, button: str, action: str | None = None, *, chosen: Iterable[str] = (), **having: str | None
    ) -> Page:
        """Look at a page, press a button of it, and return the page that follows.

        action, having: see Page.form.  chosen: values of the check boxes that are ticked before.
        """
        page = self.see(path)
        form = page.form(button, action, **having)
        ticked = [(name, value) for name, value in form.choices if value in set(chosen)]
        assert len(ticked) == len(set(chosen)), f"{path} shows {form.choices}"
        sent = [*form.fields, *ticked, (button, form.buttons[button])]
        answer = self.post(urljoin(path, form.action) if form.action else path, sent, referer=path)
        assert answer.status == 302, (path, answer.status, answer.text[:500])
        return self.see(answer.headers["Location"].removeprefix("http://example.org"))

    def post(self, path: str, fields: Iterable[tuple[str, str]], referer: str = "/") -> Page:
        """Send fields as they are given."""
        bare = urlsplit(path).path
        self.posted |= {route for route, pattern in self._patterns if pattern.fullmatch(f"POST {bare}")}
        headers = {"HTTP_REFERER": f"http://example.org{referer}"}
        request = {"method": "POST", "path": path, "form": urlencode(list(fields)), "headers": headers}
        return self._page(self._ask(request), path)

    def token(self) -> str:
        """Return what a form has to send along."""
        return dict(self.see("/busy").forms[0].fields)["authenticity_token"]

    def _page(self, answer: dict[str, Any], path: str) -> Page:
        return Page(path, answer["status"], answer["headers"], answer["body"])
