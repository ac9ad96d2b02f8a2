"""Chromium: Debian's browser, driven by playwright; what goes wrong in a page fails the test that looks at it.

A page must not write errors to the console, break its content security policy, open a dialog, or ask anybody but its
own server.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.kit import TIMEOUT_SECONDS
from tests.leaks import MARK

__all__ = ["Contexts", "Watched", "chromium", "program"]

FLAGS = (
    "--no-sandbox",  # containers and CI run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 1_000 * TIMEOUT_SECONDS
# What a policy forbids is told to the page, whatever the console says.
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error("policy: " + event.violatedDirective + " " + event.blockedURI));"""


# Takes from a page all that asks its server for something later, and what the browser keeps for it.
REST = """() => {
  window.stop();
  document.body?.replaceChildren();
  try { localStorage.clear(); } catch { /* a page of the browser's own has none */ }
}"""


def program() -> str | None:
    """Return where Chromium is, None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser for a `with` block.

    tests/leaks.py knows it by its parent.  The handler of crashes has none, so the browser passes no mark on to it.
    """
    environ: dict[str, str | float | bool] = {name: value for name, value in os.environ.items() if name != MARK}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=[*FLAGS], env=environ)
        yield browser
        browser.close()


class Watched:
    """A page of the browser.  faults: what went wrong in it so far.  posted: paths that forms were sent to."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.faults: list[str] = []
        self.posted: list[str] = []
        self._listeners = {
            "console": self._console,
            "pageerror": self._error,
            "dialog": self._dialog,
            "request": self._request,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]

    def open(self, path: str) -> None:
        """Show a page."""
        answer = self.page.goto(self.origin + path)
        assert answer is not None
        assert answer.status == 200, (path, answer.status, self.page.inner_text("main"))

    def press(self, name: str, *, within: str = "main", **options: Any) -> None:
        """Press a button, and wait for the page that follows."""
        button = self.page.locator(within).get_by_role("button", name=name, exact=True, **options)
        with self.page.expect_navigation():
            button.first.click()

    def send_to(self, path: str) -> None:
        """Press the button that sends its form to a path."""
        buttons = f"button[formaction='{path}']:not([aria-hidden]), form[action='{path}'] button:not([formaction])"
        with self.page.expect_navigation():
            self.page.locator("main").locator(buttons).first.click()

    def confirm(self) -> None:
        """Press the button of the page that asks."""
        with self.page.expect_navigation():
            self.page.locator(".question .button-danger").click()

    def message(self) -> str:
        """Return what the page says that an action has done."""
        return self.page.locator(".message-done").inner_text()

    def close(self) -> None:
        """Leave the page to the next test, empty: another page, or a blank one, would cost a load or a process."""
        self.page.evaluate(REST)
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def _error(self, error: object) -> None:
        self.faults.append(f"uncaught: {error}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text} ({urlsplit(self.page.url).path})")

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        place = urlsplit(request.url)
        if f"{place.scheme}://{place.netloc}" != self.origin and place.scheme != "data":
            self.faults.append(f"asks {request.url[:200]}")
        if request.method == "POST":
            self.posted.append(place.path)


class Contexts:
    """Contexts of a browser by their options, each with a page.  These are used again: a new page takes a second."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._idle: defaultdict[str, list[Page]] = defaultdict(list)

    @contextmanager
    def open(self, origin: str, *, has_clock: bool = False, **options: Any) -> Iterator[Watched]:
        """Open a page for a `with` block, which fails if something went wrong in it.

        has_clock: whether the test says how time passes in the page.  options: of the context; what else a test
        changes in a page, it puts back.
        """
        idle = self._idle[repr((has_clock, sorted(options.items())))]
        page = idle.pop() if idle else self._new_page(options, has_clock=has_clock)
        watched = Watched(page, origin)
        try:
            yield watched
            assert watched.faults == [], watched.faults
        except BaseException:
            page.context.close()
            raise
        watched.close()
        page.context.clear_cookies()
        idle.append(page)

    def _new_page(self, options: dict[str, Any], *, has_clock: bool) -> Page:
        context = self._browser.new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(TELL_VIOLATIONS)
        if has_clock:
            context.clock.install()
        return context.new_page()
