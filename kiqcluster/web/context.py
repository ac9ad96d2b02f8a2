"""Context: what a view or an action is given: the request, who asks, where Redis is, and words in their language."""

from __future__ import annotations

import gettext
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Request

from kiqcluster.api import JobRecord
from kiqcluster.api.bulk import BulkRunner
from kiqcluster.api.throughput import Rate, Throughput
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.web.arguments import FormatArguments, shorten, shown_arguments
from kiqcluster.web.security.entry_keys import EntryKeys, entry_keys_of
from kiqcluster.web.security.guard import SharedSecret
from kiqcluster.web.settings import WebSettings
from kiqcluster.web.users import Role, User

__all__ = ["Context", "Meter", "Shelf"]

MAX_GAP_SECONDS = 30.0  # between two looks, beyond which their difference says nothing of now
MAX_PAGE_NUMBER = 10**9
MAX_KEPT = 16  # values on a shelf

T = TypeVar("T")


class Meter:
    """Jobs a second, from the looks of all who watch.  Thread-safe: `_lock` guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._throughput = Throughput()
        self._last = 0.0

    def add(self, taken: float, processed: int, failed: int) -> Rate:
        """Return the rate by now.  taken: monotonic seconds."""
        with self._lock:
            if taken - self._last > MAX_GAP_SECONDS:
                self._throughput = Throughput()
            self._last = max(self._last, taken)
            return self._throughput.add(taken, processed, failed)


class Shelf:
    """Values that take long to read, kept for some seconds for all who watch.  Thread-safe: `_lock` guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[float, Any]] = {}  # value, and until when (monotonic); the oldest first

    def get(self, key: Hashable, now: float, seconds: float, make: Callable[[], T]) -> T:
        """Return the value of a key; where there is none any more, make it.  now: monotonic."""
        with self._lock:
            until, value = self._values.get(key, (0.0, None))
        if until > now:
            found: T = value
            return found
        made = make()
        with self._lock:
            self._values.pop(key, None)
            while len(self._values) >= MAX_KEPT:
                del self._values[next(iter(self._values))]
            self._values[key] = now + seconds, made
        return made


@dataclass(frozen=True, slots=True)
class Context:
    """route: values of the path.  is_fragment: whether only live parts are asked for.

    is_own_store: whether the store is the configured one, beside which there may be others.  bulk: what works on bulk
    actions.
    """

    request: Request
    user: User
    store: Store
    clock: Clock
    settings: WebSettings
    meter: Meter
    words: gettext.NullTranslations
    urls: MapAdapter
    bulk: BulkRunner
    secret: SharedSecret
    is_own_store: bool = False
    route: Mapping[str, Any] = field(default_factory=dict)
    is_fragment: bool = False
    formatter: FormatArguments | None = None
    shelf: Shelf = field(default_factory=Shelf)

    @property
    def entry_keys(self) -> EntryKeys:
        """What makes the keys of jobs.  One round trip, once a minute in a process.  Raises StoreError."""
        return entry_keys_of(self.secret.of(self.store))

    def gettext(self, text: str, **values: Any) -> str:
        """Return a message in the language of the answer."""
        translated = self.words.gettext(text)
        return translated % values if values else translated

    def ngettext(self, one: str, many: str, count: int, **values: Any) -> str:
        """Return the form of a message for a count, which it shows as %(count)s."""
        return self.words.ngettext(one, many, count) % {"count": f"{count:,}", **values}

    def url(self, name: str, **values: Any) -> str:
        """Return the path of a page or an action, wherever the pages are mounted."""
        return self.urls.build(name, values)

    def may(self, role: Role) -> bool:
        """Return whether who asks may change what needs this role."""
        return self.user.role >= role and not self.settings.read_only

    def number(self, name: str, default: int = 1, least: int = 1) -> int:
        """Return a number of the query."""
        text = self.request.args.get(name, "")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else default
        return max(least, min(number, MAX_PAGE_NUMBER))

    def word(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a word of the query; the first of the choices where it is none of them."""
        text = self.request.args.get(name, "")
        return text if text in choices else choices[0]

    def arguments(self, record: JobRecord) -> str:
        """Return a job's arguments for a list."""
        return shorten(shown_arguments(record, self.formatter))

    def all_arguments(self, record: JobRecord) -> str:
        """Return a job's arguments for its own page."""
        return shown_arguments(record, self.formatter)
