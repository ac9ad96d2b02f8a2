"""Links: finds a path of each page by following links from the first one."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urlsplit
from urllib.request import urlopen

from kiqcluster.web.routing import table
from tests.kit import TIMEOUT_SECONDS

__all__ = ["find_pages"]

LINK = re.compile(r'href="(/[^"#]*)"')


def find_pages(origin: str) -> dict[str, str]:
    """Follow links; return page → its first path."""
    found: dict[str, str] = {}
    adapter = table().url_map.bind("localhost")
    waiting = ["/"]
    while waiting:
        path = waiting.pop(0)
        if path.startswith("/static/") or (name := adapter.match(urlsplit(path).path, method="GET")[0]) in found:
            continue
        if not table().pages[name].template:
            found[name] = path
            continue
        found[name] = path
        with urlopen(origin + path, timeout=TIMEOUT_SECONDS) as answer:
            waiting += [unescape(each) for each in LINK.findall(answer.read().decode())]
    return found
