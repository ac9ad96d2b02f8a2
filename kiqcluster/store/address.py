"""Addresses: parses them, and hides their passwords in messages.

parse_address   redis://, rediss://, unix://, embedded:DIR → Node; redis+sentinel:// → Service
Service         a primary that sentinels know by a name: asks one sentinel after another where it is
masked          an address without its password

Never: opens a connection.  connection.py passes Service.locate a function that asks a sentinel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis import connection as redis_connection
from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError

from kiqcluster.errors import RedisUnavailable, ReplyLost, UsageError
from kiqcluster.store import embedded

__all__ = [
    "CLUSTER_NODE",
    "NO_CLIENT_INFO",
    "PRIMARY_ONLY",
    "Endpoint",
    "Node",
    "Service",
    "endpoints_of",
    "has_scheme",
    "masked",
    "parse_address",
]

Node = dict[str, Any]  # keyword arguments of redis-py's connection class, itself among them
Endpoint = tuple[str, int]  # host and port
Ask = Callable[[Node, str], Endpoint | None]  # how to connect to a sentinel, a service's name → where the primary is

CLUSTER_NODE = "cluster_node"  # key of a Node of a Redis Cluster: a function to call when it does not have the slot
# No CLIENT SETINFO, by the keywords of redis-py since 7.2 and of earlier versions: Redis 7.0 has no right to it.  Nor
# does each connection look redis-py's version up, for which it would read and parse a file.  An empty DriverInfo, since
# 7.2 to 7.4 read None as the default one.
DRIVER_INFO: Any = getattr(redis_connection, "DriverInfo", None)
NO_CLIENT_INFO: Node = (
    {"driver_info": DRIVER_INFO(name="", lib_version="")} if DRIVER_INFO else {"lib_name": None, "lib_version": None}
)
PRIMARY_ONLY = "primary_only"  # key of a Node: connect to it only if it is a primary
ESCAPE_HELP = "in a password, write / ? # @ : % as %2F %3F %23 %40 %3A %25"
DEFAULT_SENTINEL_PORT = 26_379  # for an address without a port
MAX_PORT = 65_535
# After `//user:` up to the last @ (a password may hold any character), or in the query (unix://PATH?password=…).
PASSWORD = re.compile(r"(?<=//)([^:@/]*:).*(?=@)|([?&]\w*pass\w*=)[^&]*", re.IGNORECASE | re.DOTALL)
# A port that is not a number may be a password: the host or its @ is missing.
PORT = re.compile(r"(?<=//)((?:[^:@/?,\[\]]*(?::\d{0,5})?,)*[^:@/?,\[\]]*:)(?!\d{0,5}(?:[,/?]|$))[^@]*$")
LOGIN = re.compile(r"^(?!embedded:)(?!.*//).*(?=@)", re.DOTALL)  # all before the last @, in an address without //
SENTINEL_ADDRESS = re.compile(
    r"(?P<scheme>rediss?)\+sentinel://((?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]+)"
    r"/(?P<service>[^/?#]+)(/(?P<db>[0-9]*))?(\?(?P<options>.*))?"
)
DATABASE = re.compile(r"(/([0-9]+/?)?)?")  # path of redis:// and rediss://
HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]+))?")


@dataclass(slots=True)
class Service:
    """A primary that sentinels know by a name.

    hosts: the sentinels.  options: how to connect to them.  node: how to connect to the primary, without host and port.
    first: the sentinel that is asked first, because its last answer was right.
    """

    name: str
    hosts: tuple[Endpoint, ...]
    options: Node
    node: Node
    first: Endpoint | None = None

    def locate(self, ask: Ask) -> Iterator[Node]:
        """Yield the primary, from one sentinel after the other until the caller accepts an answer.

        ask: queries a sentinel.  After RedisUnavailable or ReplyLost the next one is asked; other errors are passed on.
        Raises RedisUnavailable when no sentinel knows the primary.
        """
        found: set[Endpoint] = set()
        complaints = []
        for sentinel in sorted(self.hosts, key=lambda host: host != self.first):
            try:
                primary = ask({**self.options, "host": sentinel[0], "port": sentinel[1]}, self.name)
            except (RedisUnavailable, ReplyLost) as error:
                complaints.append(str(error))
                continue
            if primary is None:
                complaints.append(f"{sentinel[0]}:{sentinel[1]} knows no {self.name!r}")
            elif primary not in found:
                found.add(primary)
                self.first = sentinel  # remains, unless the caller asks for another answer
                yield {**self.node, "host": primary[0], "port": primary[1], PRIMARY_ONLY: True}
        if not found:
            said = f"no sentinel says where {self.name!r} is ({'; '.join(complaints)}); nothing was sent"
            raise RedisUnavailable(said)


def has_scheme(address: str, ending: str) -> bool:
    """Return whether the scheme of an address ends so; its password may hold the same."""
    return address.partition(":")[0].endswith(ending)


def parse_address(address: str) -> Node | Service:
    """Return the connection arguments of redis://, rediss://, unix:// or embedded:DIR, or the service of sentinels.

    Sentinels: redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/SERVICE[/DB][?sentinel_password=…].
    Raises UsageError that names the valid forms.
    """
    if has_scheme(address, "+sentinel"):
        return _parse_service(address)
    if address.startswith(embedded.SCHEME):
        address = embedded.url_of(embedded.directory_of(address))
    try:
        node = _parsed(address)
        _check_options(node)
    except ValueError as error:
        raise UsageError(
            f"{masked(address)!r} is not a Redis address ({error}); write redis://HOST:PORT/DB, rediss://…, "
            "unix:///PATH?db=N, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or embedded:DIR"
        ) from error
    return node


def _parsed(address: str) -> Node:
    """Return the address as redis-py parses it.  Raises ValueError whose message has no part of the password."""
    if "#" in address:  # the URL parser cuts off the rest, which may leave a valid address
        raise ValueError(f"a # ends it; {ESCAPE_HELP}")
    try:
        node: Node = parse_url(_with_plus(address))  # type: ignore[no-untyped-call]  # redis-py has no types here
    except ValueError as error:
        if "ort" in str(error):  # the message quotes the port, which is the start of a password with a / in it
            raise ValueError(f"its port is not a number up to 65535; {ESCAPE_HELP}") from None
        raise
    _check_database(address, node)
    return node


def _check_database(address: str, node: Node) -> None:
    """Raise ValueError unless the database is one number: redis-py reads another path as 0, and /1/2 as 12."""
    is_path = node.get("connection_class") is not UnixDomainSocketConnection
    if is_path and not DATABASE.fullmatch(urlsplit(address).path):
        raise ValueError(f"the path is the number of the database, as in redis://HOST:PORT/1; {ESCAPE_HELP}")
    if node.get("db", 0) < 0:
        raise ValueError("the number of the database is negative")


def _with_plus(address: str) -> str:
    """Return the address with each + of its options escaped: URL parsers make a space of it, also in a password."""
    before, mark, options = address.partition("?")
    return before + mark + options.replace("+", "%2B")


def _check_options(node: Node) -> None:
    """Raise ValueError for an option that connections do not take.  Creates one to find out, and opens nothing."""
    options = {name: value for name, value in {**node, **NO_CLIENT_INFO}.items() if name != "connection_class"}
    try:
        node.get("connection_class", TcpConnection)(**options, protocol=2, retry=None, health_check_interval=0)
    except TypeError as error:
        raise ValueError(f"it has no option {str(error).rpartition(' ')[2]}") from error
    except RedisError as error:
        raise ValueError(str(error)) from error


def _parse_service(address: str) -> Service:
    """Return the service of redis+sentinel:// (rediss+sentinel://: TLS to sentinels and servers alike)."""
    found = SENTINEL_ADDRESS.fullmatch(_with_plus(address))
    hosts = endpoints_of(found["hosts"], DEFAULT_SENTINEL_PORT) if found else None
    if found is None or hosts is None:
        raise UsageError(
            f"{masked(address)!r} is not an address of sentinels; "
            "write redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE/DB"
        )
    options: Node = {}
    others = []
    for name, value in parse_qsl(found["options"] or "", keep_blank_values=True):
        if name in ("sentinel_username", "sentinel_password"):
            options[name.removeprefix("sentinel_")] = value
        elif name.startswith("sentinel"):
            raise UsageError(
                f"there is no option {name!r}; those of sentinels are sentinel_username, sentinel_password"
            )
        else:
            others.append((name, value))
    login = f"{found['login']}@" if found["login"] else ""
    node = parse_address(
        f"{found['scheme']}://{login}localhost/{found['db'] or 0}?{urlencode(others, quote_via=quote)}"
    )
    assert isinstance(node, dict)
    del node["host"]
    if node.get("connection_class") is SSLConnection:
        options |= {name: value for name, value in node.items() if name.startswith(("ssl_", "connection_class"))}
    return Service(unquote(found["service"]), hosts, options, node)


def endpoints_of(hosts: str, default_port: int) -> tuple[Endpoint, ...] | None:
    """Return the endpoints of `HOST[:PORT],HOST[:PORT]…`; None if one of them is not valid."""
    found = [HOST.fullmatch(host) for host in hosts.split(",")]
    ports = [int(host["port"] or default_port) for host in found if host]
    if None in found or max(ports) > MAX_PORT:
        return None
    return tuple((host["name"].strip("[]"), port) for host, port in zip(found, ports, strict=True) if host)


def masked(address: str) -> str:
    """Return the address with its password hidden, for logs and error messages; the address may be invalid."""
    return LOGIN.sub("***", PORT.sub(r"\1***", PASSWORD.sub(r"\1\2***", address)))
