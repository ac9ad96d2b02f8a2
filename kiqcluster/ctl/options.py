"""What the commands of kiqctl share: options, how they find Redis, how they print."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from kiqcluster import config as configuration
from kiqcluster.ctl.by_redis import RedisWay
from kiqcluster.ctl.by_socket import SocketWay
from kiqcluster.ctl.ways import Way
from kiqcluster.durations import parse_duration
from kiqcluster.errors import UsageError
from kiqcluster.store import Store

__all__ = [
    "DURATION",
    "SETTINGS",
    "Output",
    "host_option",
    "identity_option",
    "json_option",
    "redis_options",
    "socket_option",
    "timeout_option",
    "way_options",
]

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """Seconds, or 90s, 15m, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()


class Output:
    """What a command prints: lines while it works, a document at the end; with --json the document alone."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._said = ""

    def say(self, line: str) -> None:
        """Print a line for people, unless it is the one before again."""
        if not self.as_json and line != self._said:
            self._said = line
            click.echo(line)

    def complain(self, line: str) -> None:
        """Print what went wrong; a document has it as well."""
        if not self.as_json:
            click.echo(f"kiqctl: {line}", err=True)

    def document(self, document: Mapping[str, Any]) -> None:
        if self.as_json:
            click.echo(json.dumps(document, ensure_ascii=False))


def json_option(function: F) -> F:
    """Add --json; the command is given its Output."""

    @functools.wraps(function)
    def run(*arguments: Any, as_json: bool, **options: Any) -> Any:
        return function(*arguments, output=Output(as_json=as_json), **options)

    option = click.option("--json", "as_json", is_flag=True, help="print one JSON document")
    return option(run)  # type: ignore[return-value]  # click's wrapper has the place of the function


def redis_options(function: F) -> F:
    """Add what says where Redis is; the command is given its Store, which connects when it is used."""

    @functools.wraps(function)
    def run(
        *arguments: Any, redis: str | None, config_file: str | None, environment: str | None, **options: Any
    ) -> Any:
        return function(*arguments, store=open_store(redis, config_file, environment), **options)

    return _with_redis_options(run)  # type: ignore[return-value]  # as above


def way_options(function: F) -> F:
    """Add what says whom a command is about; it is given its Way to them."""

    @functools.wraps(function)
    def run(
        *arguments: Any,
        redis: str | None,
        config_file: str | None,
        environment: str | None,
        hosts: tuple[str, ...] = (),
        identity: str | None = None,
        socket: str | None = None,
        **options: Any,
    ) -> Any:
        if socket is None:
            way: Way = RedisWay(open_store(redis, config_file, environment), hosts, identity)
        elif redis or hosts or identity:
            raise UsageError("--socket reaches one supervisor without Redis; leave --redis, --host and --identity out")
        else:
            way = SocketWay(socket)
        return function(*arguments, way=way, **options)

    return _with_redis_options(host_option(socket_option(run)))  # type: ignore[return-value]  # as above


host_option = click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="supervisors on this host; repeatable"
)
identity_option = click.option("--identity", metavar="HOST:PID[:NONCE]", help="this one worker process only")
socket_option = click.option("--socket", metavar="PATH", help="one supervisor, by its control socket and without Redis")


def timeout_option(text: str) -> Callable[[F], F]:
    """Add --timeout; None is no end."""
    return click.option("--timeout", type=DURATION, help=text)


def _with_redis_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-e", "--environment", metavar="NAME", help="section [env.NAME] of the configuration"),
        click.option("-C", "--config", "config_file", metavar="FILE", help="configuration file"),
        click.option("--redis", metavar="URL", help="address of Redis  [KIQ_REDIS, REDIS_URL, configuration]"),
    ):
        function = option(function)
    return function


def open_store(redis: str | None, config_file: str | None, environment: str | None) -> Store:
    """Return the Redis that kiqcluster would use here.  Raises UsageError."""
    given = {name: value for name, value in (("redis", redis), ("environment", environment)) if value is not None}
    config, _ = configuration.load(given, file=config_file)
    return Store(config.known_redis())
