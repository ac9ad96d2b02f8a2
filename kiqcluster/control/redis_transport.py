"""Transport through Redis: a message goes to the list of one worker of each cluster; the answer is in published state.

1. find      the selected clusters
2. deliver   one request per supervisor; if its carrier dies or does not answer, another worker carries it
3. cancel    withdraw messages that are unread at the deadline; for those that were read, say that they may be done
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kiqcluster.control.cluster_document import ClusterStatus, status_from_redis, status_of_process
from kiqcluster.control.control_messages import Message, is_unread, send, withdraw
from kiqcluster.control.process_registry import (
    Cluster,
    RegisteredProcess,
    group_by_cluster,
    list_processes,
    natural_sort_key,
)
from kiqcluster.control.transports import Answer, NoSuchProcess
from kiqcluster.control.waiting import NEVER_SET, POLL_SECONDS
from kiqcluster.errors import StoreError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store, is_outage

__all__ = [
    "RedisTransport",
    "is_host_selected",
]

ANSWER_TIMEOUT_SECONDS = 10.0  # for a supervisor
CARRIER_TIMEOUT_SECONDS = 3.0  # after which another process carries the message
MAY_STILL_BE_DONE = "; it was received, so it may still be done: `kiqctl ps` shows it"
SUPERVISOR_UNKNOWN_SECONDS = 3.0  # a process that has just started may not know its supervisor yet


def is_host_selected(host: str, hosts: Collection[str]) -> bool:
    """Return whether a host is selected, by its name or the first part of it.  Without hosts, all are."""
    return not hosts or not {host, host.partition(".")[0]}.isdisjoint(hosts)


class RedisTransport:
    """Sends to the supervisors on these hosts, to all without hosts, or to the process that `identity` names.

    supervisors: full names; only these are selected.  others: further shards, whose processes are meant as well.  While
    some are away, an order goes to the supervisors that the others know; those who wait for its end wait for all.
    max_outage: seconds to keep trying while Redis is away.  None: ANSWER_TIMEOUT_SECONDS once a message is under way,
    no time before that.  on_outage: called at each attempt that finds Redis away.
    answer_timeout: seconds that a supervisor has for its answer.
    """

    def __init__(
        self,
        store: Store,
        hosts: Sequence[str] = (),
        identity: str | None = None,
        supervisors: Collection[str] = (),
        max_outage: float | None = None,
        on_outage: Callable[[], None] = lambda: None,
        others: Sequence[Store] = (),
        answer_timeout: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self._answer_timeout = answer_timeout
        self._max_outage = max_outage
        self._on_outage = on_outage
        self.store = store
        self.stores = (store, *others)
        self._store_by_identity: dict[str, Store] = {}  # of the processes seen
        self._outages: dict[str, StoreError] = {}  # by name, the shards that the latest look has missed
        self._given_up: set[str] = set()  # names of shards that stayed away
        self._hosts = hosts
        self._identity = identity
        self._supervisors = supervisors
        self._full_identity: str | None = None  # the identity in full, once it is found
        self._clock = SystemClock()

    def send(self, message: Message) -> Sequence[Answer]:
        """See Transport.  An answer for each shard that stays away says so."""
        give_up = self._clock.monotonic() + (self._max_outage or 0.0)
        self._given_up.clear()
        answers: list[Answer] = []
        while True:
            processes = self._read_processes(give_up)
            if not self._outages or self._clock.monotonic() >= give_up:
                break
            if self._identity is None:
                answers += self._send_to_new(processes, message, answers)
            self._on_outage()
            NEVER_SET.wait(POLL_SECONDS)
        if self._identity is not None:
            return self._send_to_process(self._named_process(processes), message, processes)
        answers += self._send_to_new(processes, message, answers)
        if not answers:
            if self._outages:
                raise next(iter(self._outages.values()))
            raise NoSuchProcess(self._nothing_found(processes))
        self._given_up = set(self._outages)
        return [*answers, *(Answer(f"shard {name}", _missed(error)) for name, error in self._outages.items())]

    def _send_to_new(
        self, processes: Sequence[RegisteredProcess], message: Message, asked: Sequence[Answer]
    ) -> list[Answer]:
        """Send to the selected clusters that were not asked before; return their answers."""
        before = {each.name for each in asked}
        known = [each for each in self._selected_clusters(processes) if each.supervisor not in before]
        lost = [
            Answer(each.identity, NO_SUPERVISOR_KNOWN)
            for each in self._without_supervisor(processes)
            if each.identity not in before
        ]
        if message.action == "dump":
            return [*self._dump(known, message), *lost]
        return [*self._deliver([ClusterRequest(self._store_of, each.supervisor, message) for each in known]), *lost]

    def statuses(self) -> Mapping[str, ClusterStatus]:
        """See Transport.  Raises StoreError if a shard is away: its workers would count as gone."""
        processes = self._list_processes()
        if self._outages:
            raise next(iter(self._outages.values()))
        if self._identity is not None:
            meant = [each for each in processes if each.identity == self._full_identity] if self._full_identity else []
            return {each.identity: status_of_process(each) for each in meant}
        return {each.supervisor: status_from_redis(each) for each in self._selected_clusters(processes)}

    def _send_to_process(
        self, process: RegisteredProcess, message: Message, processes: Sequence[RegisteredProcess]
    ) -> list[Answer]:
        """Send to one process.  If it does not read messages, its supervisor is asked to dump its stacks."""
        supervisor = process.supervisor
        if message.action != "dump" or supervisor is None or not process.is_unresponsive:
            return self._deliver([ProcessRequest(self._store_of, process.identity, replace(message, scope="process"))])
        found = [each for each in group_by_cluster(processes) if each.supervisor == supervisor]
        return [replace(each, name=process.identity) for each in self._dump(found, replace(message, pid=process.pid))]

    def _dump(self, known: Sequence[Cluster], message: Message) -> list[Answer]:
        """Have supervisors log stacks; where no worker can pass that on, the error says how to get them by signal."""
        unresponsive = {each.supervisor for each in known if all(process.is_unresponsive for process in each.processes)}
        requests = [
            ClusterRequest(self._store_of, each.supervisor, message)
            for each in known
            if each.supervisor not in unresponsive
        ]
        answers = [
            *self._deliver(requests),
            *(Answer(each, "no worker responds and could pass it on") for each in unresponsive),
        ]
        return [replace(each, error=each.error and f"{each.error}; {_dump_by_signal(each.name)}") for each in answers]

    # 1. find

    def _list_processes(self) -> list[RegisteredProcess]:
        """Return the processes of all shards that answer.  Raises StoreError if none does."""
        found: list[RegisteredProcess] = []
        self._outages = {}
        wanted = [store for store in self.stores if store.name not in self._given_up]
        for store in wanted:
            try:
                processes = list_processes(store)
            except StoreError as error:
                if not is_outage(error) or len(wanted) == 1:
                    raise
                self._outages[store.name] = error
                continue
            self._store_by_identity |= dict.fromkeys((each.identity for each in processes), store)
            found += processes
        if wanted and len(self._outages) == len(wanted):
            raise self._outages[wanted[0].name]
        return found

    def _store_of(self, identity: str) -> Store:
        """Return the shard in which a process was seen."""
        return self._store_by_identity.get(identity, self.store)

    def _read_processes(self, give_up: float) -> list[RegisteredProcess]:
        """Return all processes, once those of ours know their supervisor or have had time to learn it.

        give_up: until when to try while Redis is away, monotonic seconds.
        """
        deadline = self._clock.monotonic() + SUPERVISOR_UNKNOWN_SECONDS
        while True:
            try:
                processes = self._list_processes()
            except StoreError as error:
                if not is_outage(error) or self._clock.monotonic() >= give_up:
                    raise
                self._on_outage()
            else:
                if not self._without_supervisor(processes) or self._clock.monotonic() >= deadline:
                    return processes
            NEVER_SET.wait(POLL_SECONDS)

    def _named_process(self, processes: Sequence[RegisteredProcess]) -> RegisteredProcess:
        """Return the selected process, by its identity or the beginning of it.  Raises NoSuchProcess."""
        assert self._identity is not None
        found = [each for each in processes if f"{each.identity}:".startswith(f"{self._identity}:")]
        if len(found) != 1:
            others = ", ".join(each.identity for each in found or processes if each.is_ours) or "none at all"
            what = "several processes are" if found else "no process is"
            raise NoSuchProcess(f"{what} called {self._identity}; there are {others}")
        if not found[0].is_ours:
            raise NoSuchProcess(
                f"{found[0].identity} is a process of Ruby's Sidekiq, which reads no messages of kiqctl"
            )
        self._full_identity = found[0].identity
        return found[0]

    def _selected_clusters(self, processes: Sequence[RegisteredProcess]) -> list[Cluster]:
        found = sorted(group_by_cluster(processes), key=lambda each: natural_sort_key(each.supervisor))
        if self._supervisors:
            return [each for each in found if each.supervisor in self._supervisors]
        return [each for each in found if any(self._is_selected(p.host) for p in each.processes)]

    def _without_supervisor(self, processes: Sequence[RegisteredProcess]) -> list[RegisteredProcess]:
        """Return our selected processes that do not know their supervisor."""
        if self._supervisors:
            return []
        return [each for each in processes if each.is_ours and each.supervisor is None and self._is_selected(each.host)]

    def _is_selected(self, host: str) -> bool:
        return is_host_selected(host, self._hosts)

    def _nothing_found(self, processes: Sequence[RegisteredProcess]) -> str:
        ours = sorted({each.host for each in processes if each.is_ours})
        if self._supervisors:
            return f"{', '.join(self._supervisors)} ended before it could be asked"
        if ours:
            return f"no kiqcluster process is on {', '.join(self._hosts)}; there are some on {', '.join(ours)}"
        place = ", ".join(store.address for store in self.stores)
        ruby = f" ({len(processes)} of Ruby's Sidekiq are)" if processes else ""
        return f"no kiqcluster process is registered at {place}{ruby}; is that the right Redis?"

    # 2. deliver

    def _deliver(self, requests: Sequence[Request]) -> list[Answer]:
        """Run requests until each has its answer, or until the deadline, which an outage of Redis extends."""
        deadline = self._clock.monotonic() + self._answer_timeout
        give_up = self._clock.monotonic() + (self._max_outage or self._answer_timeout)
        pending, outage = list(requests), ""
        while pending and self._clock.monotonic() < deadline:
            try:
                processes = self._list_processes()
                pending = [each for each in pending if not each.step(processes, self._clock.monotonic())]
            except StoreError as error:
                if not is_outage(error):
                    raise
                outage = f" ({error})"
                deadline = max(deadline, min(give_up, self._clock.monotonic() + self._answer_timeout))
                self._on_outage()
            if pending:
                NEVER_SET.wait(POLL_SECONDS)
        for each in pending:
            each.cancel(f"did not answer within {self._answer_timeout:.0f} s{outage}")
        return [Answer(each.name, each.error) for each in requests]


def _missed(error: StoreError) -> str:
    return f"its workers were not seen, and a supervisor that has no worker elsewhere was not asked: {error}"


def _dump_by_signal(supervisor: str) -> str:
    """Return how to get the stacks without Redis."""
    host, _, pid = supervisor.rpartition(":")[0].rpartition(":")
    return f"on {host}, `kill -TTIN {pid}` has the supervisor log the stacks"


EXPIRES_UNREAD = "the message expires after a minute, unless it was received"
NO_SUPERVISOR_KNOWN = "has not told which supervisor it belongs to, so it was not asked"


class Request(Protocol):
    """The delivery of one message.  error: why it failed, once that is known."""

    name: str
    error: str | None

    def step(self, processes: Sequence[RegisteredProcess], now: float, /) -> bool:
        """Take the next step; return whether the answer has arrived."""
        ...

    def cancel(self, error: str) -> None: ...


class ClusterRequest:
    """One message to one supervisor, carried by one of its processes at a time.

    An unread message is withdrawn before another process gets it.  A message that was read may arrive twice, which is
    harmless because the supervisor carries out each id once.
    """

    def __init__(self, store_of: Callable[[str], Store], supervisor: str, message: Message) -> None:
        self.name = supervisor
        self.error: str | None = None
        self._store_of = store_of
        self._message = message
        self._carrier: str | None = None
        self._since = 0.0
        self._asked: list[str] = []  # in order: the process asked longest ago is asked again first
        self._may_have_been_read = False  # by a process that did not answer

    def step(self, processes: Sequence[RegisteredProcess], now: float) -> bool:
        """See Request."""
        mine = sorted((each for each in processes if each.supervisor == self.name), key=lambda each: each.age)
        for process in mine:
            answers = (process.cluster or {}).get("answers")
            if isinstance(answers, dict) and self._message.id in answers:
                self.error = answers[self._message.id]
                return True
        carriers = [each.identity for each in mine if not each.is_unresponsive] or [each.identity for each in mine]
        if not mine and self._message.action == "stop" and self._is_read():
            return True  # its workers left before they could publish the answer
        if carriers and (self._carrier not in carriers or now >= self._since + CARRIER_TIMEOUT_SECONDS):
            self._send_through(carriers, now)
        return False

    def cancel(self, error: str) -> None:
        """See Request."""
        try:
            self._take_back()
        except StoreError:
            self.error = f"{error}; {EXPIRES_UNREAD}"
        else:
            self.error = f"{error}{MAY_STILL_BE_DONE}" if self._may_have_been_read else error

    def _send_through(self, carriers: Sequence[str], now: float) -> None:
        carrier = min(carriers, key=lambda each: self._asked.index(each) if each in self._asked else -1)
        try:
            self._take_back()
        except StoreError:
            if self._carrier is None or self._store_of(self._carrier) is self._store_of(carrier):
                raise
            self._may_have_been_read = True  # in a shard that is away: the supervisor carries out each id once
        self._carrier, self._since = carrier, now
        self._asked = [*(each for each in self._asked if each != carrier), carrier]
        send(self._store_of(carrier), carrier, self._message)

    def _is_read(self) -> bool:
        return self._carrier is not None and not is_unread(self._store_of(self._carrier), self._carrier, self._message)

    def _take_back(self) -> None:
        if self._carrier is not None and not withdraw(self._store_of(self._carrier), self._carrier, self._message):
            self._may_have_been_read = True


class ProcessRequest:
    """One message to one process: done when it was read and the registry shows its effect."""

    def __init__(self, store_of: Callable[[str], Store], identity: str, message: Message) -> None:
        self.name = identity
        self.error: str | None = None
        self._store_of = store_of
        self._message = message
        self._is_sent = False

    def step(self, processes: Sequence[RegisteredProcess], _now: float) -> bool:
        """See Request."""
        if not self._is_sent:
            self._is_sent = True
            send(self._store_of(self.name), self.name, self._message)
            return False
        process = next((each for each in processes if each.identity == self.name), None)
        if process is None:
            has_obeyed = self._message.action == "stop" and not is_unread(
                self._store_of(self.name), self.name, self._message
            )
            self.error = None if has_obeyed else "is gone"
            return True
        wanted = {"quiet": True, "resume": False}.get(self._message.action, process.is_quiet)
        return process.is_quiet == wanted and not is_unread(self._store_of(self.name), self.name, self._message)

    def cancel(self, error: str) -> None:
        """See Request."""
        try:
            was_read = self._is_sent and not withdraw(self._store_of(self.name), self.name, self._message)
        except StoreError:
            self.error = f"{error}; {EXPIRES_UNREAD}"
        else:
            self.error = f"{error}{MAY_STILL_BE_DONE}" if was_read else error
