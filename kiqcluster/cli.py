"""The command `kiqcluster`: flags → configuration → supervisor, or a command that starts no cluster.

The cli passes the supervisor a callable that runs a worker, so that neither imports the other.
It imports the worker's modules, never the application, before the first fork, so that children share them.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from kiqcluster.errors import ExitCode, KiqError, UsageError
from kiqcluster.ipc import local_http, stdio
from kiqcluster.ipc.console import run_command
from kiqcluster.ipc.exits import exit_process
from kiqcluster.process import config as configuration
from kiqcluster.process import config_sources
from kiqcluster.process.clock import RunningClock
from kiqcluster.process.config import Config, Origins
from kiqcluster.process.events import Events
from kiqcluster.process.logs import log
from kiqcluster.process.logs.handlers import DroppingHandler
from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq.queue_groups import Group
from kiqcluster.store import embedded
from kiqcluster.supervisor import catalogue
from kiqcluster.supervisor.catalogue import Catalogue
from kiqcluster.supervisor.cluster import expansion
from kiqcluster.supervisor.configuration import ReadConfig
from kiqcluster.supervisor.spawner import SpawnSpec
from kiqcluster.supervisor.supervisor import Supervisor
from kiqcluster.words import hint_of
from kiqcluster.worker.child import run_child
from kiqcluster.worker.child_spec import ChildSpec

__all__ = ["main"]

F = TypeVar("F", bound=Callable[..., Any])

CHECK_PAGES = ("liveness", "readiness", "startup")
LOCATION_SETTINGS = frozenset(
    {"listen", "control", "pidfile", "environment"}
)  # settings that determine where a cluster listens
CHECK_TIMEOUT_SECONDS = 5.0  # for the answer to --check
NO_APPLICATION = "no application given: name the module or file that defines the jobs, as in -r app.jobs"

HELP = """Run a worker process for each GROUP of queues.

\b
  kiqcluster -r app 'cronjob:*' default,mailers     two worker processes
  kiqcluster -r app critical=5,default              one, weighted
  kiqcluster -r app -q critical,5 -q default -c 10  the same, Sidekiq's way
  kiqcluster --embedded -r app default              with a private server, to try it
  kiqcluster -r app --queue-selector 'urgency=high' 'urgency!=high'   by attributes of jobs

A GROUP is a comma list of queue names: `name=3` gives a weight, `cronjob` takes in its namespace `cronjob:…`,
'cronjob:*' the namespace only, '*' every queue (quote the stars).
"""


def main() -> None:
    """Run the command; exit with one of the codes of errors.ExitCode."""
    stdio.prepare()
    run_command(command, "kiqcluster", separate_embedded(sys.argv[1:]))


def separate_embedded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a folder for `--embedded`: the next word only if it looks like a path."""
    separated = []
    for at, word in enumerate(arguments):
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        if word == "--embedded" and not (os.sep in following or following.startswith(".")):
            word = f"--embedded={embedded.DEFAULT_DIRECTORY}"
        separated.append(word)
    return separated


def setting_options(function: F) -> F:
    """Add a click option for each setting that has a flag, from its declaration."""
    hints = get_type_hints(Config)
    for each in reversed(list(configuration.settings())):
        if not each.metadata["flag"]:
            continue
        function = _option(each, hints[each.name])(function)
    return function


def _option(each: dataclasses.Field[Any], kind: Any) -> Callable[[F], F]:
    flag = each.metadata["flag"]
    flag = flag if isinstance(flag, str) else f"--{each.name.replace('_', '-')}"
    names = [name for name in (each.metadata["short"], flag, each.name) if name]
    text = each.metadata["help"]
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", each.name, default=None, help=text)
    if kind == tuple[str, ...]:
        return click.option(*names, multiple=True, metavar=each.metadata["metavar"], help=text)
    if each.default not in (None, ""):
        text = f"{text}  [{each.default:g}]" if isinstance(each.default, float) else f"{text}  [{each.default}]"
    kinds: dict[Any, Any] = {int: click.INT, int | None: click.INT}  # durations are parsed with other sources' values
    return click.option(
        *names, type=kinds.get(kind, click.STRING), default=None, metavar=each.metadata["metavar"], help=text
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that the configuration depends on.  A reload reads it by the same ones.

    groups: as on the command line.  queue_options: of -q.  flags: setting → value.
    """

    groups: Sequence[str]
    queue_options: Sequence[str]
    flags: Mapping[str, Any]
    config_file: str | None

    def groups_of(self, config: Config) -> Sequence[Group]:
        """Return the queue groups of the command line, else those of the configuration.  Raises UsageError."""
        return expansion.groups_from(self.groups, self.queue_options, config)

    def read_again(self, place: Path, environ: Mapping[str, str]) -> tuple[Config, Sequence[Group]]:
        """Return the configuration and the groups that a start would have now.  Raises UsageError.

        place: directory of the configuration file.  environ: of the start.
        """
        os.chdir(place)  # so that relative paths mean the same as at the start
        file = None if self.config_file is None else str(place / self.config_file)
        config, _ = config_sources.load(self.flags, file=file, environ=environ, directory=place)
        config = settle_directory(config)
        if not config.require:
            raise UsageError(NO_APPLICATION)
        if not (self.groups or self.queue_options or config.groups):
            gone = self.config_file or "kiqcluster.toml"
            raise UsageError(f"no queue group is left: {place / gone} is gone, or names no groups")
        return config, self.groups_of(config)


class _Command(click.Command):
    """A command that answers flags of other job systems with its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (hint := hint_of("flag", error.option_name)) is not None:
                raise click.UsageError(f"there is no flag {error.option_name}; {hint}", ctx) from error
            raise


@click.command(
    cls=_Command, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.argument("groups", nargs=-1, metavar="GROUP...")
@click.option(
    "-q",
    "--queue",
    "queue_options",
    multiple=True,
    metavar="NAME[,WEIGHT]",
    help="one group, Sidekiq's way; repeatable",
)
@setting_options
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="any setting of the configuration file: --set dead.max_jobs=5000; repeatable",
)
@click.option(
    "--embedded", metavar="[DIR]", help=f"run a private server with its data in DIR  [{embedded.DEFAULT_DIRECTORY}]"
)
@click.option(
    "-C", "--config", "config_file", metavar="FILE", help="configuration file  [kiqcluster.toml, pyproject.toml]"
)
@click.option("--dryrun", is_flag=True, help="show the slots and start nothing")
@click.option("--json", "as_json", is_flag=True, help="with --dryrun: as JSON")
@click.option("--list-queues", is_flag=True, help="print the queues of all groups, a name a line, and start nothing")
@click.option("--print-config", is_flag=True, help="print every setting with its origin, and start nothing")
@click.option(
    "--check",
    "page",
    is_flag=False,
    flag_value=CHECK_PAGES[0],
    type=click.Choice(CHECK_PAGES),
    metavar="[PAGE]",
    help=f"ask the cluster that listens here, exit 0 when all is well: {', '.join(CHECK_PAGES)}  [{CHECK_PAGES[0]}]",
)
@click.version_option(VERSION, message="kiqcluster %(version)s")
def command(
    groups: tuple[str, ...],
    queue_options: tuple[str, ...],
    assignments: tuple[str, ...],
    config_file: str | None,
    dryrun: bool,
    as_json: bool,
    list_queues: bool,
    print_config: bool,
    page: str | None,
    **flags: Any,
) -> None:
    """Load the configuration and run the command that the flags choose."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        given = {**config_sources.read_assignments(assignments), **given}
        arguments = Arguments(groups, queue_options, given, config_file)
        if page is not None:
            exit_process(check(given, config_file, page))
        config, origins = config_sources.load(given, file=config_file)
        place = place_of_file(config)
        if warning := config_sources.missing_section(config, origins, config_file):
            click.echo(f"kiqcluster: {warning}", err=True)
        if print_config:
            show_config(config, origins)
            return
        if dryrun and list_queues:
            raise UsageError("--dryrun and --list-queues are two commands; give one of them")
        if as_json and not dryrun:
            raise UsageError("--json goes with --dryrun")
        config = settle_directory(config)
        expansion.refuse_listing(groups, (path.name for path in Path.cwd().iterdir()))
        if not config.require:
            raise UsageError(NO_APPLICATION)
        parsed = arguments.groups_of(config)
        if dryrun or list_queues:
            show_slots(config, parsed, as_json=as_json, names_only=list_queues)
            return
        # Without the embedded server's REDIS_URL, which is exported only for the workers.
        environ = {**os.environ, "KIQ_ENV": config.environment}
        code = run_cluster(config, parsed, lambda: arguments.read_again(place, environ))
    except KiqError as error:
        click.echo(f"kiqcluster: {error}", err=True)
        exit_process(error.exit_code)
    exit_process(code)


def check(flags: Mapping[str, Any], config_file: str | None, page: str) -> ExitCode:
    """Ask the cluster of this configuration for its health; return 0 when it is healthy.  Raises UsageError.

    A mistake in another setting does not make a running cluster unhealthy.
    """
    config, slip = config_sources.load_part(LOCATION_SETTINGS, flags, file=config_file)
    if slip:
        click.echo(f"kiqcluster: a start would fail now: {slip}", err=True)
    place = configuration.parse_listen(config.listen) or config.known_control()
    if place is None:
        raise UsageError("--check has nobody to ask: with --listen off, name the --pidfile or the control socket")
    try:
        status, body = local_http.request(place, "GET", f"/{page}", CHECK_TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        where = place if isinstance(place, str) else f"{place[0]}:{place[1]}"
        reason = getattr(error, "strerror", None) or error
        hint = "does the cluster run, and do `listen` and `control` here say what they say there (--print-config)?"
        click.echo(f"kiqcluster: no answer from {where} ({reason}); {hint}", err=True)
        return ExitCode.UNEXPECTED
    click.echo(body.decode(errors="replace").rstrip())
    return ExitCode.STOPPED if status == http.HTTPStatus.OK else ExitCode.UNEXPECTED


def run_cluster(config: Config, groups: Sequence[Any], read_config: ReadConfig) -> int:
    """Run a supervisor until it ends; return its exit code."""
    os.environ["KIQ_ENV"] = config.environment
    if config.embedded is not None:
        # For the application's own clients of the same server, with any library.
        os.environ["REDIS_URL"] = embedded.url_of(embedded.directory_of(config.embedded))
    log.configure(config.log_format, config.log_level, handler=DroppingHandler)
    events = Events()
    log.word_events(events)

    def run(spawn: SpawnSpec) -> int:
        log.configure(config.log_format, config.log_level)  # a worker's lines wait for their reader
        return run_child(
            ChildSpec(
                slot=spawn.plan.slot,
                config=spawn.config,
                group=spawn.plan.group,
                known_queues=spawn.known_queues,
                cluster_queues=spawn.cluster_queues,
                concurrency=spawn.plan.concurrency,
                quiet=spawn.quiet,
                running_jobs=spawn.running_jobs,
                parent=spawn.parent,
                orphans=spawn.orphans,
                directory=spawn.directory,
            )
        )

    return Supervisor(config, groups, run, events, os.environ, read_config).run()


def place_of_file(config: Config) -> Path:
    """Return the directory of the configuration file: this one, by its logical path.

    By that path a reload finds the file of the release that is current then.  A parent that is not a shell sets no
    $PWD, but may give the path by --directory.
    """
    here = Config().known_directory()
    named = config.known_directory()
    return named if named.is_dir() and named.samefile(here) else here


def settle_directory(config: Config) -> Config:
    """Enter the working directory; return the configuration with absolute paths, for processes that move."""
    directory = str(config.known_directory())
    if not Path(directory).is_dir():
        raise UsageError(f"--directory {directory} does not exist; nothing was started")
    os.chdir(directory)
    folder = None if config.embedded is None else str(embedded.directory_of(config.embedded))
    pidfile = None if config.pidfile is None else str(Path(config.pidfile).absolute())
    control = None if config.control is None else str(Path(config.control).absolute())
    listen = config.listen
    if listen.startswith("unix:"):
        listen = f"unix:{Path(listen.removeprefix('unix:')).absolute()}"
    return dataclasses.replace(
        config, directory=directory, embedded=folder, pidfile=pidfile, control=control, listen=listen
    )


def ask_catalogue(config: Config) -> Catalogue:
    """Return the jobs of the application, without asking Redis."""
    directory = Path(config.directory or Path.cwd())
    return catalogue.ask(config, directory, RunningClock(catalogue.DEADLINE_CHECK_SECONDS))


def show_slots(config: Config, groups: Sequence[Group], *, as_json: bool, names_only: bool) -> None:
    """Print the slots that a start would run."""
    known, jobs = ask_catalogue(config).known(config)
    plans = expansion.plan_slots(groups, known, config, jobs)
    show_plans(plans, as_json=as_json, names_only=names_only)
    if not names_only and not as_json:
        show_unheard_of(plans, known)
        for problem in expansion.setting_warnings(config, len(plans)):
            click.echo(f"kiqcluster: {problem}", err=True)


def show_plans(plans: Sequence[expansion.SlotPlan], *, as_json: bool, names_only: bool) -> None:
    if names_only:
        for name in expansion.listed_queues(plans):
            click.echo(name)
    elif as_json:
        click.echo(json.dumps([plan.as_json() for plan in plans]))
    else:
        for plan in plans:
            queues = ", ".join(name if weight == 1 else f"{name}={weight}" for name, weight in plan.weights.items())
            none = "(no queue known yet)" if plan.selector is None else "(no job matches)"
            selector = "" if plan.selector is None else f"  [{plan.selector}]"
            selector += f"  in shard {plan.group.shard}" if plan.group.shard else ""
            click.echo(f"slot {plan.slot}: {plan.concurrency} threads, {plan.mode}: {queues or none}{selector}")


def show_unheard_of(plans: Sequence[expansion.SlotPlan], known: Collection[str]) -> None:
    for plan in plans:
        if names := plan.group.unheard_of(known):
            hint = plan.group.hint_for(names, known)
            goes_to = "goes to" if plan.selector is None else "has"
            text = f"slot {plan.slot}: no registered job {goes_to} {', '.join(names)}; {hint}"
            click.echo(f"kiqcluster: {text}", err=True)


def show_config(config: Config, origins: Origins) -> None:
    rows = configuration.describe(config, origins)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        click.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}")
