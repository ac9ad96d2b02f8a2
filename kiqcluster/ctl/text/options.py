"""What the commands of kiqctl share: options, how they find Redis, how they print."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.slot_state import SlotState
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.control.transports import Transport
from kiqcluster.ctl.text.tables import Column, ascii_only, clean, json_line, table, terminal_width
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.process import config_sources
from kiqcluster.process.config import Config, has_colours
from kiqcluster.process.durations import parse_duration, show_duration
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from kiqcluster.store.shards import address_of, same_redis, shard_name

__all__ = [
    "ADDRESS_SETTINGS",
    "CONTEXT_SETTINGS",
    "DURATION",
    "Advance",
    "Declined",
    "Output",
    "RedisChoice",
    "address_options",
    "check_timeout",
    "confirm",
    "dead_set_options",
    "host_option",
    "identity_option",
    "json_option",
    "output_of",
    "progress",
    "redis_options",
    "socket_option",
    "store_options",
    "stores_options",
    "timeout_option",
    "transport_options",
    "yes_option",
]

OUTPUT_META_KEY = "kiqcluster.output"  # in click's context, where all commands of a call find it
COLOURED_COLUMNS = ("STATE", "LISTENED TO BY", "PROCESSES")  # columns
COLOURS_BY_PREFIX = {  # by how a word begins
    "nobody": "red",
    "key of": "red",
    "no Redis": "red",
    SlotState.BACKOFF: "red",
    SlotState.UNRESPONSIVE: "red",
    "paused": "yellow",
    SlotState.QUIET: "yellow",
    SlotState.STOPPING: "yellow",
    SlotState.BOOTING: "yellow",
}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
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
    """What a command prints: lines and tables while it works, a document at the end; with --json that alone.

    Names come from Redis, where anybody may have written them: whatever is printed passes `clean`.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._last_line = ""
        self._has_document = False

    def info(self, line: str) -> None:
        """Print a line for people, unless it is the one before again."""
        if not self.as_json and line != self._last_line:
            self._last_line = line
            click.echo(clean(line))

    def print(self, lines: Iterable[str]) -> None:
        """Print lines for people as they are."""
        if not self.as_json:
            self._last_line = ""
            if cleaned := [clean(line) for line in lines]:  # one write for all: a fleet's are ten thousand
                click.echo("\n".join(cleaned))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], indent: int = 2) -> None:
        """Print a table for people, as wide as the terminal; whole where there is none."""
        if not self.as_json:
            self._last_line = ""
            lines = table(columns, rows, terminal_width(), indent, _paint if has_colours(sys.stdout) else None)
            click.echo("\n".join(lines))  # its cells are clean, and the colours are ours

    def error(self, line: str) -> None:
        """Print what went wrong; a document has it as well."""
        if not self.as_json:
            name = click.style("kiqctl:", fg="red") if has_colours(sys.stderr) else "kiqctl:"
            click.echo(f"{name} {clean(line)}", err=True)

    def document(self, document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """Print a document with --json.  A function is called for it only then: a fleet's takes long to make."""
        if self.as_json:
            self._has_document = True
            line = json_line(document() if callable(document) else document)
            click.echo(line if _can_be_printed(line) else ascii_only(line))

    def failure(self, error: str) -> None:
        """Print the document of a command that has failed before it could print its own."""
        if not self._has_document:
            self.document({"ok": False, "error": error})


def _paint(column: Column, words: str, padded: str) -> str:
    """Return a cell in its colours: the head bold, what is in the way red, what somebody has stopped yellow."""
    if words == column.title:
        return click.style(padded, bold=True)
    if column.title == "ERROR":
        return click.style(padded, fg="red")
    if column.title in COLOURED_COLUMNS:
        colour = next((colour for start, colour in COLOURS_BY_PREFIX.items() if words.startswith(start)), None)
        return padded if colour is None else click.style(padded, fg=colour)
    return padded


def _can_be_printed(text: str) -> bool:
    """Return whether standard output's encoding has all characters."""
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def json_option(function: F) -> F:
    """Add --json; the command is given its Output."""

    @functools.wraps(function)
    def run(*arguments: Any, output: Output, **options: Any) -> Any:
        return function(*arguments, output=output, **options)

    option = click.option("--json", "output", is_flag=True, callback=_open_output, help="print one JSON document")
    return option(run)  # type: ignore[return-value]  # click's wrapper has the place of the function


def _open_output(ctx: click.Context, _param: click.Parameter, value: bool) -> Output:  # click's order
    output: Output = ctx.meta.setdefault(OUTPUT_META_KEY, Output(as_json=value))
    return output


def output_of(ctx: click.Context) -> Output | None:
    """Return what the command that runs prints to; None before its options were read."""
    output: Output | None = ctx.meta.get(OUTPUT_META_KEY)
    return output


def redis_options(function: F) -> F:
    """Add what says where Redis is; the command is given its Store, which connects when it is used."""
    return store_options(function, ADDRESS_SETTINGS)


def dead_set_options(function: F) -> F:
    """Add the same for a command that kills jobs, and check the limits of the dead set, to which it trims the set."""
    return store_options(function, ADDRESS_SETTINGS | {"dead_max_jobs", "dead_timeout"})


def store_options(function: F, names: frozenset[str]) -> F:
    """Add what says where Redis is; the settings of these names have to be right, the others need not be."""

    @functools.wraps(function)
    def run(*arguments: Any, chosen: RedisChoice, **options: Any) -> Any:
        config = chosen.config(names)
        store = chosen.store(config)
        with using_setup(Setup(config=config, store=store)):  # for what the api asks the configuration
            return function(*arguments, store=store, **options)

    return address_options(run)  # type: ignore[return-value]  # as above


def stores_options(function: F) -> F:
    """Add the same for a command about all shards; it is given `stores`, the default one first, or that of --shard."""

    @functools.wraps(function)
    def run(*arguments: Any, chosen: RedisChoice, **options: Any) -> Any:
        return function(*arguments, stores=chosen.stores(), **options)

    return address_options(run)  # type: ignore[return-value]  # as above


def transport_options(function: F) -> F:
    """Add what says whom a command is about; it is given its Transport to them."""

    @functools.wraps(function)
    def run(
        *arguments: Any,
        chosen: RedisChoice,
        hosts: tuple[str, ...] = (),
        identity: str | None = None,
        socket: str | None = None,
        **options: Any,
    ) -> Any:
        if socket is None:
            store, *others = chosen.stores()
            transport: Transport = RedisTransport(store, hosts, identity, others=others)
        elif chosen.redis or chosen.shard or hosts or identity:
            raise UsageError(
                "--socket reaches one supervisor without Redis; leave --redis, --shard, --host and --identity out"
            )
        else:
            transport = SocketTransport(socket)
        return function(*arguments, transport=transport, **options)

    return address_options(host_option(socket_option(run)))  # type: ignore[return-value]  # as above


host_option = click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="supervisors on this host; repeatable"
)
identity_option = click.option("--identity", metavar="HOST:PID[:NONCE]", help="this one worker process only")
socket_option = click.option("--socket", metavar="PATH", help="one supervisor, by its control socket and without Redis")


def timeout_option(text: str) -> Callable[[F], F]:
    """Add --timeout; None is no end."""
    return click.option("--timeout", type=DURATION, help=text)


def check_timeout(timeout: float | None, *, wait: bool, lease: float | None = None) -> None:
    """Raise UsageError for a --timeout without --wait, or beyond the --lease.  lease: seconds, 0 for no end."""
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    if timeout is not None and lease and timeout > lease:
        raise UsageError(
            f"the quiet would end after {show_duration(lease)}, and --wait lasts up to {show_duration(timeout)}: "
            "workers would fetch again meanwhile; give a longer --lease"
        )


ADDRESS_SETTINGS = frozenset({"redis", "embedded", "environment"})  # the settings that say where Redis is


@dataclass(frozen=True, slots=True)
class RedisChoice:
    """What the options of a command say of where Redis is; None for an option that is not given.

    redis: an address.  config_file: path of a configuration.  environment: a section of it.  shard: a name.
    """

    redis: str | None
    config_file: str | None
    environment: str | None
    shard: str | None

    def config(self, names: frozenset[str] = ADDRESS_SETTINGS) -> Config:
        """Return the configuration, in which the settings of these names are right; a slip in another one is said.

        Raises UsageError.
        """
        names = names | {"shards"} if self.shard else names
        given = {"redis": self.redis, "environment": self.environment}
        config, slip = config_sources.load_part(
            names, {name: value for name, value in given.items() if value is not None}, file=self.config_file
        )
        if slip:
            click.echo(f"kiqctl: going on, for this command does not need it: {slip}", err=True)
        return config

    def store(self, config: Config) -> Store:
        """Return the Redis that kiqcluster would use here, or that of the shard.  Raises UsageError."""
        if self.shard and self.redis:
            raise UsageError(
                "--redis is an address, and --shard the name of one in the configuration; give one of them"
            )
        if not self.shard or not shard_name(self.shard):
            return Store(config.known_redis())
        return Store(address_of(self.shard, config.shards), name=self.shard)

    def stores(self) -> list[Store]:
        """Return the Redis of a shard, or all: the default one first.  An address (--redis) is alone.

        One that two names have is returned once, and this is said.
        """
        if self.redis or self.shard:
            return [self.store(self.config())]
        config = self.config(ADDRESS_SETTINGS | {"shards"})
        same = same_redis(config.known_redis(), config.shards)
        for name, first in same.items():
            click.echo(f"kiqctl: the shards {first} and {name} are one Redis, which counts once, as {first}", err=True)
        others = [each for each in config.shards if each.name not in same]
        return [Store(config.known_redis()), *(Store(each.redis, name=each.name) for each in others)]


def address_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says where Redis is; the command is given its RedisChoice as `chosen`."""

    @functools.wraps(function)
    def run(
        *arguments: Any,
        redis: str | None,
        config_file: str | None,
        environment: str | None,
        shard: str | None,
        **options: Any,
    ) -> Any:
        return function(*arguments, chosen=RedisChoice(redis, config_file, environment, shard), **options)

    for option in (
        click.option("-e", "--environment", metavar="NAME", help="section [env.NAME] of the configuration"),
        click.option("-C", "--config", "config_file", metavar="FILE", help="configuration file"),
        click.option("--shard", metavar="NAME", help="the Redis of [shards.NAME]  [the default one]"),
        click.option("--redis", metavar="URL", help="address of Redis  [KIQ_REDIS, REDIS_URL, configuration]"),
    ):
        run = option(run)
    return run


# asking, and how far it is

yes_option = click.option("--yes", is_flag=True, help="do it without asking")


class Declined(KiqError):
    """The confirmation was declined."""


def confirm(output: Output, what: str, *, yes: bool) -> None:
    """Return if it is to be done.

    what: the whole of it, with its count, as in `delete 1,204 entries of the dead set`.
    Raises Declined, exit 1; UsageError, exit 2, where nobody can be asked.
    """
    if yes:
        return
    if output.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this would {what}; nothing was done: add --yes to do it")
    try:
        is_wanted = click.confirm(f"This will {what}. Go on?", err=True)
    except click.Abort:
        click.echo(err=True)  # behind the question, where the cursor still is
        is_wanted = False
    if not is_wanted:
        raise Declined("nothing was done")


Advance = Callable[[int], object]  # told how many more are done


@contextmanager
def progress(output: Output, total: int, label: str) -> Iterator[Advance]:
    """Show how much of `total` is done, for a `with` block: `with progress(…) as advance: advance(500)`.

    label: what is being done, as in `deleting`.  total: of which there may turn out to be more, or fewer.
    """
    if output.as_json or total <= 0 or not sys.stderr.isatty():
        yield _no_progress
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def _no_progress(_count: int) -> None:
    """See progress."""
