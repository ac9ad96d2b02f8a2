"""The keys by which pages name jobs: nobody without the secret can try out guesses of arguments that are hidden."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from kiqcluster.web import Role
from kiqcluster.web.security.entry_keys import EntryKeys
from kiqcluster.web.security.guard import SharedSecret
from kiqcluster.web.settings import read_settings
from tests.kit import ManualClock, RedisServer
from tests.redis.web.scenes.limits import park
from tests.redis.web.site import Site, entry_keys
from tests.stored_jobs import NOW, add_entries, entry_numbers, fill_queue, fill_set, job, queued_numbers

KEYS = re.compile(r'name="key" value="([^"]+)"')
NEXT = re.compile(r'rel="next" href="([^"]+)"')
WORD = re.compile(r"[0-9A-Za-z_-]{8,}")
SECRET = "s" * 32

pytestmark = pytest.mark.usefixtures("setup")


def digests(raw: bytes) -> Iterator[str]:
    """Yield what somebody can compute who guesses a payload."""
    for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s"):
        yield hashlib.new(name, raw, usedforsecurity=False).hexdigest()


def holds(text: str, raw: bytes) -> list[str]:
    """Return what a page has of the digests of a payload: 8 characters are enough to try out guesses."""
    known = {digest[:8] for digest in digests(raw)}
    words = [word for word in WORD.findall(unescape(text)) if word[:8] in known]
    return [*words, *(each for each in known if each in text)]


@pytest.fixture
def secrets(store: Store) -> bytes:
    """A job with an argument that is hidden, wherever jobs are."""
    raw = job(1, args=["4111 1111 1111 1111"], idempotency_key=f"Job:{hashlib.sha256(b'[1]').hexdigest()}")
    fill_queue(store, range(60))
    store.call("LPUSH", "queue:default", *[raw] * 60)
    store.call("RPUSH", "queue:default", *[raw] * 60)
    for key in ("retry", "schedule", "dead", store.keys.dropped):
        add_entries(store, key, *((NOW + number, raw) for number in range(3)))
        add_entries(store, key, *((NOW + 0.5, job(number)) for number in range(60)))
        add_entries(store, key, *((NOW + 0.25 + number / 1e3, raw + b" " * number) for number in range(60)))
    park(store, "Sync", [raw])
    store.call("SET", store.keys.lock(f"Job:{hashlib.sha256(b'[1]').hexdigest()}"), "j1", "EX", 60)
    return raw


@pytest.mark.parametrize("role", [Role.VIEW, Role.ADMIN], ids=["view", "admin"])
def test_no_page_has_what_a_guess_could_be_tried_with(store: Store, secrets: bytes, role: Role) -> None:
    site = Site(store, role)

    for path, answer in site.crawl(("/", "/limits/concurrency/Sync", "/limits/locks"), most=120).items():
        assert holds(answer.text, secrets) == [], path
        assert holds(answer.text, b"[1]") == [], path
        assert holds(path, secrets) == [], path


def test_who_may_not_see_arguments_finds_no_lock_by_a_guess(store: Store) -> None:
    name = f"Job:{hashlib.sha256(b'[1]').hexdigest()}"
    other = f"Job:{hashlib.sha256(b'[2]').hexdigest()}"
    store.pipeline([("SET", store.keys.lock(each), "j1", "EX", 60) for each in (name, other)])
    viewer, admin = Site(store, Role.OPERATE), Site(store, Role.ADMIN)

    assert viewer.get(f"/limits/locks?q={name}").text.count('class="job"') == 2
    assert viewer.get(f"/limits/locks?q={name[:9]}").text.count('class="job"') == 2
    assert admin.get(f"/limits/locks?q={name}").text.count('class="job"') == 1


def test_a_key_of_one_process_works_in_another_one_and_after_a_restart(store: Store) -> None:
    fill_set(store, "dead", range(3))
    fill_queue(store, range(60))
    shown, other = Site(store), Site(store)
    dead, queue = KEYS.findall(shown.get("/dead").text), shown.get("/queues/default").text
    following = NEXT.search(queue)

    other.post("/dead/delete", {"key": dead[1]})
    other.post("/queues/default/delete", {"key": KEYS.findall(queue)[2]})
    again = KEYS.findall(Site(store).get("/dead").text)

    assert again == [dead[0], dead[2]]
    assert len(entry_numbers(store, "dead")) == 2
    assert 2 not in queued_numbers(store)
    assert following is not None
    assert "j25" in other.get(unescape(following[1])).text


def test_processes_that_begin_at_once_agree(store: Store) -> None:
    ones = [SharedSecret("", SystemClock()) for _ in range(5)]

    found = {one.of(store) for one in ones}

    assert len(found) == 1
    assert found == {store.call("GET", store.keys.web_secret)}
    assert len(found.pop()) >= 32


def test_processes_agree_again_after_redis_was_emptied(store: Store) -> None:
    clock = ManualClock()
    first, other = SharedSecret("", clock), SharedSecret("", clock)
    before = first.of(store)
    assert other.of(store) == before

    store.call("FLUSHDB")
    clock.time += 61
    after = {each.of(store) for each in (first, other, SharedSecret("", clock))}

    assert after == {before}


def test_a_configured_secret_is_used_and_redis_has_none(store: Store) -> None:
    fill_set(store, "dead", range(3))
    one, other = Site(store, settings={"secret": SECRET}), Site(store, settings={"secret": SECRET + "t"})

    keys = KEYS.findall(one.get("/dead").text)

    assert store.call("EXISTS", store.keys.web_secret) == 0
    assert keys == KEYS.findall(Site(store, settings={"secret": SECRET}).get("/dead").text)
    assert not set(keys) & set(KEYS.findall(other.get("/dead").text))


def test_pages_are_shown_while_redis_is_full(own_server: RedisServer) -> None:
    store = own_server.store()
    fill_set(store, "dead", range(3))
    store.call("CONFIG", "SET", "maxmemory", "1")
    site = Site(store)

    keys = KEYS.findall(site.get("/dead").text)

    assert len(keys) == 3
    assert site.get(f"/dead/{keys[0]}").status_code == 200
    store.close()


@pytest.mark.parametrize("kind", ["HSET", "SADD", "RPUSH"])
def test_a_key_of_another_type_in_its_place_breaks_no_page(store: Store, kind: str) -> None:
    fill_set(store, "dead", range(3))
    store.call(kind, store.keys.web_secret, "a", *(["b"] if kind == "HSET" else []))
    site = Site(store)

    keys = KEYS.findall(site.get("/dead").text)

    assert site.get(f"/dead/{keys[0]}").status_code == 200


@pytest.mark.parametrize("secret", ["short", 7, ["x" * 40]])
def test_a_secret_that_is_none_is_refused(secret: Any) -> None:
    with pytest.raises(UsageError, match="secret"):
        read_settings({"secret": secret})


def test_settings_do_not_show_it() -> None:
    assert SECRET not in repr(read_settings({"secret": SECRET}))


def test_what_is_sealed_is_opened_by_the_same_secret_only(store: Store) -> None:
    ours, text = entry_keys(store), "7-" + "a" * 40
    sealed = ours.seal(text)

    assert ours.unseal(sealed) == text
    assert ours.seal(text) == sealed
    assert EntryKeys(b"another").unseal(sealed) == ""
    for at in range(len(sealed) - 1):
        forged = sealed[:at] + ("B" if sealed[at] == "A" else "A") + sealed[at + 1 :]
        assert ours.unseal(forged) == ""
    for odd in ("", "x", "é", "\ud800", "=" * 9, "A" * 100_000, text):
        assert ours.unseal(odd) == ""
