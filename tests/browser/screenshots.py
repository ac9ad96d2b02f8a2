"""Screenshots: pictures of each page in light, dark and phone width: `python -m tests.browser.screenshots`.

They show the data of the demo, and go to docs/images/<page>-<form>.png, with few colours: all of them together stay
below 3 MB.  Names of pages as arguments make those alone.
"""

from __future__ import annotations

import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import Page

from kiqcluster.store import Store
from kiqcluster.web.routing import table
from tests.browser import demo
from tests.browser.chromium import Contexts, Watched, chromium
from tests.browser.links import find_pages
from tests.browser.live import WebServer
from tests.kit import ROOT, RedisServer

FOLDER = ROOT / "docs/images"
MAX_BYTES = 3_000_000  # of all pictures
COLOURS = 128
LOOKS, LOOK_MS = 14, 700  # of the dashboard, whose chart rolls


@dataclass(frozen=True, slots=True)
class Form:
    """name: at the end of the file's name."""

    name: str
    options: dict[str, Any]


DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
FORMS = (
    Form("light", {"viewport": DESK, "color_scheme": "light"}),
    Form("dark", {"viewport": DESK, "color_scheme": "dark"}),
    Form("phone", {"viewport": PHONE, "color_scheme": "light", "is_mobile": True, "has_touch": True}),
)


def main(names: list[str]) -> int:
    """Make the pictures; return the exit code."""
    FOLDER.mkdir(exist_ok=True)
    with RedisServer() as redis, TemporaryDirectory() as folder, chromium() as browser:
        store = redis.store()
        demo.fill(store)
        web = WebServer(redis.url, Path(folder))
        try:
            paths = find_pages(web.origin)
            contexts = Contexts(browser)
            for form in FORMS:
                for name in names or [name for name, page in table().pages.items() if page.template]:
                    with contexts.open(web.origin, **form.options) as watched:
                        take(watched, store, name, paths[name], FOLDER / f"{name}-{form.name}.png")
        finally:
            web.close()
    size = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    print(f"{len(list(FOLDER.glob('*.png')))} pictures, {size / 1e6:.1f} MB")
    return int(size > MAX_BYTES)


def take(watched: Watched, store: Store, name: str, path: str, file: Path) -> None:
    """Make one picture."""
    watched.open(path)
    watched.page.keyboard.press("p")  # nothing changes by itself
    if name == "dashboard":
        roll(watched.page, store)
    picture = Image.open(io.BytesIO(watched.page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def roll(page: Page, store: Store) -> None:
    """Have jobs run while the page is looked at."""
    rng, before = Random(demo.SEED), time.monotonic()
    for _ in range(LOOKS):
        page.wait_for_timeout(LOOK_MS)
        seconds, before = time.monotonic() - before, time.monotonic()
        counts = {"stat:processed": rng.uniform(280, 420), "stat:failed": rng.uniform(2, 9)}
        store.pipeline([("INCRBY", key, int(count * seconds)) for key, count in counts.items()])
        with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
            page.keyboard.press("r")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
