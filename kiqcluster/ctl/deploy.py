"""deploy begin, commit, abort: a release in three steps that a script can fail between.

Whatever happens to the script, the quiet that `begin` has begun ends with its lease.
"""

from __future__ import annotations

import subprocess

import click

from kiqcluster.api.deploys import mark
from kiqcluster.ctl.by_redis import RedisWay
from kiqcluster.ctl.options import DURATION, SETTINGS, Output, host_option, json_option, redis_options, timeout_option
from kiqcluster.ctl.steer import agreed, message, report, rolling
from kiqcluster.ctl.waiting import Watch
from kiqcluster.errors import UsageError
from kiqcluster.store import Store

__all__ = ["deploy"]

NAME = "deploy"  # who asks, as far as the supervisors know
LEASE = 900.0  # seconds
GIT_PATIENCE = 5.0  # seconds


@click.group(context_settings=SETTINGS)
def deploy() -> None:
    """Take a fleet through a release: quiet early, roll late.

    \b
      kiqctl deploy begin --wait && ./release.sh && kiqctl deploy commit || kiqctl deploy abort
    """


@deploy.command(context_settings=SETTINGS)
@click.option("--lease", type=DURATION, default=LEASE, help="after which the quiet ends by itself  [15m]")
@click.option("--label", help="of the mark on Sidekiq's metrics page  [hash and subject of git's last commit]")
@click.option("--wait", is_flag=True, help="until nothing runs any more")
@timeout_option("how long to wait at most  [as long as it takes]")
@host_option
@redis_options
@json_option
@click.pass_context
def begin(
    ctx: click.Context,
    store: Store,
    output: Output,
    lease: float,
    label: str | None,
    wait: bool,
    timeout: float | None,
    hosts: tuple[str, ...],
) -> None:
    """Have the fleet be quiet for a while, and mark the deploy.

    The mark is for Sidekiq's metrics page.

    \b
      kiqctl deploy begin
      kiqctl deploy begin --lease 30m --wait --label 'v42'
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    way, what = RedisWay(store, hosts), message("quiet", lease, name=NAME)
    answers = way.tell(what)
    names = agreed(answers)
    if len(names) == len(answers):
        mark(label or git_label(), store=store)
    problems = Watch().until_drained(way, names, timeout, output.say) if wait else {}
    ctx.exit(report(output, what, answers, problems, way.look()))


@deploy.command(context_settings=SETTINGS)
@timeout_option("how long to wait at most  [as long as it takes]")
@host_option
@redis_options
@json_option
@click.pass_context
def commit(ctx: click.Context, store: Store, output: Output, timeout: float | None, hosts: tuple[str, ...]) -> None:
    """Roll every supervisor, and wait for it.

    Exit code 1 if one of them fails.  The quiet ends with the roll, also with one that fails: what works goes on.

    \b
      kiqctl deploy commit
      kiqctl deploy commit --timeout 20m
    """
    ctx.exit(rolling(RedisWay(store, hosts), output, message("roll"), wait=True, timeout=timeout))


@deploy.command(context_settings=SETTINGS)
@host_option
@redis_options
@json_option
@click.pass_context
def abort(ctx: click.Context, store: Store, output: Output, hosts: tuple[str, ...]) -> None:
    """Resume: the release is not to be.  A quiet that no deploy has begun goes on; `kiqctl resume` ends it.

    \b
      kiqctl deploy abort
    """
    way, what = RedisWay(store, hosts), message("resume", name=NAME, whose=NAME)
    answers = way.tell(what)
    ctx.exit(report(output, what, answers, {}, way.look()))


def git_label() -> str:
    """Return hash and subject of the last commit here, as Sidekiq does; `deploy` where there is no git."""
    try:
        command = ["git", "log", "-1", "--format=%h %s"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "deploy"
    return done.stdout.strip() or "deploy"
