"""Whatever lies in Redis, every page is shown, and a browser runs none of it.

Pages are found by their links, so those that are added are looked at too.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from kiqcluster.api import DeadSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from kiqcluster.web.routing import table
from tests.fake_supervisor import publish
from tests.interop.bad_input import CASES
from tests.redis.web import fleet
from tests.redis.web.features import BATCH, add_features, add_limits
from tests.redis.web.site import LOCAL, Site, active, controls
from tests.stored_jobs import NOW, add_entries

TEXTS = {
    "script": "<script>alert(1)</script>",
    "quotes": "\"'><img src=x onerror=alert(1)>",
    "template": "{{ 7 * 7 }}{% raw %}<svg/onload=alert(1)>",
    "address": "javascript:alert(1)",
    "NUL": "a\x00b\x1b[31mc",
    "direction": "evil\u202egnp.exe\u2066",
    "half a pair": "\ud800x",
    "long": "<b>" * 140_000,
    "format": "%(count)s %s {0} %",
    "closing": "</textarea></title></script>--><script>alert(1)</script>",
}
FIELDS: dict[str, Callable[[str], Any]] = {
    "class": lambda text: text,
    "display_class": lambda text: text,
    "wrapped": lambda text: text,
    "jid": lambda text: text,
    "queue": lambda text: text,
    "args": lambda text: [text, {text: [text]}],
    "error_class": lambda text: text,
    "error_message": lambda text: text,
    "error_backtrace": lambda text: [text, text],
    "tags": lambda text: [text],
    "retry_queue": lambda text: text,
    "created_at": lambda text: text,
}


BAD_INPUT = [case.raw for case in CASES.values()]
GROUP, NAME_GROUP = 14, 7  # payloads, and names of queues, that pages show at once
ENTRY_PAGES = ("scheduled_entry", "retries_entry", "dead_entry", "dropped_entry")
OFTEN = (*ENTRY_PAGES, *(each.removesuffix("_entry") for each in ENTRY_PAGES))  # a set of large jobs has many pages


def together_and_alone(names: Collection[str]) -> list[Any]:
    """Return parameters: all the names, for the short form, and each alone."""
    alone = [pytest.param((each,), marks=pytest.mark.full, id=each) for each in names]
    return [pytest.param(tuple(names), id="together"), *alone]


def payload(**fields: Any) -> bytes:
    return json.dumps({"class": "Acme", "args": [1], "jid": "a1", "queue": "default", **fields}).encode()


def mixed(first: int) -> bytes:
    """Return a payload with a text in each field, another one in each; all `first` together have each in each."""
    texts = [*TEXTS.values()]
    return payload(**{field: make(texts[(first + at) % len(texts)]) for at, (field, make) in enumerate(FIELDS.items())})


ALONE: dict[str, bytes] = {
    **{
        f"{field}: {name}": payload(**{field: make(text)})
        for field, make in FIELDS.items()
        for name, text in TEXTS.items()
    },
    **{f"a key: {name}": payload(**{text: text}) for name, text in TEXTS.items()},
}
PAYLOADS: dict[str, bytes] = {
    **{f"a text in each field: {first}": mixed(first) for first in range(len(TEXTS))},
    "a text as each key": payload(**{text: text for text in TEXTS.values()}),
    "as deep as it goes": payload().replace(b"[1]", b"[" * 900 + b"]" * 900),
    "an enormous number": payload().replace(b"[1]", b"[" + b"9" * 100_000 + b"]"),
    "a number beyond floats": payload().replace(b"[1]", b"[1e999,-1e999]"),
    "an enormous retry count": payload().replace(b"[1]", b'[1],"retry_count":' + b"9" * 5_000),
    "a thousand keys": payload(**{f"k{number}": number for number in range(1_000)}),
    "many tags": payload(tags=["<i>"] * 5_000),
}
TOGETHER = [*PAYLOADS.values(), *BAD_INPUT]  # shown on one page
NAMES = [*TEXTS.values(), "", "a/b", "..", ".", "~x", "a b", "?q=1#f", "é", "a%2Fb", "%00", "x/pause"]
SIMILAR = {
    TEXTS[name] for name in ("template", "address", "direction", "format", "closing")
}  # to those of the short form
SOME_NAMES = [*(TEXTS[name] for name in ("script", "quotes", "half a pair", "long")), "", "a/b", ".."]
UNLINKED = (TEXTS["long"],)  # no path can hold it
SOME_TEXTS = [pytest.param(name, marks=pytest.mark.full if text in SIMILAR else ()) for name, text in TEXTS.items()]
MOST_PAGES = 40  # looked at with each of them
# Pages that show jobs, features, or marks of processes; each other page is looked at with the first texts only.
JOBS = (*OFTEN, *(f"{each}_export" for each in ("queue", *OFTEN[4:])), "queue", "busy", "job", "limits", "limit")
FEATURES = ("classes", "job_class", "cron", "cron_entry", "batches", "batch", "limits", "limit", "rates", "locks")
MARKS = ("dashboard", "classes", "job_class", "clusters", "cluster", "process", "strikes", "busy", "job")
SCORES = [0.0, -1.5, 1e30, float("inf"), float("-inf"), NOW, 1e15]


def test_there_are_enough_of_them() -> None:
    assert len(ALONE) + len(PAYLOADS) + len(CASES) + len(NAMES) + len(SCORES) >= 200


@pytest.fixture
def watched(site: Site) -> Site:
    publish(site.store, "<b>host:1:x", queues=["default", "<script>"])
    add_features(site.store)
    fleet.publish_cluster(site.store, "<i>app:100:x", "<i>app:101:y")
    add_entries(site.store, "dead", (NOW - 1, payload(jid="plain", queue="")))
    bulk = ask(site.store, DeadSet, "kill", Selection(name=TEXTS["script"], error=TEXTS["quotes"]), by=TEXTS["script"])
    words = [word for text in TEXTS.values() for word in (b"why:" + text.encode(errors="surrogatepass"), 7)]
    site.store.call("HSET", site.store.keys.bulk(bulk), "state", "failed", "error", TEXTS["template"], *words)
    return site


def add(store: Store, *payloads: bytes) -> None:
    """Have jobs with these payloads at each place that pages show."""
    store.call("SADD", "queues", "default")
    for raw in payloads:
        store.call("LPUSH", "queue:default", raw)
        for key in ("retry", "schedule", "dead", store.keys.dropped):
            add_entries(store, key, (NOW, raw))
        add_limits(store, "Acme::Report", raw)
    fleet.run(store, "<i>app:101:y", *payloads)


def check(
    site: Site, most: int = MOST_PAGES, often: Collection[str] | None = None, only: Collection[str] | None = None
) -> Counter[str]:
    """Look at all pages; return the names of those that were seen, and how many of each.  often, only: as in crawl."""
    return named(site, site.crawl(most=most, often=often, only=only))


def named(site: Site, answers: Mapping[str, TestResponse]) -> Counter[str]:
    """Check pages, path → answer; return the names of those, and how many there are of each."""
    adapter = site.app.routes.url_map.bind("localhost")
    seen: Counter[str] = Counter()
    for path, answer in answers.items():
        assert answer.status_code == 200, f"{path}: {answer.text[-400:]}"
        text = answer.data.decode()
        assert active(text) == [], path
        assert list(controls(text)) == [], path
        assert len(text) < 400_000 or answer.mimetype != "text/html", path
        seen[adapter.match(path.partition("?")[0], method="GET")[0]] += 1
    return seen


@pytest.mark.full
@pytest.mark.parametrize("name", [*PAYLOADS, *ALONE])
def test_a_hostile_payload_is_shown_and_runs_nothing(watched: Site, name: str) -> None:
    add(watched.store, {**PAYLOADS, **ALONE}[name])

    seen = check(watched)

    assert set(seen) == set(table().pages)


@pytest.mark.parametrize("first", range(0, len(TOGETHER), GROUP))
def test_hostile_payloads_and_bad_input_are_shown_and_run_nothing(watched: Site, first: int) -> None:
    group = TOGETHER[first : first + GROUP]
    add(watched.store, *group)

    seen = check(watched, MOST_PAGES * 4, often=OFTEN, only=None if first == 0 else {"dashboard", *JOBS})

    assert set(seen) >= set(table().pages if first == 0 else JOBS)
    assert all(seen[page] >= len(group) for page in ENTRY_PAGES), seen


@pytest.mark.parametrize("first", range(0, len(NAMES), NAME_GROUP))
def test_a_hostile_name_of_a_queue_is_shown_and_leads_to_its_jobs(site: Site, first: int) -> None:
    names, store = NAMES[first : first + NAME_GROUP], site.store
    raw_names = {name: name.encode(errors="surrogatepass") for name in names}
    publish(store, "app-1:1:x", queues=["default"])
    for raw_name in raw_names.values():
        store.call("SADD", "queues", raw_name)
        store.call("SADD", store.keys.paused, raw_name)
        store.call("LPUSH", b"queue:" + raw_name, payload())

    seen = site.crawl(most=MOST_PAGES * 3, often=("queues", "queue"))

    named(site, seen)
    build = site.app.routes.url_map.bind("localhost").build
    for name, raw_name in raw_names.items():
        path = build("queue", {"queue": raw_name.decode(errors="replace")})
        assert (path in seen) == (name not in UNLINKED), name


@pytest.mark.parametrize(  # each page of a class, a limit and so on; the queues above have the other names
    "name",
    [pytest.param(each, marks=() if each in SOME_NAMES else pytest.mark.full, id=ascii(each)[:30]) for each in NAMES],
)
def test_a_hostile_name_of_a_class_a_batch_an_entry_or_a_limit_is_shown(site: Site, name: str) -> None:
    add_features(site.store, name)

    seen = check(site, only=None if name == TEXTS["script"] else FEATURES)

    pages = {"classes", "cron", "cron_entry", "batches", "batch", "limits", "rates", "locks"}
    assert pages | (set() if name in UNLINKED else {"job_class", "limit"}) <= set(seen)


def test_hostile_figures_of_features_are_shown(watched: Site) -> None:
    store, minute = watched.store, datetime.fromtimestamp(SystemClock.now(), UTC)
    huge = "9" * 300
    store.call("HSET", store.keys.executions(minute), "Big|p", huge, "Big|f", 2**62, "Big|ms", 2**62, "Odd|p", -5)
    store.call("HSET", store.keys.executions(minute), "Fails|p", 1, "Fails|f", 7)
    store.call("HSET", store.keys.limits, "Big", huge, "Big|override", f"{huge} {huge}")
    store.call("HSET", store.keys.rate("big"), "limit", f"leaky_bucket {huge} 1e-300")
    store.call("ZADD", store.keys.rates, 9e18, "big")
    store.call("ZADD", store.keys.cron_ticks, "-inf", "nightly")
    line = json.dumps({"jid": "x", "tick": 10**400, "at": -(10**400)})
    store.call("LPUSH", store.keys.cron_history("nightly"), line)
    store.call(
        "HSET", store.keys.batch(BATCH), "total", "1", "finish", "999999999", "created_at", "1e308", "expected", "5"
    )

    assert {"classes", "job_class", "limits", "rates", "cron_entry", "batch"} <= set(check(watched))


STATES: dict[str, Callable[[str], dict[str, Any]]] = {
    "quiet_by": lambda text: {"quiet_by": text, "lease_remaining": 1e999},
    "version": lambda text: {"version": text},
    "needs": lambda text: {"restart_needed": text, "reload_needed": text, "roll_needed": text},
    "roll": lambda text: {"roll": {"state": "failed", "error": text, "done": text, "of": 10**400, "ended_at": text}},
    "odd roll": lambda text: {"roll": {"state": [text], "of": -1, "done": 1e300}, "reload": {"state": {"a": text}}},
    "rolling": lambda text: {"roll": {"state": "rolling", "done": 1, "of": 2, "waits_for": [text]}},
    "children": lambda text: {
        "children": [{"slot": 10**30, "pid": 101, "state": text, "release": text, "shard": text}]
    },
    "waits": lambda text: {
        "children": [{"slot": 0, "pid": None, "state": "backoff", "backoff": 1e999, "restarts": 10**40}]
    },
    "boots": lambda text: {
        "children": [{"slot": 0, "pid": 101, "state": "booting", "waits_for": text}, {"slot": text}, 7]
    },
    "answers": lambda text: {"answers": text, "children": text, "slots": text, "at": text},
}


@pytest.mark.parametrize(
    "name", ["script", *(pytest.param(each, marks=pytest.mark.full) for each in TEXTS if each != "script")]
)
@pytest.mark.parametrize("fields", together_and_alone(STATES))
def test_a_hostile_state_of_a_cluster_is_shown_and_runs_nothing(site: Site, fields: Sequence[str], name: str) -> None:
    for at, field in enumerate(fields):
        told = STATES[field](TEXTS[name])
        fleet.publish_cluster(site.store, f"app{at}:100:x", f"app{at}:101:y", f"app{at}:102:z", **told)

    seen = check(site, MOST_PAGES * 2, often=("cluster", "process"))

    assert "clusters" in seen
    assert seen["cluster"] >= len(fields)
    assert seen["process"] >= len(fields)


@pytest.mark.parametrize("names", together_and_alone(TEXTS))
def test_hostile_names_of_processes_and_clusters_are_shown(site: Site, names: Sequence[str]) -> None:
    for name in names:
        publish_odd(site.store, TEXTS[name].replace(":", ""))

    seen = check(site, MOST_PAGES * 2, often=("cluster", "process"))

    assert "clusters" in seen
    assert seen["process"] >= len({"script", "quotes", "template", "address"} & {*names})


def publish_odd(store: Store, text: str) -> None:
    """Have a process and a cluster show in Redis of which everything is called so."""
    identity = f"{text}:101:y".encode(errors="surrogatepass")
    info = {
        "hostname": text,
        "pid": text,
        "tag": text,
        "labels": [text, "kiqcluster"],
        "version": text,
        "queues": [text],
    }
    info |= {"capsules": {text: {"mode": text, "weights": {text: 10**400}, "concurrency": 10**400}}, "routing": text}
    store.pipeline(
        [
            ("SADD", "processes", identity),
            ("HSET", identity, "info", json.dumps(info), "busy", "9" * 400, "rss", text.encode(errors="replace")),
            ("HSET", identity, "kiq_cluster", json.dumps(fleet.state(text, [101])), "rtt_us", "1e300"),
            ("EXPIRE", identity, 60),
        ]
    )


@pytest.mark.parametrize("name", SOME_TEXTS)
def test_hostile_stacks_and_strikes_and_marks_are_shown(watched: Site, name: str) -> None:
    store, text = watched.store, TEXTS[name]
    fleet.tell_stacks(store, "<i>app:101:y", f"--- a: {text}\n{text}\n--- {text}\n  File {text}", is_own=False)
    strike = {"name": text, "action": "drop", "until": NOW * 2, "arguments": {text: [text]}, "by": text, "reason": text}
    store.call("HSET", store.keys.strikes, text.encode(errors="replace")[:900], json.dumps(strike)[:9_000])
    store.call("SET", store.keys.deploy, text.encode(errors="surrogatepass"), "EX", 60)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    store.call("HSET", store.keys.deploys(today.replace("-", "")), f"{today}T00:00:00Z", text.encode(errors="replace"))
    store.call("SET", store.keys.progress("a1"), b'{"done":%s,"total":1e999}' % (b"9" * 400))
    store.call("HSET", store.keys.iteration("a1"), "ex", "9" * 400, "c", json.dumps(text), "rt", "1e999")
    fleet.run(store, "<i>app:101:y", payload())

    assert {"cluster", "process", "strikes", "busy"} <= set(check(watched, only=None if name == "script" else MARKS))


def test_an_entry_is_found_whatever_its_score_is(watched: Site) -> None:
    add_entries(watched.store, "dead", *((score, payload(jid=f"j{at}")) for at, score in enumerate(SCORES)))

    assert check(watched, MOST_PAGES * 2, often=("dead", "dead_entry"))["dead_entry"] >= len(SCORES)


@pytest.mark.parametrize("key", ["queues", "queue:default", "dead", "processes", "stat:processed", "paused"])
def test_a_key_of_another_type_breaks_no_dashboard(watched: Site, key: str) -> None:
    watched.store.call("SADD", "queues", "default")
    watched.store.call("DEL", key)
    watched.store.call("HSET", key, "a", "b")

    answer = watched.get("/")

    assert answer.status_code == 200


def test_hostile_counters_are_shown(watched: Site) -> None:
    watched.store.call("SET", "stat:processed", "9" * 5_000)
    watched.store.call("SET", "stat:failed", "<script>")

    assert "dashboard" in check(watched)


def test_a_hostile_request_is_refused_or_answered(site: Site, store: Store) -> None:
    for path in (
        "/queues/~!!!",
        "/queues/~////",
        "/queues/%00",
        "/queues/default?after=" + "9" * 50 + "-x",
        "/queues/default?after=999999999-0123456789abcdef",
        "/dead?after=" + "9" * 50,
        "/dead?after=nan-0123456789abcdef-1",
        "/dead?after=1e999-0123456789abcdef-999999999",
        "/dead?before=-inf-0123456789abcdef-1&sort=%3Cb%3E",
        "/dead?class=%00&queue=%ED%A0%80&error=%22&args=%5C&tag=%F0%9F%92%A5&from=x&to=%3Cscript%3E",
        "/dead?from=" + "9" * 400,
        "/dead?from=9999-12-31T23:59:59&to=0001-01-01",
        "/dead/export?class=%3Cscript%3E",
        "/bulk/~!!!",
        "/bulk/%3Cscript%3E",
        "/jobs/j1?at=%3Cscript%3E:x&go=%00",
        "/jobs/j1?at=dead:1e999-0123456789abcdef",
        "/jobs/j1?go=9:retry.~.~",
        "/jobs/j1?go=0:queue.ZGVmYXVsdA." + "9" * 50,
        "/jobs/%E2%80%AEevil",
        "/dead/nan-0123456789abcdef",
        "/dead/1e999-0123456789abcdef",
        "/dead/----0123456789abcdef",
        "/queues?q=%3Cscript%3E&sort=%3Cb%3E",
        "/<script>alert(1)</script>",
        "/static/x/../../app.py",
        "/static/",
        "//evil.example/",
    ):
        answer = site.get(path)

        assert answer.status_code in (200, 400, 404, 308), path
        assert active(answer.text) == [], path
        assert "evil.example" not in answer.headers.get("Location", ""), path


@pytest.mark.parametrize("document", [b"[" * 60_000, b'{"a": 1, "b": 2}', b"5", b'[["x"], "b"]', b'["x", "\\ud800"]'])
def test_a_hostile_cookie_breaks_no_page(store: Store, setup: object, document: bytes) -> None:
    site, cookie = Site(store), base64.urlsafe_b64encode(document).decode()

    for path in ("/", "/nothing"):
        headers = {"HTTP_COOKIE": f"kiqweb_message={cookie}"}
        answer = Client(site.app, use_cookies=False).get(path, environ_base=LOCAL, environ_overrides=headers)

        assert answer.status_code in (200, 404)


def test_what_fails_even_in_the_page_of_troubles_is_answered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiqcluster.web.app.render", lambda *_: 1 / 0)

    assert site.get("/").status_code == 500
    assert site.get("/static/nothing").status_code == 500
