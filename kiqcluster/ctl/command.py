"""The command `kiqctl`: its groups of commands, and what a failure looks like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from kiqcluster.ctl.batches.batches import batches
from kiqcluster.ctl.exporter.exporter import exporter
from kiqcluster.ctl.fleet.cancel import cancel
from kiqcluster.ctl.fleet.deploy import deploy
from kiqcluster.ctl.fleet.monitor import monitor
from kiqcluster.ctl.fleet.ps import ps
from kiqcluster.ctl.fleet.routes import routes
from kiqcluster.ctl.fleet.signals import dump, signal
from kiqcluster.ctl.fleet.steer import kill, quiet, reload, resume, roll
from kiqcluster.ctl.fleet.web import web
from kiqcluster.ctl.jobs.cron import cron
from kiqcluster.ctl.jobs.enqueue import enqueue
from kiqcluster.ctl.jobs.entry_commands import dead, dropped, retries, scheduled
from kiqcluster.ctl.jobs.jobs import jobs
from kiqcluster.ctl.jobs.limits import limits
from kiqcluster.ctl.jobs.locks import locks
from kiqcluster.ctl.jobs.migrate import migrate
from kiqcluster.ctl.jobs.queues import queues
from kiqcluster.ctl.jobs.stats import stats
from kiqcluster.ctl.jobs.strike import strike
from kiqcluster.ctl.text.completion import completion
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, output_of
from kiqcluster.ctl.text.tables import clean
from kiqcluster.ctl.top.busy import busy
from kiqcluster.ctl.top.top import top
from kiqcluster.errors import KiqError, RedisRefused, RedisUnavailable
from kiqcluster.ipc import stdio
from kiqcluster.ipc.console import run_command
from kiqcluster.process.version import VERSION
from kiqcluster.store.replies import broken_keys
from kiqcluster.words import hint_of

__all__ = ["command", "main"]

HELP = """Steer and watch the kiqcluster processes on a Redis.

\b
  kiqctl ps                       who is there, and what they do; live: kiqctl top
  kiqctl busy                     which jobs run; at a glance, as sidekiqmon: kiqctl monitor
  kiqctl web                      the same in a browser, with what can be done about it
  kiqctl enqueue SendInvoice 7    a job of any class, Python's or Ruby's
  kiqctl queues                   what waits where, and who listens; its jobs: kiqctl jobs default
  kiqctl cancel b4a577edbccf1d80  … one job by its id, wherever it waits or runs
  kiqctl limits                   concurrency limits: which jobs hold places, how many are parked
  kiqctl retries                  what failed, will run later, is dead: kiqctl retries, scheduled, dead
  kiqctl retries retry --all      … now; as others do, it says how many these are, and asks
  kiqctl strike add SendInvoice --defer 5m   keep jobs of a class from running for a while
  kiqctl batches                    many jobs with one status: how far they are, which have failed
  kiqctl routes -r app            to which queue each class goes, and by which rule
  kiqctl migrate --from low --to default   jobs of one queue, or class, to another queue
  kiqctl quiet --lease 15m --wait fetch nothing more, and wait until nothing runs
  kiqctl resume                   fetch again
  kiqctl roll --wait              replace every worker process, one after the other
  kiqctl deploy begin             quiet, and mark the deploy; then deploy commit, or deploy abort
  kiqctl signal TTIN app-1:4243   what a signal means, for a process on any host; kiqctl dump is the same for all

Redis is found as kiqcluster finds it: --redis, KIQ_REDIS or REDIS_URL, the configuration file.
Exit codes: 0 done, 1 refused, unanswered, nobody there or the output lost, 2 usage or configuration, 5 Redis refused,
6 somebody else deploys.
"""

CREDENTIALS_HINT = " The password belongs into the address, as in redis://:PASSWORD@HOST:6379/0"
ADDRESS_HINT = "; if that is not the one you mean, say which: REDIS_URL, or --redis after the command"
ANOTHER_TYPE = "{} is a key of another type than Sidekiq's, so what it should hold counts as 0"
HINTS = {"NOAUTH": CREDENTIALS_HINT, "WRONGPASS": CREDENTIALS_HINT}  # by the first word of what Redis says


class CommandGroup(click.Group):
    """A group whose commands fail with a message and a code, and no traceback."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and (hint := hint_of("command", args[0])) is not None:
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _broken_keys_named():
                return super().invoke(ctx)
        except KiqError as error:
            hint = _hint(error)
            click.echo(clean(f"kiqctl: {error}{hint}"), err=True)  # it may quote names from Redis
            _document_failure(ctx, f"{error}{hint}")
            ctx.exit(int(error.exit_code))
        except (KeyboardInterrupt, click.Abort):
            _document_failure(ctx, "interrupted")
            raise


@contextmanager
def _broken_keys_named() -> Iterator[None]:
    """Name the keys of another type that a command has met: what it shows of them is nothing."""
    with broken_keys() as broken:
        try:
            yield
        finally:
            for key in broken:
                click.echo(f"kiqctl: {ANOTHER_TYPE.format(clean(key))}", err=True)


def _hint(error: KiqError) -> str:
    if isinstance(error, RedisUnavailable):
        return ADDRESS_HINT
    return HINTS.get(error.code, "") if isinstance(error, RedisRefused) else ""


def _document_failure(ctx: click.Context, error: str) -> None:
    output = output_of(ctx)
    if output is not None:
        output.failure(error)


@click.group(cls=CommandGroup, help=HELP, context_settings=CONTEXT_SETTINGS)
@click.version_option(VERSION, message="kiqctl %(version)s")
def command() -> None:
    """See HELP."""


READ_COMMANDS = (ps, top, busy, monitor, stats, routes, exporter, web, completion)
JOB_COMMANDS = (enqueue, queues, jobs, limits, locks, retries, scheduled, dead, dropped, strike, cron, batches, migrate)
ORDER_COMMANDS = (quiet, resume, roll, reload, deploy, signal, dump, cancel, kill)

for each in (*READ_COMMANDS, *JOB_COMMANDS, *ORDER_COMMANDS):
    command.add_command(each)


def main() -> None:
    """Run the command; leave with its code."""
    stdio.prepare()
    run_command(command, "kiqctl", lost="; what you asked for may be done")
