"""deploy begin, commit, abort: the steps of a release, for scripts that may fail between them.

If the script dies, the quiet that `begin` started ends with its lease, and so does the deploy lock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import click

from kiqcluster.api.deploys import mark
from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.control_messages import MAX_TEXT_CHARACTERS, new_message
from kiqcluster.control.deploy_lock import DeployLock, shell_owner
from kiqcluster.control.deploy_transport import DeployTransport, LocalSockets
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.waiting import Problems, Waiter
from kiqcluster.ctl.fleet.steer import accepted, report
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    DURATION,
    Output,
    check_timeout,
    host_option,
    json_option,
    stores_options,
    timeout_option,
)
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import clean
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store
from kiqcluster.store.shards import shard_name

__all__ = ["deploy"]

REQUESTER = "deploy"  # who asks, as far as the supervisors know
DEFAULT_LEASE_SECONDS = 900.0  # seconds
MAX_LOCK_SECONDS = 86_400.0  # of the lock, where the quiet has no end
GIT_TIMEOUT_SECONDS = 5.0  # seconds
F = TypeVar("F", bound=Callable[..., object])


def owner_option(function: F) -> F:
    """Add --owner."""
    text = "who deploys; the same at each step  [KIQCTL_OWNER, or USER@HOST and the pid of the shell]"
    return click.option("--owner", "given_owner", metavar="NAME", envvar="KIQCTL_OWNER", help=text)(function)


def owner_of(given: str | None, stores: Sequence[Store]) -> str:
    """Return who deploys.  given: by --owner.  Raises UsageError."""
    owner = given or shell_owner(*stores)
    if not owner.isprintable() or len(f"{REQUESTER}@{owner}") > MAX_TEXT_CHARACTERS:
        raise UsageError(f"--owner is a line of at most {MAX_TEXT_CHARACTERS - len(REQUESTER) - 1} characters")
    return owner


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


def rolling_step_options(timeout_help: str) -> Callable[[F], F]:
    """Add the options of a step that waits for a roll."""

    def decorate(function: F) -> F:
        timeout = timeout_option(timeout_help)
        for option in (json_option, stores_options, host_option, outage_options, owner_option, timeout):
            function = option(function)
        return function

    return decorate


def deploy_transport(
    stores: Sequence[Store], hosts: tuple[str, ...], owner: str, sockets: tuple[str, ...], patience: float | None
) -> DeployTransport:
    """Return the transport of a step that survives an outage.  patience: seconds, None for those of the lease."""
    store, *others = stores
    lock, local = DeployLock(store, owner, others), LocalSockets(f"{REQUESTER}@{owner}", sockets)
    max_outage = patience or DEFAULT_LEASE_SECONDS
    is_exact = patience is not None
    return DeployTransport(store, hosts, lock, local, max_outage, is_max_outage_exact=is_exact, others=others)


@click.group(context_settings=CONTEXT_SETTINGS)
def deploy() -> None:
    """Take a fleet through a release: quiet early, roll late.

    Each step goes over all shards of the configuration, and is done when it has seen the workers of all.  With --shard
    it looks at one: it reaches the supervisors that have a worker there, for all of their slots, but `begin --wait`
    waits for the jobs of that shard only.

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
@stores_options
@json_option
@click.pass_context
def begin(
    ctx: click.Context,
    stores: list[Store],
    output: Output,
    given_owner: str | None,
    lease: float,
    label: str | None,
    wait: bool,
    timeout: float | None,
    force: bool,
    hosts: tuple[str, ...],
) -> None:
    """Take the deploy lock, quiet the fleet, and mark the deploy.

    While another deploy holds the lock nothing is done, and the exit code is 6.  The mark is for Sidekiq's pages.
    Lock, mark and --wait are for all shards, or for that of --shard.  Exit code 1 if one is away.

    \b
      kiqctl deploy begin
      kiqctl deploy begin --lease 30m --wait --label 'v42'
    """
    check_timeout(timeout, wait=wait, lease=lease)
    owner = owner_of(given_owner, stores)
    store, *others = stores
    lock = DeployLock(store, owner, others)
    state = lock.take(lease or MAX_LOCK_SECONDS, force=force)
    if state.before not in ("", owner):
        output.info(f"the lock was taken from {state.before}")
    transport = RedisTransport(store, hosts, others=others)
    order = new_message("quiet", lease, name=REQUESTER, whom=owner)
    try:
        answers = transport.send(order)
    except Exception:
        lock.drop()
        raise
    names = accepted(answers)
    if len(names) == len(answers):
        words = label or git_label()
        for each in stores:
            mark(words, store=each)
    problems = Waiter().until_drained(transport, names, timeout, output.info) if wait else {}
    if wait and others:
        problems |= unseen_shards(transport.statuses(), stores)
    ctx.exit(
        report(
            output, order, answers, problems, transport.statuses(), more={"owner": owner, "taken_from": state.before}
        )
    )


@deploy.command(context_settings=CONTEXT_SETTINGS)
@rolling_step_options("how long to wait at most  [as long as it takes]")
@click.pass_context
def commit(
    ctx: click.Context,
    stores: list[Store],
    output: Output,
    given_owner: str | None,
    timeout: float | None,
    sockets: tuple[str, ...],
    patience: float | None,
    hosts: tuple[str, ...],
) -> None:
    """Roll every supervisor, and wait for it.

    Every one that has a worker in some shard, or in that of --shard.  Exit code 1 if one of them fails.  The quiet ends
    with the roll, also if it fails: working workers go on.  The lock then stays for `abort`.  While Redis, or one of
    the shards, is away this keeps trying, and reaches the clusters of this host through their control sockets.

    \b
      kiqctl deploy commit
      kiqctl deploy commit --timeout 20m
    """
    owner = owner_of(given_owner, stores)
    transport = deploy_transport(stores, hosts, owner, sockets, patience)
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
@rolling_step_options("how long to wait for the roll back at most  [as long as it takes]")
@click.pass_context
def abort(
    ctx: click.Context,
    stores: list[Store],
    output: Output,
    given_owner: str | None,
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
    owner = owner_of(given_owner, stores)
    transport = deploy_transport(stores, hosts, owner, sockets, patience)
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
@stores_options
@json_option
@click.pass_context
def status(ctx: click.Context, stores: list[Store], output: Output, given_owner: str | None) -> None:
    """Show who holds the deploy lock.  The exit code is 6 if that is another owner.

    \b
      kiqctl deploy status
      kiqctl deploy status --owner release-42 --json
    """
    owner = owner_of(given_owner, stores)
    states, missing = read_shards(stores, output, lambda store: DeployLock(store, owner).look())
    state = max(states, key=lambda each: (each.owner not in ("", owner), bool(each.owner)))
    is_other = state.owner not in ("", owner)
    output.info(f"{state.describe()} is deploying" if state.owner else "no deploy is in progress")
    document = {"owner": state.owner or None, "remaining": state.remaining, "is_ours": state.owner == owner}
    output.document({**document, "missing": missing} if len(stores) > 1 else document)
    ctx.exit(ExitCode.PIDFILE_HELD if is_other else ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


def unseen_shards(statuses: Mapping[str, ClusterStatus], stores: Sequence[Store]) -> Problems:
    """Return the clusters with workers in shards that the configuration here does not name: these were not seen."""
    known = {shard_name(store.name) for store in stores}
    found = {
        name: sorted({child.shard for child in status.children if child.pid is not None} - known)
        for name, status in statuses.items()
    }
    return {
        name: f"has workers in {', '.join(map(clean, shards))}, of which the configuration here does not know: it was "
        "not seen whether jobs run there"
        for name, shards in found.items()
        if shards
    }


def git_label() -> str:
    """Return hash and subject of the last commit here, as Sidekiq does; `deploy` where there is no git."""
    try:
        command = ["git", "log", "-1", "--format=%h %s"]
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "deploy"
    return done.stdout.decode(errors="replace").strip() or "deploy"
