"""Names of queues, classes and tags in every script and with every sign, from a push to what selects by them."""

from __future__ import annotations

import json

import pytest

from kiqcluster import Client
from kiqcluster.application.registry import Registry
from kiqcluster.errors import InvalidPush, JobDefinitionError, UsageError
from kiqcluster.job import job
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store import Store
from tests.apps.names import NAMES
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries

UNPRINTABLE = ("a\nb", "a\x00b", "a\x1b[31mb", "a\u200bb", "a\u202eb", "a\u00a0b")


@pytest.fixture
def kiqctl(redis_server: RedisServer) -> Kiqctl:
    return Kiqctl(redis_server.url)


def push_each(store: Store) -> None:
    client = Client(store)
    for name in NAMES:
        client.push({"class": name, "args": [name], "queue": name, "tags": [name, f"{name} with spaces"]})


def test_a_group_of_all_names_means_these_queues() -> None:
    assert list(parse_group(",".join(NAMES)).expand(NAMES)) == list(NAMES)


def test_a_push_stores_them_as_they_are(store: Store) -> None:
    push_each(store)

    assert {each.decode() for each in store.call("SMEMBERS", "queues")} == set(NAMES)
    for name in NAMES:
        payload = json.loads(store.call("LINDEX", f"queue:{name}", 0))
        assert (payload["class"], payload["queue"], payload["tags"][0]) == (name, name, name)


def test_kiqctl_selects_jobs_and_queues_by_them(store: Store, kiqctl: Kiqctl) -> None:
    push_each(store)

    listed = kiqctl.ask("queues", "list")
    assert {each["name"] for each in listed["queues"]} == set(NAMES)
    for name in NAMES:
        result = kiqctl("jobs", "--json", f"--class={name}", f"--tag={name} with spaces", *after_dashes(name))
        assert [each["class"] for each in json.loads(result.stdout)["jobs"]] == [name]
        for verb in ("pause", "resume"):
            result = kiqctl("queues", verb, *after_dashes(name))
            assert result.exit_code == 0, result.output
            assert store.call("SISMEMBER", "paused", name) == (verb == "pause")


def after_dashes(name: str) -> list[str]:
    return ["--", name] if name.startswith("-") else [name]


def test_kiqctl_selects_entries_by_them(store: Store, kiqctl: Kiqctl) -> None:
    for number, name in enumerate(NAMES):
        entry = {
            "class": name, "args": [name], "queue": name, "tags": [name], "jid": f"{number:024x}", "retry": True,
            "retry_count": 0, "created_at": NOW, "failed_at": NOW, "error_class": name, "error_message": name,
        }  # fmt: skip
        add_entries(store, "retry", (NOW + number, json.dumps(entry).encode()))

    for name in NAMES:
        found = kiqctl.ask("retries", "list", f"--class={name}", f"--queue={name}", f"--tag={name}")
        assert [each["class"] for each in found["entries"]] == [name]
    assert kiqctl("retries", "list").exit_code == 0


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_what_cannot_be_printed_is_no_name(store: Store, registry: Registry, name: str) -> None:
    def note() -> None: ...

    with pytest.raises(InvalidPush, match="control characters"):
        Client(store).push({"class": "X", "args": [], "queue": name})
    with pytest.raises(JobDefinitionError):
        job(name=name)(note)
    with pytest.raises(JobDefinitionError):
        job(queue=name)(note)
    with pytest.raises(UsageError):
        parse_group(name)
    assert store.call("DBSIZE") == 0
