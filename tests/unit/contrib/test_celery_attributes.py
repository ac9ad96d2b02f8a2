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


@ALL
def test_for_those_that_ask_whether_it_is_there_it_is_absent(kind: str) -> None:
    found = objects()[kind]

    assert not hasattr(found, "to_json")
    assert getattr(found, "to_json", None) is None
    with pytest.raises(AttributeError, match="to_json"):
        _ = found.to_json


def test_a_task_without_the_verbs_of_kiqcluster_still_names_them() -> None:
    with pytest.raises(Unsupported, match=r"write charge\.job"):
        SHOP.charge.then(SHOP.bound)


def test_the_settings_are_a_mapping_of_those_that_were_set() -> None:
    conf = SHOP.app.conf
    conf.update(timezone="UTC", broker_connection_retry=True)

    assert "timezone" in conf
    assert "TIMEZONE" in conf
    assert "broker_url" not in conf
    assert 0 not in conf
    assert (conf.get("timezone"), conf.get("broker_url"), conf.get("broker_url", "none")) == ("UTC", None, "none")
    assert sorted(conf) == sorted(conf.keys()) == ["broker_connection_retry", "timezone"]
    assert dict(conf) == {**conf} == dict(conf.items()) == {"timezone": "UTC", "broker_connection_retry": True}
    assert set(conf.values()) == {"UTC", True}
    with pytest.raises(Unsupported, match=r"conf\.broker_url was not set here"):
        conf["broker_url"]
    with pytest.raises(Unsupported, match="kiqcluster -c"):
        conf["worker_concurrency"]
