"""Fixtures: Debian's Chromium, and a live cluster with Ruby's Sidekiq beside it for it to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser

from kiqcluster.application.registry import Registry
from tests.browser.chromium import Contexts, Watched, chromium, program
from tests.browser.live import LiveSite, live_site
from tests.kit import unavailable


class OpenPage(Protocol):
    def __call__(
        self, origin: str = "", *, has_clock: bool = False, **options: Any
    ) -> AbstractContextManager[Watched]: ...


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser of the run; skip loudly, or fail where everything is required, without it."""
    if program() is None:
        unavailable("chromium is not installed (Debian: apt-get install chromium)")
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def running_site(
    browser: Browser, sidekiq_is_there: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveSite]:
    """The live cluster of the run."""
    with live_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(running_site: LiveSite, registry: Registry) -> Iterator[LiveSite]:
    """The same, without jobs; this process knows no job class, whichever other tests have imported some."""
    running_site.clear()
    yield running_site
    running_site.clear()


@pytest.fixture(scope="package")
def contexts(browser: Browser) -> Contexts:
    return Contexts(browser)


@pytest.fixture
def open_page(contexts: Contexts, request: pytest.FixtureRequest) -> OpenPage:
    """Open a page: `with open_page(java_script_enabled=False) as watched`; it fails if something went wrong in it."""

    def opened(origin: str = "", **options: Any) -> AbstractContextManager[Watched]:
        return contexts.open(origin or request.getfixturevalue("running_site").origin, **options)

    return opened
