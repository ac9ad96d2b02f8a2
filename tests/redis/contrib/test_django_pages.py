"""The web pages in Django: who may come in, with which role, and that buttons work inside of Django's middleware."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.django_stage import django_project
from tests.kit import require_module
from tests.stored_jobs import fill_queue

__all__ = ["django_project"]

pytestmark = [pytest.mark.usefixtures("django_project"), pytest.mark.kiq("real")]

MOUNT = "/ops/jobs/"
TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')


@pytest.fixture
def database(django_project: Setup) -> Iterator[None]:
    """An empty database with the tables of Django."""
    require_module("werkzeug")
    from django.core.management import call_command
    from django.db import connections

    from kiqcluster.contrib.django import views

    views._application.cache_clear()
    call_command("migrate", verbosity=0)
    yield
    call_command("flush", verbosity=0, interactive=False)
    connections.close_all()


def visitor(name: str = "", *permissions: str, staff: bool = True, superuser: bool = False) -> Any:
    """Return a browser of a user."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    if name:
        user = User.objects.create(username=name, is_staff=staff, is_superuser=superuser)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
    return client


def press_pause(client: Any) -> Any:
    page = client.get(f"{MOUNT}queues/default").content.decode()
    token = TOKEN.search(page)
    data = {"csrf_token": unescape(token[1]) if token else ""}
    return client.post(f"{MOUNT}queues/default/pause", data, headers={"origin": "http://testserver"})


@pytest.mark.usefixtures("database")
def test_a_stranger_is_led_to_the_login() -> None:
    answer = visitor().get(f"{MOUNT}queues?sort=size")

    assert answer.status_code == 302
    assert answer.headers["Location"] == "/admin/login/?next=%2Fops%2Fjobs%2Fqueues%3Fsort%3Dsize"


@pytest.mark.usefixtures("database")
def test_who_is_no_staff_is_not_let_in() -> None:
    assert visitor("eve", "operate", staff=False).get(MOUNT).status_code == 403


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("permissions", "superuser", "role"),
    [((), False, "VIEW"), (("operate",), False, "OPERATE"), (("admin",), False, "ADMIN"), ((), True, "ADMIN")],
)
def test_permissions_decide_the_role(permissions: tuple[str, ...], superuser: bool, role: str) -> None:
    from django.contrib.auth.models import User

    from kiqcluster.contrib.django.views import role_of

    visitor("ada", *permissions, superuser=superuser)

    assert role_of(User.objects.get()) == role


@pytest.mark.usefixtures("database")
def test_staff_sees_pages_and_changes_nothing(store: Store) -> None:
    fill_queue(store, range(3))
    client = visitor("bob")

    assert "default" in client.get(f"{MOUNT}queues").content.decode()
    assert press_pause(client).status_code == 403
    assert store.call("EXISTS", "paused") == 0


@pytest.mark.usefixtures("database")
def test_an_operator_presses_a_button(store: Store) -> None:
    fill_queue(store, range(3))

    answer = press_pause(visitor("ada", "operate"))

    assert answer.status_code == 303
    assert answer.headers["Location"].startswith(MOUNT)
    assert store.call("SMEMBERS", "paused") == [b"default"]


@pytest.mark.usefixtures("database")
def test_a_form_of_another_site_changes_nothing(store: Store) -> None:
    client = visitor("ada", superuser=True)
    client.get(MOUNT)

    answer = client.post(f"{MOUNT}queues/default/pause", {}, headers={"origin": "http://elsewhere"})

    assert answer.status_code == 403
    assert store.call("EXISTS", "paused") == 0


@pytest.mark.usefixtures("database")
def test_the_pages_know_the_tasks(store: Store) -> None:
    from tests.apps.django_project.shop import tasks

    tasks.add.enqueue(1)

    assert "tests.apps.django_project.shop.tasks.add" in visitor("ada").get(f"{MOUNT}routes").content.decode()


@pytest.mark.usefixtures("database")
def test_permissions_are_made_once() -> None:
    from django.contrib.auth.models import Permission
    from django.core.management import call_command

    call_command("migrate", verbosity=0)

    names = Permission.objects.filter(content_type__app_label="kiqcluster").values_list("codename", flat=True)
    assert {"operate", "admin"} <= set(names)
    assert len([name for name in names if name in ("operate", "admin")]) == 2
