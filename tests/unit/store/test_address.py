"""Addresses: what they mean, and what of them may be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.connection import SSLConnection

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError, UsageError
from kiqcluster.store import Store, is_outage, parse_address
from kiqcluster.store.address import Service, masked


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
        ("redis://ann:s3\ncret@host", "redis://ann:***@host"),
        ("rediss://:s3\r\ncret@host/0", "rediss://:***@host/0"),
        ("ann:s3\ncret@host", "***@host"),
        ("unix://ann@/run/redis.sock?password=s3@cret", "unix://ann@/run/redis.sock?password=***"),
        ("redis+sentinel://ann:s3cret@a:1,b:2/jobs/0", "redis+sentinel://ann:***@a:1,b:2/jobs/0"),
        ("redis+sentinel://a,b/jobs?sentinel_password=s3cret", "redis+sentinel://a,b/jobs?sentinel_password=***"),
        ("ann:s3cret@host:6379", "***@host:6379"),
        ("redis:ann:s3cret@host:6379", "***@host:6379"),
        ("redis:/ann:s3cret@host:6379", "***@host:6379"),
        ("embedded:/tmp/a@b", "embedded:/tmp/a@b"),
        ("redis://host?PASSWORD=s3cret&db=1", "redis://host?PASSWORD=***&db=1"),
        ("redis://host?db=1&pass=s3cret", "redis://host?db=1&pass=***"),
        ("redis://host:s3cret", "redis://host:***"),
        ("redis://host:s3/cret", "redis://host:***"),
        ("redis://host:6379:s3cret/0", "redis://host:***"),
        ("redis://12345678", "redis://12345678"),
        ("redis://host:123456", "redis://host:***"),
        ("redis+sentinel://a:1,b:s3cret/jobs", "redis+sentinel://a:1,b:***"),
        ("redis+sentinel://a,b:2/jobs", "redis+sentinel://a,b:2/jobs"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
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
        "ann:s3cret@host:6379/0",
        "redis:ann:s3cret@host:6379/0",
        "redis://:s3cret#x@host/0",
        "redis://:6379#s3cret@host/0",
        "redis://:s3cret/x@host/0",
        "redis://:s3cret?x=y@host/0",
        "rediss://ann:s3cret#@host/0",
        "http://ann:s3cret@host",
        "redis://ann:s3cret@host:port/0",
        "redis+sentinel://ann:s3cret@host:port/jobs",
        "redis+sentinel://ann:s3/cret@host/jobs",
        "redis+sentinel://host?sentinel_password=s3cret",
    ],
)
def test_the_password_of_an_address_that_cannot_be_used_is_hidden_too(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(address)

    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "http://host", "redis://host:port", "redis://[::1"),
        *("redis://host?nonsense=1", "redis://host?ssl_ca_certs=ca.pem", "redis://host?protocol=3"),
        *(
            "rediss://host?ssl_ca_cert=ca.pem",
            "rediss://host?ssl_cert_reqs=perhaps",
            "redis+sentinel://host/jobs?ssl=1",
        ),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_forms_that_work(address: str) -> None:
    with pytest.raises(UsageError, match=r"redis://HOST:PORT/DB"):
        parse_address(address)


@pytest.mark.parametrize(
    "path", ["/jobs", "/1/2", "/1/jobs", "/1,", "/1;2", "/-1", "/+1", "/1_0", "/1%20", "/١", "//1", "?db=-1"]
)
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_an_address_whose_database_is_not_one_number_is_refused(scheme: str, path: str) -> None:
    with pytest.raises(UsageError, match="number of the database"):
        parse_address(f"{scheme}://host:6379{path}")


@pytest.mark.parametrize("path", ["", "/", "/0", "/12", "/?db=12", "?db=12"])
def test_an_address_with_one_number_or_none_names_that_database(path: str) -> None:
    node = parse_address(f"redis://host{path}")

    assert isinstance(node, dict)
    assert node.get("db", 0) == (12 if "12" in path else 0)


SENTINELS = [
    ("redis+sentinel://a:1,b/jobs/2", (("a", 1), ("b", 26_379)), "jobs", {}, {"db": 2}),
    ("redis+sentinel://[::1]:5,10.0.0.1:6/a%20b", (("::1", 5), ("10.0.0.1", 6)), "a b", {}, {"db": 0}),
    (
        "redis+sentinel://ann:s3%2Fcret@a/jobs/0?sentinel_username=eve&sentinel_password=p%26w&socket_keepalive=yes",
        (("a", 26_379),),
        "jobs",
        {"username": "eve", "password": "p&w"},
        {"db": 0, "username": "ann", "password": "s3/cret", "socket_keepalive": True},
    ),
    (
        "rediss+sentinel://:s3cret@a/jobs?ssl_ca_certs=/etc/ca.pem",
        (("a", 26_379),),
        "jobs",
        {"connection_class": SSLConnection, "ssl_ca_certs": "/etc/ca.pem"},
        {"db": 0, "password": "s3cret", "connection_class": SSLConnection, "ssl_ca_certs": "/etc/ca.pem"},
    ),
]


@pytest.mark.parametrize(("address", "hosts", "name", "options", "node"), SENTINELS)
def test_an_address_of_sentinels_names_them_and_the_service(
    address: str, hosts: Any, name: str, options: Any, node: Any
) -> None:
    assert parse_address(address) == Service(name, hosts, options, node)


@pytest.mark.parametrize(
    "address",
    [
        "redis+sentinel://",
        "redis+sentinel://a:1",
        "redis+sentinel://a:1/",
        "redis+sentinel://a:1,/jobs",
        "redis+sentinel://a:x/jobs",
        "redis+sentinel://a:99999/jobs",
        "redis+sentinel://a/jobs/x",
        "redis+sentinel://a/jobs/0/1",
        "unix+sentinel://a/jobs",
    ],
)
def test_an_address_of_sentinels_that_is_none_is_refused_with_its_form(address: str) -> None:
    with pytest.raises(UsageError, match=r"redis\+sentinel://\[USER:PASSWORD@\]HOST:PORT,HOST:PORT/SERVICE/DB"):
        parse_address(address)


def test_an_option_that_sentinels_do_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no option 'sentinel_user'"):
        parse_address("redis+sentinel://a/jobs?sentinel_user=ann")


def test_the_embedded_server_is_reached_through_its_socket(tmp_path: Path) -> None:
    node = parse_address(f"embedded:{tmp_path}")

    assert isinstance(node, dict)
    assert node["path"] == str(tmp_path / "redis.sock")


def test_a_store_shows_no_secret_and_opens_nothing_by_itself() -> None:
    store = Store("redis://:s3cret@host/0", name="cache")

    assert repr(store) == "<Store cache redis://:***@host/0>"
    assert store.connection().fileno() == -1


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (RedisUnavailable("x"), True),
        (ReplyLost("x"), True),
        (RedisRefused("LOADING Redis is loading the dataset in memory"), True),
        (RedisRefused("READONLY You can't write against a read only replica."), True),
        (RedisRefused("MASTERDOWN Link with MASTER is down"), True),
        (RedisRefused("NOREPLICAS Not enough good replicas to write."), True),
        (RedisRefused("UNBLOCKED force unblock from blocking operation, instance state changed"), True),
        (RedisRefused("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist"), True),
        (RedisRefused("BUSY Redis is busy running a script."), True),
        (RedisRefused("CLUSTERDOWN The cluster is down"), True),
        (RedisRefused("ERR max number of clients reached"), True),
        (RedisRefused("NOPERM User worker has no permissions to run the 'ltrim' command"), False),
        (RedisRefused("DENIED Redis is running in protected mode"), False),
        (RedisRefused("WRONGPASS invalid username-password pair"), False),
        (RedisRefused("NOAUTH Authentication required."), False),
        (RedisRefused("OOM command not allowed"), False),
        (RedisRefused("WRONGTYPE Operation against a key"), False),
    ],
)
def test_an_outage_is_what_goes_away_by_itself(error: StoreError, outage: bool) -> None:
    assert is_outage(error) is outage


def test_a_folder_without_a_server_says_what_has_to_run_there(tmp_path: Path) -> None:
    with pytest.raises(RedisUnavailable, match=r"kiqcluster --embedded.* has to run there"):
        Store(f"embedded:{tmp_path}").call("PING")


@pytest.mark.parametrize("word", ["a+b", "a%2Bb"])
def test_a_plus_in_a_password_of_the_options_stays_a_plus(word: str) -> None:
    node = parse_address(f"unix:///run/redis.sock?password={word}&client_name=a%20b")
    service = parse_address(f"redis+sentinel://a/jobs/0?sentinel_password={word}&password={word}&client_name=a%20b")

    assert isinstance(node, dict)
    assert isinstance(service, Service)
    assert (node["password"], node["client_name"]) == ("a+b", "a b")
    assert service.options["password"] == "a+b"
    assert (service.node["password"], service.node["client_name"]) == ("a+b", "a b")
