"""Every action of the pages works with the rights of their user in the guide."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web.routing import Action
from tests.kit import RedisServer
from tests.redis.web.site import Site
from tests.redis.web.test_actions import CHANGES, prepared
from tests.rights import user_of_guide


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(program=shutil.which("redis-server")) as server:
        server.store().call(*user_of_guide("pages"))
        yield server


@pytest.mark.parametrize("action", CHANGES, ids=lambda each: each.name)
def test_an_action_is_done_with_the_rights_of_the_guide(action: Action, server: RedisServer, setup: Setup) -> None:
    admin = setup.store = server.store()
    admin.pipeline([("FLUSHALL",), ("ACL", "LOG", "RESET")])
    scene = prepared(action, admin)
    site = Site(Store(server.url.replace("//", "//pages:pw@")))

    answer = site.post(site.path(action, scene), scene.form)

    assert answer.status_code == 303, answer.text
    assert [fields["result"] for _, fields in site.events] == ["done"]
    assert admin.call("ACL", "LOG") == []
