"""By Redis: messages go to the list of one worker process of each supervisor, answers come with what that publishes.

1. find     the clusters that are meant
2. carry    an errand per supervisor; if its carrier dies or stays silent, another process of that supervisor is asked
3. call off what nobody has read by the deadline, so that it does not surprise anybody later; of what was read, say
            that it may
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kiqcluster.clock import SystemClock
from kiqcluster.control.cluster_document import View, view_of, view_of_process
from kiqcluster.control.control_messages import Message, is_waiting, send, take_back
from kiqcluster.control.process_registry import Cluster, Process, clusters, natural, processes
from kiqcluster.control.transports import Answer, NobodyThere
from kiqcluster.control.waiting import NEVER, POLL
from kiqcluster.errors import StoreError
from kiqcluster.store import Store, is_outage

__all__ = [
    "RedisWay",
    "is_among",
]

ANSWER = 10.0  # seconds within which a supervisor must have answered
PATIENCE = 3.0  # seconds after which another process is asked to carry the message
WAS_READ = "; it was received, so it may still be done: `kiqctl ps` shows it"
NEWBORN = 3.0  # seconds that a process which has just started may take to learn of its supervisor


def is_among(host: str, hosts: Collection[str]) -> bool:
    """Return whether a host is meant, by its name or the first part of that; all are where none is named."""
    return not hosts or not {host, host.partition(".")[0]}.isdisjoint(hosts)


class RedisWay:
    """To the supervisors on these hosts, all if there are none; or to the process that `identity` names.

    supervisors: those that are meant alone, by their names in full.
    patience: seconds for which orders are given again and again while Redis is away; None is ANSWER, and none to begin
    with.  on_outage: called whenever it was found to be.
    """

    def __init__(
        self,
        store: Store,
        hosts: Sequence[str] = (),
        identity: str | None = None,
        supervisors: Collection[str] = (),
        patience: float | None = None,
        on_outage: Callable[[], None] = lambda: None,
    ) -> None:
        self._patience = patience
        self._on_outage = on_outage
        self.store = store
        self._hosts = hosts
        self._identity = identity
        self._supervisors = supervisors
        self._about: str | None = None  # the identity in full, once it is found
        self._clock = SystemClock()

    def tell(self, message: Message) -> Sequence[Answer]:
        """See Way."""
        everybody = self._find()
        if self._identity is not None:
            return self._tell_one(self._one(everybody), message, everybody)
        known = self._meant(everybody)
        lost = [Answer(each.identity, UNATTACHED) for each in self._unattached(everybody)]
        if not known and not lost:
            raise NobodyThere(self._nobody(everybody))
        if message.action == "dump":
            return [*self._dump(known, message), *lost]
        return [*self._carry([Errand(self.store, each.supervisor, message) for each in known]), *lost]

    def look(self) -> Mapping[str, View]:
        """See Way."""
        everybody = processes(self.store)
        if self._identity is not None:
            meant = [each for each in everybody if each.identity == self._about] if self._about else []
            return {each.identity: view_of_process(each) for each in meant}
        return {each.supervisor: view_of(each) for each in self._meant(everybody)}

    def _tell_one(self, process: Process, message: Message, everybody: Sequence[Process]) -> list[Answer]:
        """Have a process do something.  The stacks of one that reads no messages, its supervisor logs for it."""
        supervisor = process.supervisor
        if message.action != "dump" or supervisor is None or not process.is_unresponsive:
            return self._carry([ProcessErrand(self.store, process.identity, replace(message, scope="process"))])
        found = [each for each in clusters(everybody) if each.supervisor == supervisor]
        return [replace(each, name=process.identity) for each in self._dump(found, replace(message, pid=process.pid))]

    def _dump(self, known: Sequence[Cluster], message: Message) -> list[Answer]:
        """Have supervisors log stacks; say how these are had where no worker can pass that on."""
        deaf = {each.supervisor for each in known if all(process.is_unresponsive for process in each.processes)}
        errands = [Errand(self.store, each.supervisor, message) for each in known if each.supervisor not in deaf]
        answers = [*self._carry(errands), *(Answer(each, "no worker responds and could pass it on") for each in deaf)]
        return [replace(each, error=each.error and f"{each.error}; {_by_hand(each.name)}") for each in answers]

    # 1. find

    def _find(self) -> list[Process]:
        """Return everybody, once all of ours know their supervisor, or have had time to."""
        deadline = self._clock.monotonic() + NEWBORN
        give_up = self._clock.monotonic() + (self._patience or 0.0)
        while True:
            try:
                everybody = processes(self.store)
            except StoreError as error:
                if not is_outage(error) or self._clock.monotonic() >= give_up:
                    raise
                self._on_outage()
            else:
                if not self._unattached(everybody) or self._clock.monotonic() >= deadline:
                    return everybody
            NEVER.wait(POLL)

    def _one(self, everybody: Sequence[Process]) -> Process:
        """Return the process that is meant: by its identity, or the beginning of it."""
        assert self._identity is not None
        found = [each for each in everybody if f"{each.identity}:".startswith(f"{self._identity}:")]
        if len(found) != 1:
            others = ", ".join(each.identity for each in found or everybody if each.is_ours) or "none at all"
            what = "several processes are" if found else "no process is"
            raise NobodyThere(f"{what} called {self._identity}; there are {others}")
        if not found[0].is_ours:
            raise NobodyThere(f"{found[0].identity} is a process of Ruby's Sidekiq, which reads no messages of kiqctl")
        self._about = found[0].identity
        return found[0]

    def _meant(self, everybody: Sequence[Process]) -> list[Cluster]:
        found = sorted(clusters(everybody), key=lambda each: natural(each.supervisor))
        if self._supervisors:
            return [each for each in found if each.supervisor in self._supervisors]
        return [each for each in found if any(self._is_meant(p.host) for p in each.processes)]

    def _unattached(self, everybody: Sequence[Process]) -> list[Process]:
        """Return those of ours that are meant and have not been told of their supervisor."""
        if self._supervisors:
            return []
        return [each for each in everybody if each.is_ours and each.supervisor is None and self._is_meant(each.host)]

    def _is_meant(self, host: str) -> bool:
        return is_among(host, self._hosts)

    def _nobody(self, everybody: Sequence[Process]) -> str:
        ours = sorted({each.host for each in everybody if each.is_ours})
        if self._supervisors:
            return f"{', '.join(self._supervisors)} ended before it could be asked"
        if ours:
            return f"no kiqcluster process is on {', '.join(self._hosts)}; there are some on {', '.join(ours)}"
        ruby = f" ({len(everybody)} of Ruby's Sidekiq are)" if everybody else ""
        return f"no kiqcluster process is registered at {self.store.address}{ruby}; is that the right Redis?"

    # 2. carry

    def _carry(self, errands: Sequence[Carried]) -> list[Answer]:
        """Run errands until each has its answer, or the deadline; an outage of Redis meanwhile is waited for."""
        deadline = self._clock.monotonic() + ANSWER
        give_up = self._clock.monotonic() + (self._patience or ANSWER)
        pending, trouble = list(errands), ""
        while pending and self._clock.monotonic() < deadline:
            try:
                everybody = processes(self.store)
                pending = [each for each in pending if not each.step(everybody, self._clock.monotonic())]
            except StoreError as error:
                if not is_outage(error):
                    raise
                trouble = f" ({error})"
                deadline = max(deadline, min(give_up, self._clock.monotonic() + ANSWER))
                self._on_outage()
            if pending:
                NEVER.wait(POLL)
        for each in pending:
            each.call_off(f"did not answer within {ANSWER:.0f} s{trouble}")
        return [Answer(each.name, each.error) for each in errands]


def _by_hand(supervisor: str) -> str:
    """Return how the stacks are had without Redis."""
    host, _, pid = supervisor.rpartition(":")[0].rpartition(":")
    return f"on {host}, `kill -TTIN {pid}` has the supervisor log the stacks"


VOID_LATER = "the message expires after a minute, unless it was received"
UNATTACHED = "has not told which supervisor it belongs to, so it was not asked"


class Carried(Protocol):
    """A message on its way.  error: why it came to nothing, once that is known."""

    name: str
    error: str | None

    def step(self, everybody: Sequence[Process], now: float, /) -> bool:
        """Do what is next; return whether the answer is there."""
        ...

    def call_off(self, error: str) -> None: ...


class Errand:
    """One message to one supervisor, carried by one of its processes at a time.

    A message that nobody has read is taken back before another process gets it.  One that was read may be on its way:
    its id makes it harmless that it comes twice.
    """

    def __init__(self, store: Store, supervisor: str, message: Message) -> None:
        self.name = supervisor
        self.error: str | None = None
        self._store = store
        self._message = message
        self._carrier: str | None = None
        self._since = 0.0
        self._asked: list[str] = []  # in order; whoever was asked longest ago is asked again first
        self._has_been_read = False  # by somebody who did not answer

    def step(self, everybody: Sequence[Process], now: float) -> bool:
        """See Carried."""
        mine = sorted((each for each in everybody if each.supervisor == self.name), key=lambda each: each.age)
        for process in mine:
            answers = (process.cluster or {}).get("answers")
            if isinstance(answers, dict) and self._message.id in answers:
                self.error = answers[self._message.id]
                return True
        carriers = [each.identity for each in mine if not each.is_unresponsive] or [each.identity for each in mine]
        if not mine and self._message.action == "stop" and self._was_read():
            return True  # its workers left before they could publish the answer
        if carriers and (self._carrier not in carriers or now >= self._since + PATIENCE):
            self._hand_to(carriers, now)
        return False

    def call_off(self, error: str) -> None:
        """See Carried."""
        try:
            self._take_back()
        except StoreError:
            self.error = f"{error}; {VOID_LATER}"
        else:
            self.error = f"{error}{WAS_READ}" if self._has_been_read else error

    def _hand_to(self, carriers: Sequence[str], now: float) -> None:
        self._take_back()
        carrier = min(carriers, key=lambda each: self._asked.index(each) if each in self._asked else -1)
        self._carrier, self._since = carrier, now
        self._asked = [*(each for each in self._asked if each != carrier), carrier]
        send(self._store, carrier, self._message)

    def _was_read(self) -> bool:
        return self._carrier is not None and not is_waiting(self._store, self._carrier, self._message)

    def _take_back(self) -> None:
        if self._carrier is not None and not take_back(self._store, self._carrier, self._message):
            self._has_been_read = True


class ProcessErrand:
    """One message to one process: it is done when it was read, and shows."""

    def __init__(self, store: Store, identity: str, message: Message) -> None:
        self.name = identity
        self.error: str | None = None
        self._store = store
        self._message = message
        self._is_sent = False

    def step(self, everybody: Sequence[Process], _now: float) -> bool:
        """See Carried."""
        if not self._is_sent:
            self._is_sent = True
            send(self._store, self.name, self._message)
            return False
        process = next((each for each in everybody if each.identity == self.name), None)
        if process is None:
            has_obeyed = self._message.action == "stop" and not is_waiting(self._store, self.name, self._message)
            self.error = None if has_obeyed else "is gone"
            return True
        wanted = {"quiet": True, "resume": False}.get(self._message.action, process.is_quiet)
        return process.is_quiet == wanted and not is_waiting(self._store, self.name, self._message)

    def call_off(self, error: str) -> None:
        """See Carried."""
        try:
            was_read = self._is_sent and not take_back(self._store, self.name, self._message)
        except StoreError:
            self.error = f"{error}; {VOID_LATER}"
        else:
            self.error = f"{error}{WAS_READ}" if was_read else error
