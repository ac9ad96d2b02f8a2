"""Command `python -m kiqcluster.contrib.outbox`: relays outboxes where no worker does, and shows what waits.

relay    push what waits, until SIGTERM or SIGINT; with --once, as far as it can: exit code 1 if rows are left
status   how many rows wait, since when, why some of them could not be pushed, and which shards do not answer
retry    have rows with a problem tried at once

The application (-r) says which databases there are, as for workers; environment and files say where Redis is.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence

import click

from kiqcluster.application import loading
from kiqcluster.contrib.outbox.relay import Relay
from kiqcluster.errors import KiqError, StoreError, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.durations import show_duration
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, current_setup
from kiqcluster.store.shards import DEFAULT_SHARD
from kiqcluster.worker.maintenance.outside_sources import SourceMover

SHOWN_ROWS = 20
END_SECONDS = 5.0  # for a batch that is on its way
ELSEWHERE = (
    "call use_outbox(engine) where its jobs are declared. In a Django project, set DJANGO_SETTINGS_MODULE, and pass "
    "-r kiqcluster.contrib.django:load"
)
IN_DJANGO = (
    "in a Django project, pass -r kiqcluster.contrib.django:load, and see that INSTALLED_APPS has "
    "kiqcluster.contrib.django, and that KIQCLUSTER_OUTBOX_DATABASES names a database of PostgreSQL or SQLite"
)
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def load_relays(require: Sequence[str]) -> list[Relay]:
    """Import the application; return the relays that it has declared.  Raises ApplicationError, UsageError."""
    with contextlib.redirect_stdout(sys.stderr):
        loading.load(require, Config().known_directory())
    relays = [source for source in current_setup().due_sources if isinstance(source, Relay)]
    if not relays:
        raise UsageError(f"the application declares no outbox; {IN_DJANGO if is_django_configured() else ELSEWHERE}")
    return relays


def is_django_configured() -> bool:
    """Return whether the application has read settings of Django."""
    conf = sys.modules.get("django.conf")
    return conf is not None and bool(conf.settings.configured)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Have errors of ours shown without a traceback."""
    try:
        yield
    except KiqError as error:
        failure = click.ClickException(str(error))
        failure.exit_code = int(error.exit_code)  # type: ignore[misc]  # click reads it of the instance
        raise failure from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-r", "--require", multiple=True, required=True, metavar="APP", help="module or file, as of kiqcluster")
@click.pass_context
@shown()
def outbox(context: click.Context, require: tuple[str, ...]) -> None:
    """Relay the outboxes of an application, and show what waits in them."""
    context.obj = load_relays(require)


@outbox.command()
@click.option("--once", is_flag=True, help="end when nothing more can be pushed; exit code 1 if rows are left")
@click.pass_obj
@shown()
def relay(relays: list[Relay], once: bool) -> None:
    """Push what waits, until SIGTERM or SIGINT."""
    if once:
        relay_once(relays)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # before the threads, which inherit it
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    setup = current_setup()
    runtime = Runtime(setup.current_config(), setup.current_store(), setup, Events())
    movers = [SourceMover(each, runtime, tell_crash) for each in relays]
    for mover in movers:
        mover.start()
    click.echo(f"relaying {', '.join(each.name for each in relays)}", err=True)
    signal.sigwait(ENDING_SIGNALS)
    for mover in movers:
        mover.stop()
    for mover in movers:
        mover.join(END_SECONDS)


def relay_once(relays: Sequence[Relay]) -> None:
    left = []
    for each in relays:
        while each.move():
            pass
        summary = each.table.summary()
        if summary.waiting:
            left.append(f"{each.table.name}: {summary.waiting} still wait, {summary.refused} with a problem")
    if left:
        raise click.ClickException("\n".join([*left, *silent_shards()]))


def silent_shards() -> list[str]:
    """Return a line for each shard that does not answer."""
    setup, lines = current_setup(), []
    for name in (DEFAULT_SHARD, *(shard.name for shard in setup.current_config().shards)):
        try:
            setup.shard(name).call("PING")
        except StoreError as error:
            lines.append(f"the shard {name!r} does not answer: {error}")
    return lines


def tell_crash(name: str, error: Exception) -> None:
    current_setup().notify_error_handlers(error, {"context": name})


@outbox.command()
@click.pass_obj
@shown()
def status(relays: list[Relay]) -> None:
    """Show how many rows wait, the problems of some, and shards that do not answer."""
    now = SystemClock.now()
    for each in relays:
        summary = each.table.summary()
        age = "" if summary.oldest_at is None else f", the oldest for {show_duration(int(now - summary.oldest_at))}"
        click.echo(f"{each.table.name}: {summary.waiting} waiting{age}; {summary.refused} with a problem")
        for row in each.table.refused(SHOWN_ROWS):
            click.echo(f"  {row.id} {row.job_class!r} {row.jid!r}: {row.problem!r}")
    for line in silent_shards():
        click.echo(line)


@outbox.command()
@click.pass_obj
@shown()
def retry(relays: list[Relay]) -> None:
    """Have rows with a problem tried at once."""
    for each in relays:
        click.echo(f"{each.table.name}: {each.table.retry_refused()} rows")


if __name__ == "__main__":
    outbox(prog_name="python -m kiqcluster.contrib.outbox")
