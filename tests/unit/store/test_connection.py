"""Addresses: what they mean, and what of them may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError, UsageError
from kiqcluster.store import Store
from kiqcluster.store.connection import is_outage, masked, parse_address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://ann@host/0", "redis://ann@host/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("embedded:/tmp/kiq", "embedded:/tmp/kiq"),
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("rediss://ann:s3cret@host:6380/0?ssl_cert_reqs=none", "rediss://ann:***@host:6380/0?ssl_cert_reqs=none"),
        ("redis://ann:s3@cret@host/0", "redis://ann:***@host/0"),
        ("unix:///run/redis.sock?password=s3cret&db=1", "unix:///run/redis.sock?password=***&db=1"),
        ("unix:///run/redis.sock?db=1&password=s3cret", "unix:///run/redis.sock?db=1&password=***"),
        ("unix://ann@/run/redis.sock?password=s3@cret", "unix://ann@/run/redis.sock?password=***"),
    ],
)
def test_the_password_of_an_address_is_hidden_and_nothing_else(address: str, shown: str) -> None:
    assert masked(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "redis://:s3#cret@host/0",
        "redis://:s3/cret@host/0",
        "redis://:s3?cret@host/0",
        "redis://:s3cret@[::1",
        "http://ann:s3cret@host",
        "redis://ann:s3cret@host:port/0",
    ],
)
def test_the_password_of_an_address_that_cannot_be_used_is_hidden_too(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(address)

    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "localhost", "http://host", "redis://host:port", "redis://[::1"])
def test_an_address_that_is_none_is_refused_with_the_forms_that_work(address: str) -> None:
    with pytest.raises(UsageError, match=r"redis://HOST:PORT/DB"):
        parse_address(address)


def test_the_embedded_server_is_reached_through_its_socket(tmp_path: Path) -> None:
    assert parse_address(f"embedded:{tmp_path}")["path"] == str(tmp_path / "redis.sock")


def test_a_store_shows_no_secret_and_opens_nothing_by_itself() -> None:
    store = Store("redis://:s3cret@host/0", name="cache")

    assert repr(store) == "<Store cache redis://:***@host/0>"
    assert store.link().fileno() == -1


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (RedisUnavailable("x"), True),
        (ReplyLost("x"), True),
        (RedisRefused("LOADING Redis is loading the dataset in memory"), True),
        (RedisRefused("READONLY You can't write against a read only replica."), True),
        (RedisRefused("MASTERDOWN Link with MASTER is down"), True),
        (RedisRefused("WRONGPASS invalid username-password pair"), False),
        (RedisRefused("NOAUTH Authentication required."), False),
        (RedisRefused("OOM command not allowed"), False),
        (RedisRefused("WRONGTYPE Operation against a key"), False),
    ],
)
def test_an_outage_is_what_goes_away_by_itself(error: StoreError, outage: bool) -> None:
    assert is_outage(error) is outage
