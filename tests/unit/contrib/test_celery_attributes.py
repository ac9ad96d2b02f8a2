"""Tasks, apps and results under libraries that look for private names on any object."""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, create_autospec, patch

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import Celery, Unsupported, shared_task
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import Fake, enqueued, fake

SHOP = types.ModuleType("shop_of_celery")


@pytest.fixture(autouse=True)
def _shop(registry: Registry, setup: Setup, kiq_fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a module with tasks, whose jobs stay in memory."""
    monkeypatch.setitem(sys.modules, SHOP.__name__, SHOP)

    @shared_task
    def charge(order: int) -> int:
        return order

    @shared_task(bind=True)
    def bound(self: Any, order: int) -> Any:
        return self.request

    vars(SHOP).update(app=Celery("shop"), charge=charge, bound=bound)
    with fake():
        yield


def objects() -> dict[str, Any]:
    return {
        "task": SHOP.charge,
        "bound task": SHOP.bound,
        "request": SHOP.bound(7),
        "app": SHOP.app,
        "conf": SHOP.app.conf,
        "result": SHOP.charge.delay(7),
        "eager result": SHOP.charge.apply((7,)),
    }


ALL = pytest.mark.parametrize("kind", ["task", "bound task", "request", "app", "conf", "result", "eager result"])


@ALL
@pytest.mark.parametrize("name", ["_is_coroutine_marker", "_pytestfixturefunction", "_repr_html_", "__wrapped_by__"])
def test_a_private_name_is_an_ordinary_absence(kind: str, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(objects()[kind], name)


@ALL
def test_another_name_is_refused(kind: str) -> None:
    with pytest.raises(Unsupported, match="backend_of_celery"):
        _ = objects()[kind].backend_of_celery


@ALL
@pytest.mark.parametrize("ask", [inspect.iscoroutinefunction, inspect.unwrap, callable, copy.copy, repr])
def test_libraries_may_ask_it(kind: str, ask: Callable[[Any], Any]) -> None:
    ask(objects()[kind])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.14 announces its end
def test_no_task_is_a_coroutine_function() -> None:
    assert not asyncio.iscoroutinefunction(SHOP.charge)


@pytest.mark.parametrize("name", ["charge", "bound", "app", "app.conf", "charge.delay", "app.send_task"])
@pytest.mark.parametrize("options", [{}, {"autospec": True}, {"spec": True}], ids=["plain", "autospec", "spec"])
def test_it_can_be_patched(name: str, options: dict[str, Any]) -> None:
    owner, _, attribute = f"{SHOP.__name__}.{name}".rpartition(".")
    before = getattr(SHOP, name) if "." not in name else None

    with patch(f"{owner}.{attribute}", **options) as patched:
        assert patched is not None

    assert before is None or getattr(SHOP, name) is before


@pytest.mark.parametrize("name", ["charge", "bound"])
def test_a_patched_task_says_what_was_pushed(name: str) -> None:
    with patch(f"{SHOP.__name__}.{name}", autospec=True) as task:
        getattr(SHOP, name).delay(7)

    task.delay.assert_called_once_with(7)
    assert enqueued() == []


@ALL
def test_a_mock_may_be_made_after_it(kind: str) -> None:
    found = objects()[kind]

    Mock(wraps=found)
    if kind != "result":  # a specification reads all attributes, and here that is a look into Redis
        Mock(spec=found)
        create_autospec(found)
