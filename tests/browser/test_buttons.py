"""Every button, pressed in a real browser on a live cluster, with JavaScript and without; Redis says what came of it.

An action that is added needs a step (tests/browser/steps) that presses its button.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.web.routing import table
from kiqcluster.web.views.set_kinds import SETS
from tests.browser.conftest import OpenPage
from tests.browser.live import LiveSite

pytestmark = [pytest.mark.browser, pytest.mark.ruby]

ACTIONS = table().actions
PATHS = table().url_map.bind("localhost")


def short_form() -> set[str]:
    """Return the first action of each noun, and of each kind: on one thing, on many or an export, at once or asking.

    Those of a noun share a page, those of a kind a script; the sets, and what is done to many of them, share both.
    tests/redis/web posts the form of every action.
    """
    sets, first = {"bulk", *(kind.name for kind in SETS)}, dict[tuple[object, ...], str]()
    for name, action in sorted(ACTIONS.items()):
        noun = name.partition("_")[0]
        first.setdefault(("noun", "set" if noun in sets else noun), name)
        first.setdefault(("kind", *({"bulk", "export"} & {*name.split("_")}), action.question is None), name)
    return set(first.values())


def steps() -> dict[str, Any]:
    """Return action → function (site, page) that presses its button and looks into Redis."""
    found: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "steps").glob("*.py")):
        found |= importlib.import_module(f"tests.browser.steps.{path.stem}").STEPS
    return found


def test_each_action_has_a_step() -> None:
    assert set(steps()) == set(ACTIONS)


@pytest.mark.parametrize(  # the short form without JavaScript is tests/redis/web, which posts the forms
    "script", [True, pytest.param(False, marks=pytest.mark.full)], ids=["with JavaScript", "without JavaScript"]
)
@pytest.mark.parametrize(
    "action",
    [pytest.param(each, marks=[] if each in short_form() else pytest.mark.full) for each in sorted(ACTIONS)],
)
def test_the_button_does_what_it_says(action: str, script: bool, site: LiveSite, open_page: OpenPage) -> None:
    with open_page(java_script_enabled=script) as watched:
        steps()[action](site, watched)

        pressed = {PATHS.match(path, method="POST")[0] for path in watched.posted}
        assert action in pressed
