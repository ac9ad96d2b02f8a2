"""The command `kiqctl`: its groups of commands, and what a failure looks like."""

from __future__ import annotations

from typing import Any

import click

from kiqcluster.ctl.deploy import deploy
from kiqcluster.ctl.exporter import exporter
from kiqcluster.ctl.options import SETTINGS
from kiqcluster.ctl.ps import ps
from kiqcluster.ctl.steer import quiet, reload, resume, roll
from kiqcluster.errors import KiqError
from kiqcluster.version import VERSION

__all__ = ["command", "main"]

HELP = """Steer and watch the kiqcluster processes on a Redis.

\b
  kiqctl ps                       who is there, and what they do
  kiqctl quiet --lease 15m --wait fetch nothing more, and wait until nothing runs
  kiqctl resume                   fetch again
  kiqctl roll --wait              replace every worker process, one after the other
  kiqctl deploy begin             quiet, and mark the deploy; then deploy commit, or deploy abort

Redis is found as kiqcluster finds it: --redis, KIQ_REDIS or REDIS_URL, the configuration file.
Exit codes: 0 done, 1 refused, unanswered or nobody there, 2 usage or configuration, 5 Redis refused.
"""


class Commands(click.Group):
    """A group whose commands fail with a message and a code, and no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KiqError as error:
            click.echo(f"kiqctl: {error}", err=True)
            ctx.exit(int(error.exit_code))


@click.group(cls=Commands, help=HELP, context_settings=SETTINGS)
@click.version_option(VERSION, message="kiqctl %(version)s")
def command() -> None:
    """See HELP."""


for each in (ps, quiet, resume, roll, reload, deploy, exporter):
    command.add_command(each)


def main() -> None:
    """Run the command; leave with its code."""
    command.main(prog_name="kiqctl")
