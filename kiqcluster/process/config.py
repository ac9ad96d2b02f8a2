"""Configuration: declares each setting once; config_sources.py finds the values.

1. Config        the settings; the metadata of a field are its table, help, unit and flag
2. key_of        the name of a setting in files and with --set; variable_of: that of its variable
3. describe      the lines of --print-config: value and origin, secrets masked
4. parse_listen  an address at which something listens; the error of one at which nothing can

config_checks.py refuses values that cannot work.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypedDict, get_args, get_type_hints

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.durations import UNIT, Bytes, Duration, show_size
from kiqcluster.sidekiq.cron_entries import CronEntry
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.sidekiq.routing import RoutingRule
from kiqcluster.store import embedded
from kiqcluster.store.address import masked
from kiqcluster.store.shards import Shard

__all__ = [
    "ARGUMENT_MODES",
    "EVENT_LOOPS",
    "FIELD_TYPES",
    "JOB_LOGS",
    "JSON_VERSIONS",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "MIN_LIMITED_BYTES",
    "NO_LIMIT",
    "SIZE_LIMITER_MODES",
    "STOP_GRACE_SECONDS",
    "CodeSettings",
    "Config",
    "LogLevel",
    "Origins",
    "describe",
    "has_colours",
    "key_of",
    "listen_error",
    "parse_listen",
    "settings",
    "variable_of",
    "working_directory",
]

STOP_GRACE_SECONDS = 10.0  # seconds beyond `stop.timeout` after which the supervisor kills a child that has not left
MAX_PORT = 65_535
PORT_STEP = 10  # to the port that an error proposes; the next ones may be those of the pages
NO_LIMIT = -1  # of interruptions, as in GitLab
# The words of settings: a type for type checkers, and the same words for the checks of values.
LogLevel = Literal["debug", "info", "warning", "error"]
JobLogMode = Literal["off", "done", "full"]
ArgumentMode = Literal["raise", "warn", "off"]
SizeLimiterMode = Literal["track", "compress", "raise"]
JsonVersion = Literal["2.6", "2.12"]  # of Ruby's json gem, which changed their format of floats
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)
JOB_LOGS: tuple[str, ...] = get_args(JobLogMode)
ARGUMENT_MODES: tuple[str, ...] = get_args(ArgumentMode)
SIZE_LIMITER_MODES: tuple[str, ...] = get_args(SizeLimiterMode)
JSON_VERSIONS: tuple[str, ...] = get_args(JsonVersion)
LOG_FORMATS = ("auto", "pretty", "json")
EVENT_LOOPS = ("asyncio", "uvloop")
MIN_LIMITED_BYTES = 1_000  # least value of the size limiter's settings, so that small payloads need not be looked at

Origins = dict[str, str]  # field name → where its value comes from


def setting(
    default: Any,
    text: str,
    *,
    table: str = "",
    short: str = "",
    variable: str = "",
    flag: bool | str = True,
    metavar: str = "",
    in_code: bool = False,
    is_secret: bool = False,
) -> Any:
    """Declare a setting: default, one line of help, and its flag.

    table: of the file, with which the name of the field begins.  flag: whether it has one, or its words.
    in_code: whether configure() may set it; the supervisor's settings are read before the application is imported.
    is_secret: whether its value is never shown.
    """
    metadata = {
        "help": text,
        "table": table,
        "short": short,
        "variable": variable,
        "flag": flag,
        "metavar": metavar,
        "in_code": in_code,
        "is_secret": is_secret,
    }
    return field(default=default, repr=not is_secret, metadata=metadata)


class DeadSettings(TypedDict, total=False):
    max_jobs: int
    timeout: Duration


class EncryptionSettings(TypedDict, total=False):
    keys: str


class LogSettings(TypedDict, total=False):
    jobs: JobLogMode


class SizeLimiterSettings(TypedDict, total=False):
    mode: SizeLimiterMode
    compression_threshold: str
    limit: str


class CodeSettings(TypedDict, total=False):
    """Settings that configure() takes, for type checkers; a test compares it with Config."""

    redis: str
    max_retries: int
    max_retries_after_interruption: int
    max_forced_stops: int
    dead: DeadSettings
    average_scheduled_poll_interval: Duration
    log: LogSettings
    strict_args: ArgumentMode
    ruby_json: JsonVersion
    size_limiter: SizeLimiterSettings
    routing: Sequence[Mapping[str, str] | Sequence[str]]
    encryption: EncryptionSettings
    strict_routing: bool


def has_colours(stream: TextIO) -> bool:
    """Return whether output to a stream may have colours: it is a terminal with colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True)
class Config:
    """The settings of a kiqcluster process; frozen once loaded.  Times in seconds."""

    groups: tuple[str | GroupSetting, ...] = setting((), "queue groups, where the command line has none", flag=False)
    require: tuple[str, ...] = setting(
        (), "module, file or pkg.mod:factory that defines the jobs; repeatable", short="-r", metavar="APP"
    )
    environment: str = setting(
        "development",
        "section [env.NAME] of the configuration; exported as KIQ_ENV",
        short="-e",
        variable="KIQ_ENV",
        metavar="NAME",
    )
    redis: str = setting(
        "redis://127.0.0.1:6379/0",
        "redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:DIR",
        variable="REDIS_URL",
        metavar="URL",
        in_code=True,
    )
    embedded: str | None = setting(None, "run a private server with its data in DIR", flag=False)
    concurrency: int | None = setting(None, "threads of each worker process", short="-c", metavar="N")
    min_concurrency: int = setting(5, "fewest threads, when -c is not given", metavar="N")
    max_concurrency: int = setting(20, "most threads, when -c is not given; 0 = no limit", metavar="N")
    async_concurrency: int = setting(1_000, "async jobs that each worker process runs at once", metavar="N")
    event_loop: str = setting("asyncio", "whose event loop runs async jobs: asyncio or uvloop", flag=False)
    stop_timeout: float = setting(
        25.0,
        "seconds that running jobs get at a stop, before they are put back",
        table="stop",
        short="-t",
        flag="--timeout",
        metavar="SECONDS",
    )
    strict: bool = setting(False, "take queues in the order written, the next only when the one before is empty")
    queue_selector: bool = setting(
        False, "each group is a selector over the attributes of jobs: 'urgency=high&tags!=heavy'"
    )
    negate: bool = setting(False, "each group is every known queue except those named")
    drain: bool = setting(False, "end once the queues are empty and nothing runs")
    watch: bool = setting(False, "start the workers anew when a source file changes; for development")
    preload: bool = setting(
        False, "import the application before forking: saves memory, but new code needs a restart of the supervisor"
    )
    fail_fast: bool = setting(False, "end the cluster, with exit code 8, when any worker dies")
    quiet_lease: float = setting(3_600.0, "seconds after which a quiet ends by itself; 0 = never", metavar="SECONDS")
    recycle_jobs: int = setting(
        0, "jobs after which a worker process is replaced; 0 = never", table="recycle", flag=False
    )
    recycle_memory: Annotated[int, UNIT] = setting(
        0,
        "memory beyond which a worker process is replaced when it stays there; 0 = never",
        table="recycle",
        flag=False,
    )
    recycle_memory_hard: Annotated[int, UNIT] = setting(
        0, "memory beyond which it is replaced at once; 0 = never", table="recycle", flag=False
    )
    roll_min_serving: int | None = setting(
        None, "workers that go on while others are replaced; default: all but one", table="roll", flag=False
    )
    health_ready_quorum: int | None = setting(
        None, "workers that must be ready for the cluster to be; default: all", table="health", flag=False
    )
    control: str | None = setting(None, "path of the control socket; default: the pidfile's with .sock", flag=False)
    queues: tuple[str, ...] = setting((), "queue names to know of, beside those of the job classes", flag=False)
    directory: str | None = setting(None, "directory to work in, by its logical path; default $PWD", metavar="DIR")
    tag: str | None = setting(
        None, "name shown on Sidekiq's pages; default: the directory's", short="-g", metavar="NAME"
    )
    pidfile: str | None = setting(
        None, "file that holds the supervisor's pid, locked while it runs", short="-P", metavar="PATH"
    )
    listen: str = setting(
        "127.0.0.1:8082", "where /metrics and the probes answer: HOST:PORT, unix:PATH or off", metavar="ADDRESS"
    )
    log_format: str = setting(
        "auto",
        "auto (json unless a terminal reads it), pretty or json",
        table="log",
        flag="--log-format",
        metavar="FORMAT",
    )
    log_level: str = setting("info", "debug, info, warning or error", table="log", flag="--log-level", metavar="LEVEL")
    log_jobs: str = setting(
        "done",
        "lines of jobs: done (one at the end), full (also at the start, with all fields) or off (failures only)",
        table="log",
        flag=False,
        in_code=True,
    )
    health_boot_timeout: float = setting(
        60.0, "seconds that a child may take to become ready", table="health", flag=False
    )
    roll_bake_time: float = setting(
        5.0,
        "seconds that a worker of a roll must have lived before the next slot's turn; 0 = none",
        table="roll",
        flag=False,
    )
    health_silence_timeout: float = setting(
        45.0, "seconds without progress after which a child is replaced; 0 = never", table="health", flag=False
    )
    health_recover_after: float = setting(
        60.0,
        "seconds without a sign of life after which any other worker may give a worker's jobs back",
        table="health",
        flag=False,
    )
    stop_platform_timeout: float = setting(
        0.0, "seconds after which systemd or the pod kills us; 0 = unknown", table="stop", flag=False
    )
    health_respawn_burst: int = setting(200, "respawns at once per slot and minute", table="health", flag=False)
    max_retries: int = setting(25, "retries of jobs with retry=True", flag=False, in_code=True)
    max_retries_after_interruption: int = setting(
        3, "deaths of processes after which the job that they ran is buried", flag=False, in_code=True
    )
    max_forced_stops: int = setting(
        100, "forced stops of a job after which it is buried, whoever asked for them", flag=False, in_code=True
    )
    dead_max_jobs: int = setting(
        10_000, "entries of the dead set (Sidekiq keeps one less)", table="dead", flag=False, in_code=True
    )
    dead_timeout: float = setting(
        180 * 86_400.0, "seconds that a dead job is kept", table="dead", flag=False, in_code=True
    )
    average_scheduled_poll_interval: float = setting(
        5.0, "seconds between two polls of due jobs, whichever process makes them", flag=False, in_code=True
    )
    strict_args: str = setting(
        "raise", "arguments that are not JSON-native: raise, warn or off", flag=False, in_code=True
    )
    ruby_json: str = setting(
        "2.12",
        "Ruby's json gem that floats are written like: 2.12 (and later) or 2.6 (before)",
        flag=False,
        in_code=True,
    )
    size_limiter_mode: str = setting(
        "track",
        "large arguments: track (report and push), compress or raise",
        table="size_limiter",
        flag=False,
        in_code=True,
    )
    size_limiter_compression_threshold: Annotated[int, UNIT] = setting(
        100_000,
        "size of arguments from which compress compresses them",
        table="size_limiter",
        flag=False,
        in_code=True,
    )
    size_limiter_limit: Annotated[int, UNIT] = setting(
        5_000_000,
        "size of arguments beyond which a push is reported or refused; 0 = no limit",
        table="size_limiter",
        flag=False,
        in_code=True,
    )
    routing: tuple[RoutingRule, ...] = setting(
        (), "rules selector → queue for pushes of job classes; the first that matches decides", flag=False, in_code=True
    )
    cron: tuple[CronEntry, ...] = setting(
        (), "jobs that are enqueued on a schedule: [cron.NAME] schedule, job, args, tz", flag=False
    )
    cron_file: str | None = setting(None, "YAML or TOML file with more of them, read by each worker", flag=False)
    cron_application: str | None = setting(
        None,
        "name of this application where several share a Redis, as owner of its cron; default: what -r names",
        flag=False,
    )
    encryption_keys: str = setting(
        "",
        "VERSION:KEY, separated by blanks; the newest encrypts; empty = none",
        table="encryption",
        flag=False,
        in_code=True,
        is_secret=True,
    )
    shards: tuple[Shard, ...] = setting((), "other Redis servers, by name: [shards.NAME] redis", flag=False)
    shard: str | None = setting(None, "shard of the groups that name none; default: that of `redis`", metavar="NAME")
    web: Mapping[str, Any] | None = setting(None, "web pages: users, tokens, hosts, …", flag=False, is_secret=True)
    strict_routing: bool = setting(
        False, "with shards: refuse pushes that no rule and no Client.via directs", flag=False, in_code=True
    )
    declared: frozenset[str] = frozenset()  # names of the settings that a source gives, whatever their values

    def is_declared(self, name: str) -> bool:
        """Return whether a source gives this setting, also where its value is that of the default."""
        return name in self.declared or getattr(self, name) != getattr(Config, name)

    def known_redis(self) -> str:
        """Return the address to connect to: that of the embedded server if there is one."""
        return f"{embedded.SCHEME}{self.embedded}" if self.embedded is not None else self.redis

    def known_directory(self) -> Path:
        """Return the absolute working directory: the given one, else $PWD, which keeps a link like `current`.

        $PWD counts only if it names the real directory: a parent that is not a shell may have left an old value.
        Raises UsageError if the working directory was removed.
        """
        logical, real = Path(os.environ.get("PWD", "")), working_directory()
        is_true = logical.is_absolute() and logical.is_dir() and logical.samefile(real)
        return (logical if is_true else real) / (self.directory or "")

    def known_control(self) -> str | None:
        """Return the absolute path of the control socket: the given one, else the pidfile's with .sock, else None.

        A supervisor with neither listens in $XDG_RUNTIME_DIR, under a name with its pid.
        """
        if self.control is not None:
            return str(Path(self.control).absolute())
        return None if self.pidfile is None else f"{Path(self.pidfile).absolute()}.sock"

    def default_control(self) -> str | None:
        """Return the default path of this process' control socket; None if there is no directory for it."""
        folder = os.environ.get("XDG_RUNTIME_DIR", "")
        return f"{folder}/kiqcluster-{os.getpid()}.sock" if Path(folder).is_absolute() else None

    def known_cron_application(self) -> str:
        """Return the name under which this application declares its cron entries."""
        return self.cron_application or " ".join(self.require) or self.known_tag()

    def known_tag(self) -> str:
        """Return the process tag: the given one, else the directory's name (the release's parent for Capistrano)."""
        if self.tag is not None:
            return self.tag
        directory = self.known_directory()
        is_release = directory.parent.name == "releases" and directory.name.isdigit()
        return directory.parent.parent.name if is_release else directory.name


FIELD_TYPES = get_type_hints(Config, include_extras=True)


def settings() -> Iterator[dataclasses.Field[Any]]:
    """Yield the declarations, in the order of --print-config."""
    yield from (each for each in dataclasses.fields(Config) if each.metadata)


def key_of(each: dataclasses.Field[Any]) -> str:
    """Return the name of a setting in files: `dead.max_jobs` for the key max_jobs of the table [dead]."""
    table = each.metadata["table"]
    return f"{table}.{each.name.removeprefix(f'{table}_')}" if table else each.name


def variable_of(each: dataclasses.Field[Any]) -> str:
    """Return the variable of a setting; no two settings share one, as each has a field of its own."""
    return f"KIQ_{each.name.upper()}"


def describe(config: Config, origins: Origins) -> list[tuple[str, str, str]]:
    """Return (key, value, origin) of every setting, passwords masked."""
    shown = []
    for each in settings():
        value = getattr(config, each.name)
        if each.name == "redis":
            value = masked(value)
        if FIELD_TYPES[each.name] == Bytes:
            value = show_size(value)
        value = "***" if each.metadata["is_secret"] and value else value
        shown.append(
            (key_of(each), " ".join(map(str, value)) if isinstance(value, tuple) else str(value), origins[each.name])
        )
    return shown


def working_directory() -> Path:
    """Return the working directory.  Raises UsageError if it was removed, as that of an old release may be."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(
            "the working directory was removed, and with it kiqcluster.toml if there was one; "
            "start this process in a directory that exists"
        ) from error


def parse_listen(address: str) -> tuple[str, int] | str | None:
    """Return host and port of HOST:PORT, the path of unix:PATH, None for `off`.  Raises UsageError for other forms."""
    if address == "off":
        return None
    path = address.removeprefix("unix:")
    if path != address and path:
        return path
    host, colon, port = address.rpartition(":")
    if path != address or not colon or not (port.isascii() and port.isdigit() and int(port[:6]) <= MAX_PORT):
        raise UsageError(f"--listen {address!r} is not an address; write HOST:PORT, unix:PATH or off")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  # `:8082` means all interfaces


def listen_error(listen: str, error: OSError, *, can_be_off: bool = False) -> UsageError:
    """Return the error of an address at which nothing can listen: exit 7 if another process has it, otherwise 2.

    listen: as parse_listen takes it.  can_be_off: whether `off` is another choice.
    """
    alternative = ", or --listen off" if can_be_off else ""
    if error.errno != errno.EADDRINUSE:
        reason = error.strerror or error
        return UsageError(f"--listen {listen} cannot be used ({reason}); write another address{alternative}")
    host, _, port = listen.rpartition(":")
    other = "path"
    if port.isdigit():
        free = int(port) + (PORT_STEP if int(port) + PORT_STEP <= MAX_PORT else -PORT_STEP)
        other = f"port, for example --listen {host}:{free}"
    message = f"--listen {listen} is in use by another process; write another {other}{alternative}"
    return UsageError(message, ExitCode.ADDRESS_IN_USE)
