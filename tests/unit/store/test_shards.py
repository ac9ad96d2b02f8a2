"""Shards: how the configuration names other Redis servers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process import config_sources
from kiqcluster.process.config import Config, describe
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.store.shards import Shard, address_of, parse_shards, same_redis, shards_digest

FILE = """
groups = ["default", { queues = "a,b", shard = "eu" }]
routing = [["tags=a", "a", "eu"], ["*", ""]]

[shards.eu]
redis = "redis://:secret@eu/0"

[env.production.shards.us]
redis = "redis://us/0"
"""


def load(folder: Path, text: str, **flags: Any) -> Config:
    (folder / "kiqcluster.toml").write_text(text)
    return config_sources.load(flags, environ={}, directory=folder)[0]


def test_a_file_names_shards_and_groups_and_rules_use_them(tmp_path: Path) -> None:
    config = load(tmp_path, FILE)

    assert config.shards == (Shard("eu", "redis://:secret@eu/0"),)
    assert config.groups == ("default", GroupSetting("a,b", "eu"))
    assert [rule.shard for rule in config.routing] == ["eu", ""]
    shown = {name: value for name, value, _ in describe(config, dict.fromkeys(vars(config), ""))}
    assert (shown["groups"], "secret" in shown["shards"]) == ("default a,b (shard eu)", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[shards.eu]\nredis = "eu"', "shard eu: 'eu' is not a Redis address"),
        ('[shards.eu]\nredis = "redis://eu/a"', "the path is the number of the database"),
        ('[shards.eu]\nredis = "embedded:x"', "shard eu needs the address of its Redis"),
        ("[shards.eu]", "shard eu needs the address of its Redis"),
        ('[shards.eu]\nredis = "redis://eu"\nurl = ""', "there is no key 'url'"),
        ('[shards."e u"]\nredis = "redis://eu"', "is not the name of a shard"),
        ('[shards.default]\nredis = "redis://eu"', "is the Redis of the setting `redis`"),
        ('shards = ["eu"]', "it takes a table for each shard"),
        ('routing = [["*", "", "eu"]]', "routing, rule 1: there is no shard 'eu'"),
        ('routing = [["*", "", "ue"]]\n[shards.eu]\nredis = "redis://eu"', "there is eu"),
        ('groups = [{ queues = "a", shard = "us" }]', "there is no shard 'us'"),
        ('groups = [{ queues = "a", shrad = "us" }]', "there is no key shrad"),
        ('groups = [{ shard = "us" }]', "a group is a text, or a table"),
        ('shard = "us"', "there is no setting"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    flags = {"shard": "us"} if text == 'shard = "us"' else {}
    words = "there is no shard 'us'" if flags else words
    with pytest.raises(UsageError) as caught:
        load(tmp_path, "" if flags else text, **flags)

    assert words in str(caught.value)


def test_a_variable_has_them_as_json() -> None:
    shards = parse_shards('{"eu": "redis://eu/0", "us": {"redis": "redis://us/0"}}')

    assert [address_of(name, shards) for name in ("us", "eu")] == ["redis://us/0", "redis://eu/0"]
    with pytest.raises(UsageError, match="it is no JSON"):
        parse_shards("eu=redis://eu")


def test_one_redis_under_two_names_is_found() -> None:
    shards = parse_shards(
        {
            "a": "redis://user:pass@one:6379/0",
            "b": "redis://one?db=1",
            "c": "unix:///run/redis.sock",
            "d": "redis://one/1",
            "e": "unix:///run/redis.sock?db=0",
            "f": "redis+sentinel://s1,s2/main",
            "g": "redis+sentinel://s2,s1/main/0",
            "h": "redis+cluster://one:6379",
            "i": "redis+cluster://one:6379",
        }
    )

    assert same_redis("redis://one/0", shards) == {"a": "default", "d": "b", "e": "c", "g": "f"}


def test_a_digest_of_a_map_has_names_and_addresses_and_no_passwords() -> None:
    one, other = parse_shards({"a": "redis://:x@h/0", "b": "redis://i/0"}), parse_shards({"b": "redis://i/0"})

    assert shards_digest(one) == shards_digest(parse_shards({"b": "redis://i/0", "a": "redis://:y@h/0"}))
    assert shards_digest(one) != shards_digest(other)
    assert shards_digest(()) == ""
