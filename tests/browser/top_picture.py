"""A picture of `kiqctl top` with the demo's data: `python -m tests.browser.top_picture` makes docs/images/top.png."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from random import Random

from PIL import Image

from kiqcluster.api.dashboard import read_dashboard
from kiqcluster.ctl.top.screen import Screen
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from tests.browser import demo
from tests.browser.chromium import chromium
from tests.browser.screenshots import COLOURS, FOLDER
from tests.kit import RedisServer

SIZE = (100, 18)
INTERVAL_SECONDS, LOOKS = 0.5, 10
ADDRESS = "redis://redis.shop:6379/0"


async def draw(store: Store) -> str:
    """Return the screen as SVG, after jobs have run for some seconds while it was shown."""
    rng, clock = Random(demo.SEED), SystemClock()
    screen = Screen(store, clock, INTERVAL_SECONDS, read_dashboard(store, clock))
    async with screen.run_test(size=SIZE) as pilot:
        for _ in range(LOOKS):
            counts = {"stat:processed": rng.randint(140, 210), "stat:failed": rng.randint(1, 4)}
            store.pipeline([("INCRBY", key, count) for key, count in counts.items()])
            await pilot.pause(INTERVAL_SECONDS)
        return screen.export_screenshot(title="kiqctl top")


def main() -> int:
    """Make the picture; return the exit code."""
    with RedisServer() as redis:
        store = redis.store()
        demo.fill(store)
        svg = asyncio.run(draw(store))
    drawn = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # the fonts of other hosts
    drawn = re.sub(r" textLength=\"[^\"]*\"", "", drawn)  # the address is shorter than that of the demo
    drawn = re.sub(r"(?:unix|redis)://[^&<\s]+", ADDRESS, drawn, count=1)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 640})
        page.set_content(f"<body style='margin:0'>{drawn}</body>")
        picture = Image.open(io.BytesIO(page.locator("svg").first.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / "top.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
