"""signal and dump: the meaning of a signal, sent to processes on any host, Ruby's included.

1. find     the target: a supervisor, one of its workers, a process of Ruby's, or all
2. print    what they will do
3. send     control messages to ours, which answer; to Ruby's, words in the list that their heartbeat reads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from kiqcluster.api.processes import RUBY_ACTIONS, ProcessSet
from kiqcluster.control.cluster_document import ClusterStatus, status_of_process
from kiqcluster.control.control_messages import CLUSTER_ONLY_ACTIONS, Message, new_message
from kiqcluster.control.process_registry import Cluster, RegisteredProcess, group_by_cluster, list_processes
from kiqcluster.control.redis_transport import RedisTransport, is_host_selected
from kiqcluster.control.transports import Answer, NoSuchProcess, Transport
from kiqcluster.ctl.fleet.steer import report
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    confirm,
    host_option,
    json_option,
    stores_options,
    yes_option,
)
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import clean, pluralize
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store

__all__ = ["MEANINGS", "SignalMeaning", "Targets", "dump", "find_target", "signal"]


@dataclass(frozen=True, slots=True)
class SignalMeaning:
    """action: what the message asks for.  words: what whoever gets it will do.  rubys: … of Ruby's, if that differs."""

    action: str
    words: str
    ruby_words: str = ""


MEANINGS = {
    "TSTP": SignalMeaning(
        "quiet",
        "fetches nothing more until it is resumed, or its lease ends",
        "fetches nothing more until it is stopped, from its next beat on",
    ),
    "CONT": SignalMeaning("resume", "fetches again"),
    "TERM": SignalMeaning("stop", "fetches nothing more, finishes its jobs or puts them back, and ends"),
    "TTIN": SignalMeaning("dump", "writes to its log what each of its threads is doing"),
    "USR2": SignalMeaning("roll", "replaces its workers, one after the other, by ones that run the newest code"),
    "HUP": SignalMeaning("reload", "reads configuration and queue groups anew"),
}


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a signal: whole clusters, single workers of ours, processes of Ruby's."""

    clusters: Sequence[Cluster] = ()
    workers: Sequence[RegisteredProcess] = ()
    ruby: Sequence[RegisteredProcess] = ()

    def describe(self) -> str:
        workers = sum(len(each.processes) for each in self.clusters) + len(self.workers)
        words = [pluralize(len(self.clusters), "cluster")] if self.clusters else []
        words += [pluralize(workers, "worker process", "worker processes")] if workers else []
        words += [f"{pluralize(len(self.ruby), 'process', 'processes')} of Ruby's Sidekiq"] if self.ruby else []
        return ", ".join(words)


# 1. find


def find_target(processes: Sequence[RegisteredProcess], identity: str) -> Targets:
    """Return whom `host:pid` or `host:pid:nonce` names.  Raises NoSuchProcess with the names that there are."""
    found_clusters = [each for each in group_by_cluster(processes) if _is_named(each.supervisor, identity)]
    found = [each for each in processes if _is_named(each.identity, identity)]
    if len(found_clusters) + len(found) != 1:
        what = "several are" if found_clusters or found else "neither a process nor a supervisor is"
        known = [*(each.supervisor for each in group_by_cluster(processes)), *(each.identity for each in processes)]
        raise NoSuchProcess(
            f"{what} called {clean(identity)}; there are {', '.join(map(clean, known)) or 'none at all'}"
        )
    return Targets(
        found_clusters, [each for each in found if each.is_ours], [each for each in found if not each.is_ours]
    )


def all_targets(processes: Sequence[RegisteredProcess], hosts: Sequence[str]) -> Targets:
    """Return all clusters and processes on these hosts, everywhere if none is named.  Raises NoSuchProcess."""
    here = [each for each in processes if is_host_selected(each.host, hosts)]
    found = group_by_cluster(here)
    attached = {each.identity for cluster in found for each in cluster.processes}
    lone = [each for each in here if each.is_ours and each.identity not in attached]
    targets = Targets(found, lone, [each for each in here if not each.is_ours])
    if not here:
        raise NoSuchProcess(f"no process is registered{' on ' + ', '.join(hosts) if hosts else ''}")
    return targets


def _is_named(name: str, identity: str) -> bool:
    return f"{name}:".startswith(f"{identity}:") and ":" in identity


# 3. tell


class RubyTransport:
    """Sends to processes of Ruby's Sidekiq, which do not answer; their heartbeat reads signals every ten seconds."""

    def __init__(self, stores: Sequence[Store], ruby: Sequence[RegisteredProcess]) -> None:
        self._stores = stores
        self._identities = {each.identity for each in ruby}

    def send(self, message: Message) -> Sequence[Answer]:
        """See Transport."""
        answers = []
        for process in (each for store in self._stores for each in ProcessSet(store=store)):
            if process.identity in self._identities:
                send = {"quiet": process.quiet, "stop": process.stop, "dump": process.dump}[message.action]
                send()
                answers.append(Answer(process.identity))
        gone = self._identities - {each.name for each in answers}
        return [*answers, *(Answer(identity, "is gone") for identity in sorted(gone))]

    def statuses(self) -> Mapping[str, ClusterStatus]:
        """See Transport."""
        processes = [each for store in self._stores for each in list_processes(store)]
        return {each.identity: status_of_process(each) for each in processes if each.identity in self._identities}


def transports_to(stores: Sequence[Store], targets: Targets) -> list[Transport]:
    """Return the transports that reach all targets."""
    store, *others = stores
    supervisors = [each.supervisor for each in targets.clusters]
    found: list[Transport] = [RedisTransport(store, supervisors=supervisors, others=others)] if supervisors else []
    found += [RedisTransport(store, identity=each.identity, others=others) for each in targets.workers]
    return [*found, RubyTransport(stores, targets.ruby)] if targets.ruby else found


def identities(found: Sequence[RegisteredProcess]) -> list[str]:
    return [each.identity for each in found]


def send_and_report(stores: Sequence[Store], output: Output, meaning: SignalMeaning, targets: Targets) -> int:
    """Print what the targets will do, send the order, report the answers; return the exit code."""
    words_by_name = dict.fromkeys(
        (*(each.supervisor for each in targets.clusters), *identities(targets.workers)), meaning.words
    )
    words_by_name |= dict.fromkeys(identities(targets.ruby), meaning.ruby_words or meaning.words)
    if meaning.action == "dump":
        hung = [each for each in targets.workers if each.is_unresponsive and each.supervisor]
        words_by_name |= dict.fromkeys(identities(hung), "does not respond; its supervisor is asked to log its stacks")
    if not words_by_name:
        raise NoSuchProcess(f"none of these processes can do that: {meaning.words}")
    for name, words in words_by_name.items():
        output.info(f"{name} {words}")
    what, answers, statuses = new_message(meaning.action), list[Answer](), dict[str, ClusterStatus]()
    for transport in transports_to(stores, targets):
        answers += transport.send(what)
        statuses |= transport.statuses()
    return report(output, what, answers, {}, statuses)


def read_processes(stores: Sequence[Store], output: Output) -> tuple[list[RegisteredProcess], list[Store], int]:
    """Return the processes of all shards, the shards that answer, and an exit code: 1 if one is away, which is said."""
    found, missing = read_shards(stores, output, list_processes)
    reached = [store for store in stores if store.name not in missing]
    return [each for several in found for each in several], reached, ExitCode.UNEXPECTED if missing else 0


def check_supported(meaning: SignalMeaning, name: str, targets: Targets) -> Targets:
    """Return a single addressee that can do it.  Raises UsageError that says what to do instead."""
    if meaning.action in CLUSTER_ONLY_ACTIONS and targets.workers:
        supervisor = targets.workers[0].supervisor or "its supervisor"
        raise UsageError(
            f"{name} is for a whole cluster; {clean(targets.workers[0].identity)} belongs to {clean(supervisor)}"
        )
    if meaning.action not in RUBY_ACTIONS and targets.ruby:
        raise UsageError(
            f"{clean(targets.ruby[0].identity)} is a process of Ruby's Sidekiq, which knows TSTP, TERM and TTIN only"
        )
    return targets


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("name", metavar="NAME")
@click.argument("identity", required=False)
@click.option("--all", "is_for_all", is_flag=True, help="every cluster, and every process of Ruby's, in all shards")
@yes_option
@host_option
@stores_options
@json_option
@click.pass_context
def signal(
    ctx: click.Context,
    stores: list[Store],
    output: Output,
    name: str,
    identity: str | None,
    is_for_all: bool,
    yes: bool,
    hosts: tuple[str, ...],
) -> None:
    """Have a process on any host do what a signal means.

    IDENTITY, host:pid or host:pid:nonce as in `kiqctl ps`, is a supervisor's (then it holds for its whole cluster), or
    that of a single process.  TERM to a worker has it replaced; TERM to a supervisor ends the cluster.

    \b
      TSTP  quiet: fetch nothing more            TTIN  write all threads to the log
      CONT  resume: fetch again                  USR2  rolling restart (a supervisor's)
      TERM  stop                                 HUP   reload the configuration (a supervisor's)

    Processes of Ruby's Sidekiq know TSTP, TERM and TTIN, and heed them at their next beat, within ten seconds.

    \b
      kiqctl signal TTIN app-1:4243
      kiqctl signal TSTP --all
      kiqctl signal TERM --all --host app-1 --yes
    """
    key = name.upper().removeprefix("SIG")
    if key not in MEANINGS:
        raise UsageError(f"{name} is not a known signal; the signals are {', '.join(MEANINGS)}")
    if (identity is None) is not is_for_all or (hosts and not is_for_all):
        raise UsageError("name one IDENTITY, or say --all, which --host narrows")
    meaning = MEANINGS[key]
    processes, reached, missed = read_processes(stores, output)
    if identity is not None:
        target = check_supported(meaning, key, find_target(processes, identity))
        ctx.exit(send_and_report(reached, output, meaning, target))
    targets = all_targets(processes, hosts)
    if meaning.action in CLUSTER_ONLY_ACTIONS and targets.workers:
        targets = Targets(targets.clusters, (), targets.ruby)
    if meaning.action not in RUBY_ACTIONS and targets.ruby:
        left_out = pluralize(len(targets.ruby), "process", "processes")
        output.error(f"{left_out} of Ruby's Sidekiq left out: they know TSTP, TERM and TTIN only")
        targets = Targets(targets.clusters, targets.workers)
    if meaning.action == "stop":
        confirm(output, f"stop {targets.describe()}", yes=yes)
    ctx.exit(send_and_report(reached, output, meaning, targets) or missed)


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("identity", required=False)
@host_option
@stores_options
@json_option
@click.pass_context
def dump(ctx: click.Context, stores: list[Store], output: Output, identity: str | None, hosts: tuple[str, ...]) -> None:
    """Have processes log what each of their threads is doing.

    Jobs go on.  IDENTITY as in `kiqctl ps`: of a process, or of a supervisor for all of its workers.  Without it, all
    are asked, Ruby's too.

    \b
      kiqctl dump
      kiqctl dump app-1:4243
      kiqctl dump --host app-1 --json
    """
    if identity is not None and hosts:
        raise UsageError("IDENTITY names one; leave --host out")
    processes, reached, missed = read_processes(stores, output)
    targets = all_targets(processes, hosts) if identity is None else find_target(processes, identity)
    code = send_and_report(reached, output, MEANINGS["TTIN"], targets)
    ctx.exit(code or (missed if identity is None else 0))
