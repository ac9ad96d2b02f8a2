"""Every action of the table: it works from a page of ours, and nothing changes in any other way.

An action that is added needs a scene (tests/redis/web/scenes); the other tests cover it then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from kiqcluster.api import Queue
from kiqcluster.errors import ReplyLost
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web import Role, User
from kiqcluster.web.routing import Action, table
from kiqcluster.web.views.set_kinds import SETS, SetKind
from tests.kit import wait_until
from tests.redis.web.site import ORIGIN, Scene, Site, scenes, snapshot
from tests.stored_jobs import fill_set

CHANGES = [each for each in table().actions.values() if each.is_change]
ASKING = [each for each in CHANGES if each.question is not None]
# The first action of each role, of those that ask and those that do not: it is refused in every way, by the code that
# refuses all of them.  The others are refused in those ways that a row of the table, or a view, could get wrong.
FIRSTS = {(each.role, each.question is None): each.name for each in reversed(CHANGES)}.values()
FROM_US = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
FORGERIES = {
    "no token": ({"csrf_token": None}, FROM_US),
    "a wrong token": ({"csrf_token": "A" * 64}, FROM_US),
    "a token that is no base64": ({"csrf_token": "é"}, FROM_US),
    "an empty token": ({"csrf_token": ""}, FROM_US),
    "another site": ({}, {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}),
    "another site of an old browser": ({}, {"Origin": "https://evil.example"}),
    "a sandboxed frame": ({}, {"Origin": "null"}),
    "another site of the same domain": ({}, {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"}),
    "another port of this host": ({}, {"Origin": f"{ORIGIN}:8080"}),
    "no origin": ({}, {}),
    "an origin that is no address": ({}, {"Origin": "http://[x"}),
    "a page whose address was typed": ({}, {"Origin": ORIGIN, "Sec-Fetch-Site": "none"}),
}
FEW = ("no token", "another site")
WAYS = [
    *(pytest.param(each, False, id=f"{each.name}-few") for each in CHANGES if each.name not in FIRSTS),
    *(
        pytest.param(each, True, id=f"{each.name}-all", marks=() if each.name in FIRSTS else pytest.mark.full)
        for each in CHANGES
    ),
]


@pytest.fixture(autouse=True)
def _own_setup(setup: Setup) -> None:
    """Have death handlers and limits of a test's own."""


def prepared(action: Action, store: Store) -> Scene:
    scene: Scene = scenes()[action.name](store)
    return scene


def refused(action: Action, scene: Scene, site: Site, *, in_all_ways: bool) -> Iterator[tuple[str, int, Any]]:
    """Send an action in ways that are refused; yield what the way is, the expected status and the answer."""
    path, token = site.path(action, scene), site.token()
    for way in FORGERIES if in_all_ways else FEW:
        fields, headers = FORGERIES[way]
        yield way, 403, site.post(path, {"csrf_token": token, **scene.form, **fields}, headers)

    for role in (role for role in Role if role < action.role):
        yield f"the role {role.name}", 403, Site(site.store, role).post(path, scene.form)

    data = {**scene.form, "csrf_token": token}
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS") if in_all_ways else ("GET",):
        yield method, 405, site.client.open(path, method=method, data=data, headers=FROM_US)

    if in_all_ways:
        yield from refused_to_others(path, scene, site)
        site.client.delete_cookie("kiqweb_token")
        yield "no cookie", 403, site.client.post(path, data={**data, "confirmed": "1"}, headers=FROM_US)


def refused_to_others(path: str, scene: Scene, site: Site) -> Iterator[tuple[str, int, Any]]:
    """Send an action from other browsers and users, and to pages that change nothing."""
    yield "the token of another browser", 403, site.post(path, {**scene.form, "csrf_token": Site(site.store).token()})
    names = iter(["eve", "ada"])
    shared = Site(site.store, authorize=lambda _: User(next(names), Role.ADMIN))
    yield "the token of another user", 403, shared.post(path, scene.form)
    users = iter([User("ada", Role.ADMIN), None])
    strange = Site(site.store, authorize=lambda _: next(users))
    yield "somebody who may not come in", 403, strange.post(path, scene.form)
    yield "pages that are read only", 403, Site(site.store, settings={"read_only": True}).post(path, scene.form)


def test_each_action_has_a_scene() -> None:
    assert {each.name for each in CHANGES} == set(scenes())


@pytest.mark.parametrize("action", CHANGES, ids=lambda each: each.name)
class TestEachAction:
    def test_works_from_a_page_of_ours_and_says_who_did_it(self, action: Action, site: Site) -> None:
        scene = prepared(action, site.store)
        before = snapshot(site.store)

        answer = site.post(site.path(action, scene), scene.form)

        assert answer.status_code == 303, answer.text
        wait_until(lambda: snapshot(site.store) != before, "a change, which the cluster may make")
        ((name, fields),) = site.events
        assert (name, fields["user"], fields["action"], fields["result"]) == ("web_action", "ada", action.name, "done")
        assert site.get(answer.headers["Location"]).status_code == 200


@pytest.mark.parametrize(("action", "in_all_ways"), WAYS)
def test_an_action_changes_nothing_in_any_other_way(action: Action, in_all_ways: bool, site: Site) -> None:
    """One after the other, on one scene: none of them may change it."""
    scene = prepared(action, site.store)
    before = snapshot(site.store)

    for way, status, answer in refused(action, scene, site, in_all_ways=in_all_ways):
        assert answer.status_code == status, way
        assert snapshot(site.store) == before, way
        if way in FORGERIES:
            assert site.events.pop()[1]["result"].startswith("not done"), way


@pytest.mark.parametrize(
    "action",
    [pytest.param(each, marks=() if each.name in FIRSTS else pytest.mark.full, id=each.name) for each in CHANGES],
)
def test_an_action_takes_the_token_from_a_header_too(action: Action, site: Site) -> None:
    scene = prepared(action, site.store)
    before = snapshot(site.store)

    headers = {**FROM_US, "X-CSRF-Token": site.token()}
    answer = site.post(site.path(action, scene), {**scene.form, "csrf_token": None}, headers)

    assert answer.status_code == 303
    wait_until(lambda: snapshot(site.store) != before, "a change, which the cluster may make")


@pytest.mark.parametrize(
    ("action", "role"),
    [(action, role) for action in CHANGES for role in Role if action.role <= role < Role.ADMIN],
    ids=lambda each: each.name,
)
def test_an_action_works_for_lower_roles_that_may(action: Action, role: Role, site: Site) -> None:
    scene = prepared(action, site.store)
    before = snapshot(site.store)

    answer = Site(site.store, role).post(site.path(action, scene), scene.form)

    assert answer.status_code == 303
    wait_until(lambda: snapshot(site.store) != before, "a change, which the cluster may make")


@pytest.mark.parametrize("kind", SETS, ids=lambda each: each.name)
def test_the_page_of_a_set_has_a_button_for_each_of_its_actions(kind: SetKind, site: Site) -> None:
    fill_set(site.store, kind.job_set(store=site.store).key, range(3))
    of_the_set = {name for name in table().actions if name.startswith(f"{kind.name}_")}

    page = site.get(f"/{kind.name}").text

    offered = {unescape(path).partition("?")[0] for path in re.findall(r'formaction="([^"]+)"', page)}
    paths = {name: site.path(table().actions[name], Scene()) for name in of_the_set}
    assert len(paths) >= 5
    assert {name for name, path in paths.items() if path not in offered} == set()


@pytest.mark.parametrize("action", ASKING, ids=lambda each: each.name)
def test_an_action_that_asks_changes_nothing_until_it_is_confirmed(action: Action, site: Site) -> None:
    scene = prepared(action, site.store)
    before = snapshot(site.store)

    answer = site.post(site.path(action, scene), {**scene.form, "confirmed": None})

    assert answer.status_code == 200
    assert 'name="confirmed"' in answer.text
    assert snapshot(site.store) == before
    assert site.events == []


def test_an_answer_never_leads_to_another_site(site: Site) -> None:
    for back in ("//evil.example", "https://evil.example", "/\\evil.example", "/\nx"):
        answer = site.post("/preferences", {"back": back, "kiqweb_theme": "dark"})

        assert answer.headers["Location"] == "/"


def test_language_and_theme_are_kept_by_the_browser(site: Site) -> None:
    answer = site.post("/preferences", {"back": "/queues", "kiqweb_theme": "dark", "kiqweb_language": "ja"})

    assert answer.headers["Location"] == "/queues"
    assert '<html lang="ja" dir="ltr" data-theme="dark">' in site.get("/queues").text
    assert site.events == []


def test_a_change_that_fails_is_in_the_audit_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.token()
    for error, words in ((ZeroDivisionError(), "in doubt: ZeroDivisionError"), (ReplyLost("gone"), "in doubt: gone")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(Queue, "pause", fail)
        form, headers = {"csrf_token": token}, FROM_US
        answer = site.client.post("/queues/x/pause", data=form, headers=headers, environ_base={"REMOTE_ADDR": "::1"})

        assert answer.status_code in (500, 503)
        assert site.events.pop()[1]["result"].startswith(words)


def test_a_change_during_which_redis_went_away_is_not_repeated_by_the_browser(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = site.token()

    def fail(*_: object) -> None:
        raise ReplyLost("gone")

    monkeypatch.setattr(Queue, "pause", fail)
    answer = site.client.post("/queues/x/pause", data={"csrf_token": token}, headers=FROM_US)

    assert answer.status_code == 503
    assert 'http-equiv="refresh"' not in answer.text
    assert "It may have been done or not." in answer.text


class TestPagesWithoutUsers:
    """They are open to this host, under its own names."""

    def pause(self, site: Site, origin: str) -> int:
        token = {"csrf_token": site.token()}
        return site.post("/queues/default/pause", token, {"Origin": origin}).status_code

    def test_a_change_from_a_page_of_this_host_is_made(self, store: Store) -> None:
        site = Site(store, settings={"hosts": ["jobs.example"]}, authorize=None)

        assert self.pause(site, ORIGIN) == 303
        assert Queue("default", store=store).is_paused()

    def test_a_change_through_a_proxy_that_hides_the_browser_s_name_is_not(self, store: Store) -> None:
        site = Site(store, settings={"hosts": ["jobs.example"]}, authorize=None)

        assert self.pause(site, "http://jobs.example") == 403
        assert not Queue("default", store=store).is_paused()

    def test_a_name_of_the_setting_sees_and_changes_nothing(self, store: Store) -> None:
        site = Site(store, settings={"hosts": ["jobs.example"]}, authorize=None)
        token = site.token()

        assert site.get("/queues", base_url="http://jobs.example").status_code == 403
        for origin in (ORIGIN, "http://jobs.example"):
            form, headers = {"csrf_token": token}, {"Origin": origin}
            answer = site.post("/queues/default/pause", form, headers, base_url="http://jobs.example")
            assert answer.status_code == 403
        assert not Queue("default", store=store).is_paused()
