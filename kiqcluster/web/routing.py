"""Routing: what a page and an action are, and the table of all of them.

A module of views/ declares PAGES and ACTIONS; `table()` collects those of all modules there, so that a page is added
by adding a module and a template.

Page      GET: a view that reads, and a template.  Its live parts are blocks of the template
Action    POST: changes something.  One that asks first has a `question`, which is shown until the form says `confirmed`
"""

from __future__ import annotations

import base64
import binascii
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from types import ModuleType
from typing import Any

from werkzeug.routing import BaseConverter, Map, Rule, ValidationError

from kiqcluster.errors import StoreError
from kiqcluster.web import views
from kiqcluster.web.context import Context
from kiqcluster.web.users import Role

__all__ = ["CONFIRMED", "Action", "Done", "Download", "Page", "Question", "Table", "table", "to_path"]

CONFIRMED = "confirmed"  # a field of forms
LIVE_BLOCK = "live"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:@-]+")
PLAIN_TYPES = frozenset({str, int, float, type(None)})
MAX_KEPT_PATHS, MAX_KEPT_CHARACTERS = 4_096, 200  # of a value in one
ENCODED = "~"  # before a name that a path cannot hold as it is


@dataclass(frozen=True, slots=True)
class Download:
    """A file for the browser, instead of a page.

    parts: lines, written while they are made, so that it may be of any size; a StoreError ends them.  broken_off: the
    line that says so.  target: what is in it, for the audit.
    """

    filename: str
    content_type: str
    parts: Iterable[bytes]
    broken_off: Callable[[StoreError], bytes]
    target: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    name: of its endpoint.  title: a message.  place: in the navigation, from the left; None: not there.  key: goes
    there, after g.  blocks: of the template that a browser may ask for alone.  cost: tokens of the rate limit,
    or a function that says how many a request takes.
    """

    name: str
    path: str
    view: Callable[[Context], Mapping[str, Any] | Download]
    template: str
    title: str
    place: int | None = None
    key: str = ""
    role: Role = Role.VIEW
    blocks: tuple[str, ...] = (LIVE_BLOCK,)
    cost: float | Callable[[Context], float] = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be confirmed.  text: the whole of it, with its count.  button: what it does.  back: where no leads.

    is_final: whether it cannot be undone.
    """

    text: str
    button: str
    back: str
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done.

    text: for who asked, "" for nothing to say.  back: the path that is shown next.  target: for the audit.  keep:
    cookies for the browser.
    """

    text: str
    back: str
    target: str = ""
    has_failed: bool = False
    keep: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """A change.  role: who may.  is_change: False for what only the browser keeps: it needs no role and no audit."""

    name: str
    path: str
    run: Callable[[Context], Done | Download]
    role: Role = Role.OPERATE
    question: Callable[[Context], Question] | None = None
    is_change: bool = True


def to_path(name: str) -> str:
    """Return a name as a path has it: letters and digits as they are, others encoded."""
    if PLAIN_NAME.fullmatch(name) and name.strip("."):
        return name
    return ENCODED + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


class NameConverter(BaseConverter):
    """A name from Redis, which may hold anything: letters and digits as they are, others encoded.

    Templates link only those that a path can hold (the test `linkable`).
    """

    regex = r"[A-Za-z0-9_.:@~-]+"

    def to_python(self, value: str) -> str:
        if not value.startswith(ENCODED):
            return value
        raw = value[1:]
        try:
            return base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).decode()
        except (binascii.Error, ValueError) as error:
            raise ValidationError from error

    def to_url(self, value: Any) -> str:
        return to_path(str(value))


class EntryConverter(BaseConverter):
    """The key of an entry of a set: see views/entries."""

    regex = r"[-+.0-9einf]+-[0-9a-f]{16}"


@dataclass(frozen=True, eq=False)
class Table:
    """All pages and actions, by the names of their endpoints."""

    pages: Mapping[str, Page]
    actions: Mapping[str, Action]

    @cached_property
    def url_map(self) -> Map:
        """The URL map, which takes a tenth of a second to make.  Thread-safe once it is made."""
        rules = [Rule(each.path, endpoint=each.name, methods=["GET"]) for each in self.pages.values()]
        rules += [Rule(each.path, endpoint=each.name, methods=["POST"]) for each in self.actions.values()]
        return Map(rules, converters={"name": NameConverter, "entry": EntryConverter}, merge_slashes=False)

    def paths(self) -> list[str]:
        """Return the paths of all pages and actions, with their placeholders."""
        return [*(each.path for each in self.pages.values()), *(each.path for each in self.actions.values())]

    def path(self, root: str, name: str, values: Mapping[str, Any]) -> str:
        """Return the path of a page or an action.  root: where the pages are mounted.

        A page has hundreds, mostly those that it had when it was loaded last.
        """
        pairs = tuple((key, type(value), value) for key, value in values.items())
        if any(
            kind not in PLAIN_TYPES or (kind is str and len(value) > MAX_KEPT_CHARACTERS) for _, kind, value in pairs
        ):
            return self.url_map.bind("localhost", script_name=root).build(name, values)
        return _kept_path(self, root, name, pairs)

    def navigation(self) -> list[Page]:
        """Return the pages of the navigation, from the left."""
        placed = [(each.place, each) for each in self.pages.values() if each.place is not None]
        return [page for _, page in sorted(placed, key=lambda pair: (pair[0], pair[1].name))]


@lru_cache(MAX_KEPT_PATHS)
def _kept_path(table: Table, root: str, name: str, pairs: tuple[tuple[str, type, Any], ...]) -> str:
    values = {key: value for key, _, value in pairs}
    return table.url_map.bind("localhost", script_name=root).build(name, values)


@cache
def table() -> Table:
    """Return the table.  Raises ValueError if two have one name."""
    pages: dict[str, Page] = {}
    actions: dict[str, Action] = {}
    for module in view_modules():
        for page in getattr(module, "PAGES", ()):
            _add(pages, page.name, page, module)
        for action in getattr(module, "ACTIONS", ()):
            _add(actions, action.name, action, module)
    return Table(pages, actions)


def view_modules() -> list[ModuleType]:
    """Return the modules of views/."""
    found = pkgutil.walk_packages(views.__path__, f"{views.__name__}.")
    return [importlib.import_module(each.name) for each in found if not each.ispkg]


def _add(known: dict[str, Any], name: str, value: object, module: ModuleType) -> None:
    if name in known:
        raise ValueError(f"{module.__name__}: there is another page or action {name!r}")
    known[name] = value
