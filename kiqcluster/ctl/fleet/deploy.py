"""deploy begin, commit, abort: the steps of a release, for scripts that may fail between them.

If the script dies, the quiet that `begin` started ends with its lease, and so does the deploy lock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TypeVar

import click

from kiqcluster.api.deploys import mark
from kiqcluster.control.control_messages import MAX_TEXT_CHARACTERS, new_message
from kiqcluster.control.deploy_lock import DeployLock, default_owner
from kiqcluster.control.deploy_transport import DeployTransport, LocalSockets
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.waiting import Waiter
from kiqcluster.ctl.fleet.steer import accepted, report
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    DURATION,
    Output,
    host_option,
    json_option,
    redis_options,
    timeout_option,
)
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store

__all__ = ["deploy"]

REQUESTER = "deploy"  # who asks, as far as the supervisors know
DEFAULT_LEASE_SECONDS = 900.0  # seconds
MAX_LOCK_SECONDS = 86_400.0  # of the lock, where the quiet has no end
GIT_TIMEOUT_SECONDS = 5.0  # seconds
F = TypeVar("F", bound=Callable[..., object])


def _owner(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:  # click's order
    owner = value or default_owner()
    if not owner.isprintable() or len(f"{REQUESTER}@{owner}") > MAX_TEXT_CHARACTERS:
        raise UsageError(f"--owner is a line of at most {MAX_TEXT_CHARACTERS - len(REQUESTER) - 1} characters")
    return owner


def owner_option(function: F) -> F:
    """Add --owner."""
    text = "who deploys; the same at each step  [KIQCTL_OWNER, or USER@HOST and the pid of the shell]"
    option = click.option("--owner", metavar="NAME", envvar="KIQCTL_OWNER", callback=_owner, help=text)
    return option(function)


def outage_options(function: F) -> F:
    """Add the options of a step that survives an outage of Redis."""
    for option in (
        click.option(
            "--socket", "sockets", multiple=True, metavar="PATH",
            help="control socket of this host, used while Redis is away; repeatable  [those that are found]",
        ),
        click.option("--patience", type=DURATION, help="how long Redis may be away  [what the lease has left; 15m]"),
    ):  # fmt: skip
        function = option(function)
    return function


def deploy_transport(
    store: Store, hosts: tuple[str, ...], owner: str, sockets: tuple[str, ...], patience: float | None
) -> DeployTransport:
    """Return the transport of a step that survives an outage.  patience: seconds, None for those of the lease."""
    lock, local = DeployLock(store, owner), LocalSockets(f"{REQUESTER}@{owner}", sockets)
    max_outage = patience or DEFAULT_LEASE_SECONDS
    return DeployTransport(store, hosts, lock, local, max_outage, is_max_outage_exact=patience is not None)


@click.group(context_settings=CONTEXT_SETTINGS)
def deploy() -> None:
    """Take a fleet through a release: quiet early, roll late.

    Each step looks at one shard: the default one, or that of --shard.  It reaches the supervisors that have a worker
    there, for all of their slots, but `begin --wait` waits for the jobs of that shard only.  Supervisors without a
    worker there are not reached: with those, run each step once per shard, with the same --owner.

    \b
      kiqctl deploy begin --wait && ./release.sh && kiqctl deploy commit || kiqctl deploy abort
    """


@deploy.command(context_settings=CONTEXT_SETTINGS)
@click.option(
    "--lease", type=DURATION, default=DEFAULT_LEASE_SECONDS, help="after which quiet and lock end by themselves  [15m]"
)
@click.option("--label", help="of the mark on Sidekiq's metrics page  [hash and subject of git's last commit]")
@click.option("--wait", is_flag=True, help="until nothing runs any more")
@timeout_option("how long to wait at most  [as long as it takes]")
@click.option("--force", is_flag=True, help="take the lock from whoever has it, and say from whom")
@owner_option
@host_option
@redis_options
@json_option
@click.pass_context
def begin(
    ctx: click.Context,
    store: Store,
    output: Output,
    owner: str,
    lease: float,
    label: str | None,
    wait: bool,
    timeout: float | None,
    force: bool,
    hosts: tuple[str, ...],
) -> None:
    """Take the deploy lock, quiet the fleet, and mark the deploy.

    While another deploy holds the lock nothing is done, and the exit code is 6.  The mark is for Sidekiq's pages.
    Lock, mark and --wait are of one shard, the default one or that of --shard; `kiqctl busy` shows the jobs of all.

    \b
      kiqctl deploy begin
      kiqctl deploy begin --lease 30m --wait --label 'v42'
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    lock = DeployLock(store, owner)
    state = lock.take(lease or MAX_LOCK_SECONDS, force=force)
    if state.before not in ("", owner):
        output.info(f"the lock was taken from {state.before}")
    transport, order = RedisTransport(store, hosts), new_message("quiet", lease, name=REQUESTER, whom=owner)
    try:
        answers = transport.send(order)
    except Exception:
        lock.drop()
        raise
    names = accepted(answers)
    if len(names) == len(answers):
        mark(label or git_label(), store=store)
    problems = Waiter().until_drained(transport, names, timeout, output.info) if wait else {}
    ctx.exit(
        report(
            output, order, answers, problems, transport.statuses(), more={"owner": owner, "taken_from": state.before}
        )
    )


@deploy.command(context_settings=CONTEXT_SETTINGS)
@timeout_option("how long to wait at most  [as long as it takes]")
@owner_option
@outage_options
@host_option
@redis_options
@json_option
@click.pass_context
def commit(
    ctx: click.Context,
    store: Store,
    output: Output,
    owner: str,
    timeout: float | None,
    sockets: tuple[str, ...],
    patience: float | None,
    hosts: tuple[str, ...],
) -> None:
    """Roll every supervisor, and wait for it.

    Every one that has a worker in the default shard, or in that of --shard.  Exit code 1 if one of them fails.  The
    quiet ends with the roll, also if it fails: working workers go on.  The lock then stays for `abort`.  While Redis is
    away this keeps trying, and reaches the clusters of this host through their control sockets.

    \b
      kiqctl deploy commit
      kiqctl deploy commit --timeout 20m
    """
    transport = deploy_transport(store, hosts, owner, sockets, patience)
    order = new_message("roll", name=REQUESTER, whom=owner)
    transport.begin(order)
    answers = transport.send(order)
    problems = Waiter(max_outage=transport.max_outage).until_rolled(
        transport, accepted(answers), order.id, timeout, output.info
    )
    code = report(output, order, answers, problems, transport.final_statuses(), ", rolled", more={"owner": owner})
    if code == ExitCode.STOPPED:
        transport.end()
    ctx.exit(code)


@deploy.command(context_settings=CONTEXT_SETTINGS)
@timeout_option("how long to wait for the roll back at most  [as long as it takes]")
@owner_option
@outage_options
@host_option
@redis_options
@json_option
@click.pass_context
def abort(
    ctx: click.Context,
    store: Store,
    output: Output,
    owner: str,
    timeout: float | None,
    sockets: tuple[str, ...],
    patience: float | None,
    hosts: tuple[str, ...],
) -> None:
    """Resume, and roll back workers that already have the release.  Waits for the rollback.

    Once the deploy is committed, or its lease has ended, nothing is rolled back.
    `abort` does not end a quiet that another operator started; `kiqctl resume` does.  A roll that is under way ends as
    superseded.  While another deploy holds the lock nothing is done, and the exit code is 6.  An outage of Redis is
    handled as by `commit`.

    \b
      kiqctl deploy abort
    """
    transport = deploy_transport(store, hosts, owner, sockets, patience)
    resume, order = (
        new_message("resume", name=REQUESTER, whose=REQUESTER, whom=owner),
        new_message("rollback", name=REQUESTER, whom=owner),
    )
    is_open = transport.begin(resume, order)
    answers = transport.send(resume)
    problems = {each.name: each.error for each in answers if each.error is not None}
    if is_open:
        answers = transport.send(order)
        problems |= Waiter(max_outage=transport.max_outage).until_rolled(
            transport, accepted(answers), order.id, timeout, output.info
        )
    else:
        output.info(f"no deploy of {owner} is open: workers were resumed, and none is rolled back")
    more = {"owner": owner, "is_rolled_back": is_open}
    code = report(output, order if is_open else resume, answers, problems, transport.final_statuses(), more=more)
    if code == ExitCode.STOPPED:
        transport.end()
    ctx.exit(code)


@deploy.command(context_settings=CONTEXT_SETTINGS)
@owner_option
@redis_options
@json_option
@click.pass_context
def status(ctx: click.Context, store: Store, output: Output, owner: str) -> None:
    """Show who holds the deploy lock.  The exit code is 6 if that is another owner.

    \b
      kiqctl deploy status
      kiqctl deploy status --owner release-42 --json
    """
    state = DeployLock(store, owner).look()
    is_other = state.owner not in ("", owner)
    output.info(f"{state.describe()} is deploying" if state.owner else "no deploy is in progress")
    output.document({"owner": state.owner or None, "remaining": state.remaining, "is_ours": state.owner == owner})
    ctx.exit(ExitCode.PIDFILE_HELD if is_other else ExitCode.STOPPED)


def git_label() -> str:
    """Return hash and subject of the last commit here, as Sidekiq does; `deploy` where there is no git."""
    try:
        command = ["git", "log", "-1", "--format=%h %s"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "deploy"
    return done.stdout.strip() or "deploy"
