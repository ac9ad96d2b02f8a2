"""kiqcluster's web pages, called in this process: `python -m benchmarks.apps.web URL`.  ruby/web.rb is the same.

A JSON line for a JSON line:
[path, calls, seconds]   → {"status", "seconds": of a call, the median, "cpu": seconds of this process, the median,
                           "round_trips": of a call, "bytes": by gzip}
"pages"                  → page → a path of it, found by links
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
import time
from html import unescape
from typing import Any
from urllib.parse import urlsplit

from werkzeug.test import Client

from kiqcluster.api import DeadSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.store import Connection, Store
from kiqcluster.store.wire import Reply
from kiqcluster.web import Role, User, create_app
from kiqcluster.web.routing import table

LINK = re.compile(r'href="(/[^"#]*)"')
GZIP_LEVEL = 6


class CountedConnection(Connection):
    """Counts what waits for Redis: a command, or a pipeline."""

    home: CountedStore

    def finish(self, timeout: float | None = None) -> list[Reply]:
        self.home.round_trips += 1
        return super().finish(timeout)


class CountedStore(Store):
    """A store that counts its round trips."""

    round_trips = 0

    def connection(self, *arguments: Any, **options: Any) -> Connection:
        made = super().connection(*arguments, **options)
        made.__class__ = CountedConnection
        made.home = self  # type: ignore[attr-defined]
        return made


class Pages:
    """The application, and what calls it."""

    def __init__(self, url: str) -> None:
        self._store = CountedStore(url)
        self._app = create_app(lambda _: User("bench", Role.ADMIN), store=self._store, settings={})
        self._app._costly.take = lambda *_: 0.0  # type: ignore[method-assign]  # nobody asks so often
        self._client = Client(self._app)

    def measure(self, path: str, calls: int, seconds: float) -> dict[str, Any]:
        """Call a page once, then until either is used up."""
        first = self._client.get(path)
        before, took, used = self._store.round_trips, list[float](), list[float]()
        ends = time.perf_counter() + seconds
        while len(took) < calls and (not took or time.perf_counter() < ends):
            began, began_cpu = time.perf_counter(), time.process_time()
            self._client.get(path).get_data()
            took.append(time.perf_counter() - began)
            used.append(time.process_time() - began_cpu)
        return {
            "status": first.status_code,
            "seconds": statistics.median(took),
            "cpu": statistics.median(used),
            "round_trips": (self._store.round_trips - before) // len(took),
            "bytes": len(gzip.compress(first.data, GZIP_LEVEL)),
        }

    def paths(self) -> dict[str, str]:
        """Return page → a path of it."""
        ask(self._store, DeadSet, "retry", Selection(), by="bench")  # which needs no counting meanwhile
        adapter = table().url_map.bind("localhost")
        found: dict[str, str] = {}
        waiting = [page.path for page in table().navigation()]
        while waiting:
            path = waiting.pop(0)
            bare = urlsplit(path).path
            if path.startswith("/static/") or not adapter.test(bare, method="GET"):
                continue
            name = adapter.match(bare, method="GET")[0]
            if name in found or not table().pages[name].template:  # a file, which may be the whole set
                continue
            found[name] = path
            waiting += [unescape(each) for each in LINK.findall(self._client.get(path).text)]
        return found


def main(url: str) -> None:
    pages = Pages(url)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(pages.paths() if asked == "pages" else pages.measure(*asked)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
