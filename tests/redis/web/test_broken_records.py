"""One bad record among good ones: whatever a page reads is broken in many ways, and the page shows the rest.

Which keys a page reads is found by looking at its commands, so pages and keys that are added are broken, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kiqcluster.api import DeadSet, StrikeSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Connection, Store
from tests.fake_supervisor import publish
from tests.redis.web import fleet
from tests.redis.web.features import BATCH, add_features
from tests.redis.web.site import Site
from tests.stored_jobs import NOW, add_entries, fill_queue, job

WORKER, OTHER = "app:101:y", "app:102:z"
STARTS = ("/", "/jobs/j1", "/bulk", "/clusters", "/busy", f"/processes/{WORKER}", f"/batches/{BATCH}")
MOST_PAGES = 80
MAKERS: dict[bytes, tuple[Any, ...]] = {  # type of a key → how one is made
    b"string": ("SET", "x"),
    b"hash": ("HSET", "x", "x"),
    b"list": ("RPUSH", "x"),
    b"set": ("SADD", "x"),
    b"zset": ("ZADD", 1, "x"),
}
WHOLE: dict[str, str] = {  # page → the key that is all of it: of another type, the page names it and shows nothing else
    "bulk": "kiq:bulk:",  # and more
    "bulks": "kiq:bulks",
    "cron": "kiq:cron",
    "cron_entry": "kiq:cron",
    "queue_export": "queue:default",
    "rates": "kiq:rates",
    "strikes": "kiq:strikes",
    "batch": f"kiq:batch:{BATCH}",
    "batches": "kiq:batches",
    **dict.fromkeys(("dead", "dead_entry", "dead_export"), "dead"),
    **dict.fromkeys(("retries", "retries_entry", "retries_export"), "retry"),
    **dict.fromkeys(("scheduled", "scheduled_entry", "scheduled_export"), "schedule"),
    **dict.fromkeys(("dropped", "dropped_entry", "dropped_export"), "kiq:dropped"),
    **dict.fromkeys(("busy", "clusters", "cluster", "process", "queue", "routes"), "processes"),
}
LOCKS = b"kiq:lock:"
FEW = {  # tried in the short form
    "nothing": b"",
    "bytes": b"\x00\xff\xfe\x80|p",
    "a word": b"x",
    "deep": b"[" * 100_000,
    "digits of others": "²".encode(),
    "enormous": b"9" * 5_000,
}
MANY = FEW | {
    "half a pair": b'"\\ud800"',
    "no number": b"nan",
    "no end": b"inf",
    "before all": b"-inf",
    "beyond floats": b"1e999",
    "negative": b"-7",
    "a fraction": b"0.5",
    "more than a counter": b"9" * 25,
    "as far as a counter goes": b"9223372036854775807",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a list of odd things": b'[null, {}, [[]], 1e999, "\\ud800"]',
    "deep objects": b'{"a":' * 50_000,
    "long": b"<b>" * 30_000,
    "lines": b"\n\n\x00\n",
    "separators": b"||::// \x00",
}
LEAVES: tuple[Any, ...] = (
    *(None, True, -7, 0.5, 1e308, 10**400, float("inf"), "x", "²", "\ud800", "\0"),
    *([], {}, [None, {}, "\ud800", 10**400], {"\ud800": None, "a": [10**400]}),
)
MAX_DEPTH = 4
TTL_SECONDS = 3_600  # of each key; a process without one is not shown


def is_read(page: str, key: bytes) -> bool:
    """Return whether a page whose commands have this word reads the key itself: only `locks` reads locks."""
    return (page == "locks" or not key.startswith(LOCKS)) and (page, key[-6:]) != ("batches", b":ended")


def is_whole(page: str, key: bytes) -> bool:
    """Return whether a key is all of a page."""
    whole = WHOLE.get(page, "").encode()
    return key == whole or (whole.endswith(b":") and key.startswith(whole))


class WatchedConnection(Connection):
    """Notes the words of its commands."""

    words: set[bytes] | None = None

    def begin(self, commands: Any) -> None:
        if WatchedConnection.words is not None:
            texts = (word for command in commands for word in command if isinstance(word, str | bytes))
            WatchedConnection.words |= {
                word.encode(errors="surrogatepass") if isinstance(word, str) else word for word in texts
            }
        super().begin(commands)


class WatchedStore(Store):
    def connection(self, *arguments: Any, **options: Any) -> Connection:
        made = super().connection(*arguments, **options)
        made.__class__ = WatchedConnection
        return made


class Filled:
    """The pages, with something good on each; none is remembered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        fill(store)
        self.site = Site(store)

    def get(self, path: str) -> Any:
        self.site.app._shelf._values.clear()
        return self.site.get(path)


class Broken(Filled):
    """The same, and the keys that each page reads."""

    def __init__(self, store: Store) -> None:
        store.__class__ = WatchedStore
        super().__init__(store)
        self.paths: dict[str, str] = {}  # name of a page → its path
        adapter = self.site.app.routes.url_map.bind("localhost")
        for path, answer in self.site.crawl(STARTS, most=MOST_PAGES).items():
            assert answer.status_code == 200, path
            self.paths.setdefault(adapter.match(path.partition("?")[0], method="GET")[0], path)
        self.reads = {name: self._words(path) for name, path in self.paths.items()}
        self.keys: list[bytes] = sorted(store.call("KEYS", "*"))
        self.dumps = dict(zip(self.keys, store.pipeline([("DUMP", key) for key in self.keys]), strict=True))

    def _words(self, path: str) -> set[bytes]:
        words: set[bytes] = set()
        WatchedConnection.words = words
        self.get(path)
        WatchedConnection.words = None
        return words

    def readers(self, key: bytes) -> list[str]:
        """Return the pages that read a key; all for a lock, which they find by its name."""
        return [name for name, words in self.reads.items() if key in words or key.startswith(LOCKS)]

    def check(self, key: bytes, what: str, commands: list[Any], *, is_type: bool = False) -> None:
        """Break a key, look at the pages that read it, and mend it."""
        with self.store.borrowed() as connection:
            connection.exchange_each([*commands, ("EXPIRE", key, TTL_SECONDS)])
        for page in self.readers(key):
            answer = self.get(self.paths[page])
            if not (is_type and is_whole(page, key)):
                assert answer.status_code in (200, 404), f"{page}: {key[:60]!r} {what}: {answer.text[-300:]}"
            if is_type and is_read(page, key):
                assert key.decode() in answer.text, f"{page} does not name {key!r}"
        self.store.call("RESTORE", key, TTL_SECONDS * 1_000, self.dumps[key], "REPLACE")


def fill(store: Store) -> None:
    """Have something good on each page."""
    keys, now = store.keys, SystemClock.now()
    add_features(store)
    add_features(store, "Beta")
    rolled = {"state": "failed", "error": "e", "done": 1, "of": 2, "ended_at": now}
    fleet.publish_cluster(store, "app:100:x", WORKER, OTHER, roll=rolled, quiet_by="ada", lease_remaining=5.0)
    publish(store, "ruby:7:q", labels=[])
    fleet.running(store, WORKER, 1, 2)
    fleet.run(store, OTHER, job(3))
    fleet.tell_stacks(store, WORKER, "--- a\nx\n")
    store.call("SET", keys.progress("j1"), '{"done":1,"total":3}')
    store.call("HSET", keys.iteration("j1"), "ex", "2", "c", "5", "rt", "1.5")
    store.call("LPUSH", keys.result("j1"), json.dumps({"state": "done", "result": 1, "at": now}))
    store.call("ZADD", keys.cancelled, now, "j1")
    strike = StrikeSet(store=store).add("defer", 600, name="Job")
    StrikeSet(store=store).add("drop", 600, name="Mail", arguments={"0": 1})
    store.call("HSET", keys.struck, strike.id, 5)
    fill_queue(store, range(3))
    fill_queue(store, range(3), "mailers")
    store.call("SADD", keys.paused, "mailers")
    for key in (keys.retry, keys.schedule, keys.dead, keys.dropped):
        failed = job(1, error_class="E", error_message="m", failed_at=NOW, retry_count=1)
        add_entries(store, key, (NOW, failed), (NOW - 1, job(2, then=[{"class": "Next", "args": [1]}])))
    for verb in ("kill", "retry"):
        ask(store, DeadSet, verb, Selection(name="A"), by="ada")
    store.call("SET", keys.deploy, "ada@host:1", "EX", 600)
    store.call("MSET", keys.processed, 5, keys.failed, 3)
    for key in store.call("KEYS", "*"):
        store.call("EXPIRE", key, TTL_SECONDS)


def broken_json(raw: bytes) -> Iterator[str]:
    """Yield JSON with one value of it replaced, or left out."""
    try:
        whole = json.loads(raw)
    except (ValueError, RecursionError):
        return

    def walk(part: Any, depth: int) -> Iterator[str]:
        for at, value in list(part.items() if isinstance(part, dict) else enumerate(part)):
            for leaf in LEAVES:
                part[at] = leaf
                yield json.dumps(whole).replace("Infinity", "1e999")
            if isinstance(part, dict):
                del part[at]
                yield json.dumps(whole)
            part[at] = value
            if isinstance(value, dict | list) and depth:
                yield from walk(value, depth - 1)

    if isinstance(whole, dict | list):
        yield from walk(whole, MAX_DEPTH)


def further(store: Store, key: bytes, values: Mapping[str, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what makes bad records of a key, beside its good ones."""
    kind = store.call("TYPE", key)
    for name, value in values.items():
        if kind == b"hash":
            good = store.call("HVALS", key)[0]
            yield f"+ {name}", [("HSET", key, value, good, value + b"|p", good, b"why:" + value, value, "odd", value)]
        elif kind == b"list":
            yield f"+ {name}", [("LPUSH", key, value)]
        elif kind == b"set":
            good = store.call("SRANDMEMBER", key)
            yield f"+ {name}", [("SADD", key, value, good + value, value + good)]
        elif kind == b"zset":
            (good,) = store.call("ZRANGE", key, 0, 0)
            yield f"+ {name}", [("ZADD", key, repr(SystemClock.now() + 5), value, "inf", good + value)]


def all_further(store: Store, key: bytes, values: Mapping[str, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what makes all of these bad records at once."""
    commands = [command for _, each in further(store, key, values) for command in each]
    if commands:
        yield "+ all", commands


def replaced(store: Store, key: bytes, values: Mapping[str, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what puts something else into the place of a good value."""
    kind = store.call("TYPE", key)
    if kind == b"string":
        yield from ((name, [("SET", key, value)]) for name, value in values.items())
    elif kind == b"hash":
        fields = store.call("HKEYS", key)
        for name, value in values.items():
            yield f"all fields {name}", [("HSET", key, *(word for field in fields for word in (field, value)))]
            if values is MANY:
                yield from ((f"{field!r} {name}", [("HSET", key, field, value)]) for field in fields)
    elif kind == b"list":
        yield from ((name, [("LSET", key, 0, value)]) for name, value in values.items())


def with_broken_json(store: Store, key: bytes) -> Iterator[tuple[str, list[Any]]]:
    """Yield what breaks one value within the JSON of a key."""
    kind = store.call("TYPE", key)
    if kind == b"hash":
        flat = store.call("HGETALL", key)
        for field, raw in zip(flat[::2], flat[1::2], strict=True):
            yield from ((text[:200], [("HSET", key, field, text)]) for text in broken_json(raw))
    else:
        read = {b"string": ("GET", key), b"list": ("LINDEX", key, 0), b"zset": ("ZRANGE", key, 0, 0)}
        write = {b"string": ("SET", key), b"list": ("LSET", key, 0), b"zset": ("ZADD", key, NOW)}
        if kind in read:
            reply = store.call(*read[kind])
            raw = reply[0] if isinstance(reply, list) else reply
            yield from ((text[:200], [(*write[kind], text)]) for text in broken_json(raw))


@pytest.fixture
def filled(store: Store, setup: object) -> Filled:
    return Filled(store)


@pytest.fixture
def broken(store: Store, setup: object) -> Broken:
    return Broken(store)


def test_each_page_is_looked_at(broken: Broken) -> None:
    lacking = set(broken.site.app.routes.pages) - set(broken.paths)

    assert not lacking
    assert sum(bool(broken.readers(key)) for key in broken.keys) > 30


@pytest.mark.parametrize(  # each key has at least one other type in the short form
    "kind",
    [
        pytest.param(each, marks=() if each in (b"string", b"hash") else pytest.mark.full, id=each.decode())
        for each in MAKERS
    ],
)
def test_a_key_of_another_type_leaves_the_rest_of_each_page(broken: Broken, kind: bytes) -> None:
    verb, *words = MAKERS[kind]

    for key in broken.keys:
        if broken.store.call("TYPE", key) != kind:
            broken.check(key, f"is a {kind.decode()}", [("DEL", key), (verb, key, *words)], is_type=True)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("breaking", "values"),
    [
        pytest.param(all_further, FEW, id="few more at once"),
        pytest.param(replaced, FEW, id="few replaced"),
        pytest.param(further, MANY, id="many more", marks=pytest.mark.full),
        pytest.param(replaced, MANY, id="many replaced", marks=pytest.mark.full),
    ],
)
def test_a_bad_record_leaves_the_rest_of_each_page(broken: Broken, breaking: Any, values: Mapping[str, bytes]) -> None:
    for key in broken.keys:
        for what, commands in breaking(broken.store, key, values):
            broken.check(key, what, commands)


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_a_bad_value_within_json_leaves_the_rest_of_each_page(broken: Broken) -> None:
    for key in broken.keys:
        for what, commands in with_broken_json(broken.store, key):
            broken.check(key, what, commands)


@pytest.mark.parametrize(
    ("path", "good", "commands"),
    [
        ("/cron", "nightly", [("DEL", "cron_job:default:Beta"), ("SET", "cron_job:default:Beta", "x")]),
        ("/cron", "nightly", [("HSET", "cron_job:default:Beta", "retry", "²")]),
        ("/cron", "nightly", [("HSET", "cron_job:default:Beta", "args", b"[" * 100_000)]),
        ("/batches", BATCH, [("DEL", f"kiq:batch:{'b' * 24}"), ("SET", f"kiq:batch:{'b' * 24}", "x")]),
        ("/limits", "Acme::Report", [("HSET", "kiq:held:app-2:17:cd", "t1:default", b"[" * 100_000)]),
    ],
    ids=["a record of sidekiq-cron", "its retries", "its arguments", "a batch", "who holds a place"],
)
def test_the_good_record_beside_a_bad_one_is_shown(filled: Filled, path: str, good: str, commands: list[Any]) -> None:
    filled.store.pipeline(commands)

    answer = filled.get(path)

    assert answer.status_code == 200
    assert good in answer.text


def test_a_class_is_shown_where_the_marks_of_a_day_are_broken(filled: Filled) -> None:
    for key in filled.store.call("KEYS", "*-marks"):
        filled.store.pipeline([("DEL", key), ("SET", key, "x")])

    answer = filled.get("/classes/Acme::Report")

    assert answer.status_code == 200
