"""The rules of docs/engine.md as a state machine so small that all its states can be visited.

Two processes, two units, one queue.  Time goes in ticks; DEATH of them are `recover_after`.  Whatever another step may
come between is a step here: a script, the loss of its reply, the end of a job, a beat.

1. Server     what is in Redis, and the scripts as pure functions of it
2. Process    one worker: what it believes
3. State      server, processes, what is still on its way, faults that are left
4. steps      every state that may come next
5. settle_all the faults end; whatever is left must be finished

`without` takes a rule out; then some state must be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["DEATH", "FAULTS", "RULES", "Process", "Server", "State", "Violation", "explore", "first_state"]

DEATH = 2  # ticks of silence after which others may recover a member
FENCED = 0  # in the place of an epoch
HELPER = 2  # number of the process that comes when the faults have ended
MAX_ROUNDS = 14  # of settle_all
RULES = {
    "R2": "a reserve is refused unless the epoch is the member's",
    "R3": "after a lost reply, what the caller does not hold is given back",
    "R4": "a settle acts only on a token that is held",
    "R8 window": "others are recovered only after beats have arrived for as long, own ones or those of the fleet",
    "R8 row": "the row of the fleet's beats begins anew where it is not certain that others could beat",
    "R8 score": "recovery compares the time of the beat again",
    "R8 audit": "a member without a beat is given one",
    "fork": "a child of a job does nothing as its parent",
}
FAULTS = ("lost", "freeze", "kill", "blackout", "fork")

Token = tuple[int, int]  # epoch, call
Identity = tuple[int, int]  # number of the process, how often it has gone on under a new identity


class Violation(AssertionError):
    """A unit is lost, doubled or stuck, or ran twice while both lived."""


# 1. the server


class Server(NamedTuple):
    """queue: units, the next one last.  members: epochs.  held: units in flight.  done: how often each was settled.

    ages: ticks since the last beat, at most DEATH.  row: the fleet's beats: ticks since the first one, at most DEATH,
    and since the last one; None if the next beat begins it.
    """

    queue: tuple[int, ...]
    members: frozenset[tuple[Identity, int]]
    held: frozenset[tuple[Identity, Token, int]]
    done: tuple[int, int]
    ages: frozenset[tuple[Identity, int]]
    row: tuple[int, int] | None = None

    def epoch(self, identity: Identity) -> int | None:
        return dict(self.members).get(identity)

    def age(self, identity: Identity) -> int | None:
        return dict(self.ages).get(identity)

    def with_member(self, identity: Identity, epoch: int | None) -> Server:
        others = frozenset(each for each in self.members if each[0] != identity)
        return self._replace(members=others if epoch is None else others | {(identity, epoch)})

    def with_age(self, identity: Identity, age: int | None) -> Server:
        others = frozenset(each for each in self.ages if each[0] != identity)
        return self._replace(ages=others if age is None else others | {(identity, age)})

    def put_back(self, unit: tuple[Identity, Token, int]) -> Server:
        return self._replace(held=self.held - {unit}, queue=(*self.queue, unit[2]))


def join(server: Server, identity: Identity) -> Server:
    if server.epoch(identity) is None:
        server = server.with_member(identity, 1)
    return server.with_age(identity, 0)


def reserve(server: Server, identity: Identity, token: Token, without: str = "") -> tuple[Server, int | None, bool]:
    """Return the server, the unit that was taken, and whether the process is fenced."""
    if without != "R2" and server.epoch(identity) != token[0]:
        return server, None, True
    server = renew_beat(server, identity)
    if not server.queue:
        return server, None, False
    *rest, unit = server.queue
    others = frozenset(each for each in server.held if each[:2] != (identity, token))  # the field of a hash
    return server._replace(queue=tuple(rest), held=others | {(identity, token, unit)}), unit, False


def settle(server: Server, identity: Identity, token: Token, unit: int, without: str = "") -> Server:
    row = next((each for each in server.held if each[:2] == (identity, token)), None)
    if row is None and without != "R4":
        return server
    done = list(server.done)
    done[unit if row is None else row[2]] += 1
    return server._replace(held=server.held - {row} if row else server.held, done=(done[0], done[1]))


def resync(
    server: Server, identity: Identity, known: int, raised: int, tokens: frozenset[Token]
) -> tuple[Server, bool]:
    """Return the server, and whether the process is fenced."""
    epoch = server.epoch(identity)
    if not epoch or epoch < known or epoch >= raised:
        return server, True
    server = renew_beat(server.with_member(identity, raised), identity)
    for unit in sorted(server.held, reverse=True):
        if unit[0] == identity and unit[1] not in tokens:
            server = server.put_back(unit)
    return server, False


def recover(server: Server, identity: Identity) -> tuple[Server, int]:
    """Run one batch of one unit; return the server and the units that are left."""
    if server.epoch(identity):
        server = server.with_member(identity, FENCED)
    units = sorted((each for each in server.held if each[0] == identity), reverse=True)
    if units:
        server = server.put_back(units[0])
    if len(units) <= 1:
        server = server.with_member(identity, None).with_age(identity, None)
    return server, max(0, len(units) - 1)


def renew_beat(server: Server, identity: Identity) -> Server:
    """Return the server after a reserve or a resync, which count as beats of who has one."""
    return server if server.age(identity) is None else server.with_age(identity, 0)


def beat(server: Server, identity: Identity) -> tuple[Server, bool]:
    """Return the server, and whether the process is a stranger to it."""
    is_member = bool(server.epoch(identity))
    server = server._replace(row=(0 if server.row is None else server.row[0], 0))
    return server.with_age(identity, 0) if is_member else server, not is_member


def audit(server: Server) -> Server:
    """Give members without a beat one."""
    for identity, _ in server.members:
        if server.age(identity) is None:
            server = server.with_age(identity, 0)
    return server


def age(server: Server) -> Server:
    """Let a tick go by.  Two without a beat are a gap."""
    row = None if server.row is None or server.row[1] else (min(DEATH, server.row[0] + 1), 1)
    return server._replace(
        row=row, ages=frozenset((identity, min(DEATH, ticks + 1)) for identity, ticks in server.ages)
    )


# 2. processes


class Process(NamedTuple):
    """life: up, frozen or dead.  raised: the highest epoch that a resync has carried.  held: its units by token.

    window: ticks for which its own beats have arrived.  handed: whom it was handed as silent.  is_late: it was frozen,
    and has not beaten since, so others may have recovered it rightly.  is_fork: a child that goes on as its parent.
    """

    life: str
    identity: Identity
    epoch: int = 1
    raised: int = 1
    call: int = 0
    has_joined: bool = False
    unsure: bool = False
    held: frozenset[tuple[Token, int]] = frozenset()
    window: int = 0
    handed: Identity | None = None
    handed_is_valid: bool = False
    is_late: bool = False
    is_fork: bool = False


class Command(NamedTuple):
    """A script on its way: its name, who has sent it, and its arguments."""

    name: str
    identity: Identity
    token: Token = (0, 0)
    unit: int = 0
    known: int = 0
    tokens: frozenset[Token] = frozenset()


# 3. the whole


class State(NamedTuple):
    """late: commands that were given up and may still arrive.  left: faults that may still happen."""

    server: Server
    processes: tuple[Process, ...]
    late: tuple[Command, ...] = ()
    left: tuple[str, ...] = FAULTS

    def with_process(self, index: int, process: Process) -> State:
        return self._replace(processes=(*self.processes[:index], process, *self.processes[index + 1 :]))

    def spend(self, fault: str) -> State:
        left = list(self.left)
        left.remove(fault)
        return self._replace(left=tuple(left))


def first_state(faults: tuple[str, ...] = FAULTS) -> State:
    """Return two processes that have joined, the second one for long, and two units in the queue."""
    server = Server((1, 0), frozenset(), frozenset(), (0, 0), frozenset())
    identities: list[Identity] = [(0, 0), (1, 0)]
    for identity in identities:
        server = join(server, identity)
    processes = tuple(Process("up", each, has_joined=True, window=DEATH) for each in identities)
    return State(server._replace(row=(DEATH, 0)), processes, (), faults)


# 4. steps


def steps(state: State, without: str = "") -> Iterator[State]:
    """Yield every state that may come next.  Raises Violation when a step harms a job."""
    for index, process in enumerate(state.processes):
        if process.life == "up":
            yield from _steps_of(state, index, process, without)
        if process.life == "frozen":
            yield state.with_process(index, process._replace(life="up", is_late=True, window=0))
    yield _tick(state, without)
    for number, command in enumerate(state.late):
        rest = state.late[:number] + state.late[number + 1 :]
        yield _arrived(state._replace(late=rest), command, without)
    if "blackout" in state.left:  # an outage that nobody could beat in, a fail-over, or a clock that was set forward
        yield _blackout(state, without)


def _steps_of(state: State, index: int, process: Process, without: str) -> Iterator[State]:
    for command in _commands(state, process, without):
        yield _sent(state, index, command, without)
        if "lost" in state.left and not process.is_fork:
            unsure = state.with_process(index, _asked(process, command)._replace(unsure=True)).spend("lost")
            yield unsure._replace(late=(*state.late, command))
            yield _arrived(unsure, command, without)
    yield from _recoveries(state, index, process, without)
    if process.is_fork:
        return
    if "freeze" in state.left:
        yield state.with_process(index, process._replace(life="frozen")).spend("freeze")
        host = tuple(each._replace(life="frozen") if each.life == "up" else each for each in state.processes)
        yield state._replace(processes=host).spend("freeze")
    if "kill" in state.left:
        dead = state.with_process(index, _dead(process)).spend("kill")
        yield dead
        yield dead._replace(server=state.server.with_age(process.identity, None))  # it had begun to leave
    if "fork" in state.left and without == "fork" and process.held:
        child = process._replace(is_fork=True, handed=None)
        yield state._replace(processes=(*state.processes, child)).spend("fork")


def _commands(state: State, process: Process, without: str) -> Iterator[Command]:
    """Yield what a process may send now."""
    me = process.identity
    if not process.has_joined:
        yield Command("join", me)
    elif process.unsure and without != "R3":
        tokens = frozenset(token for token, _ in process.held)
        yield Command("resync", me, (process.raised + 1, 0), known=process.epoch, tokens=tokens)
    else:
        for token, unit in process.held:
            yield Command("settle", me, token, unit)
        if not process.held and (state.server.queue or state.server.epoch(me) != process.epoch):
            yield Command("reserve", me, (process.epoch, process.call + 1))


def _run(server: Server, command: Command, without: str) -> tuple[Server, int | None, bool]:
    """Run a command at the server; return it, a unit, and whether the sender is fenced."""
    match command.name:
        case "join":
            return join(server, command.identity), None, False
        case "reserve":
            return reserve(server, command.identity, command.token, without)
        case "settle":
            return settle(server, command.identity, command.token, command.unit, without), None, False
    server, is_fenced = resync(server, command.identity, command.known, command.token[0], command.tokens)
    return server, None, is_fenced


def _asked(process: Process, command: Command) -> Process:
    """Return a process that has sent a command and knows no more of it."""
    if command.name == "reserve":
        return process._replace(call=command.token[1])
    if command.name == "resync":
        return process._replace(raised=command.token[0])
    return process


def _sent(state: State, index: int, command: Command, without: str) -> State:
    """Return the state after a command that ran and was answered."""
    process = _asked(state.processes[index], command)
    server, unit, is_fenced = _run(state.server, command, without)
    if is_fenced:
        number, generation = process.identity
        process = Process(process.life, (number, generation + 1), window=process.window, is_fork=process.is_fork)
    elif command.name == "join":
        process = process._replace(has_joined=True)
    elif command.name == "resync":
        process = process._replace(epoch=command.token[0], unsure=False)
    elif command.name == "settle":
        process = process._replace(held=process.held - {(command.token, command.unit)})
    elif unit is not None:
        process = process._replace(held=process.held | {(command.token, unit)})
    return _checked(_heard(state.with_process(index, process)._replace(server=server), command))


def _arrived(state: State, command: Command, without: str) -> State:
    """Return the state after a command that ran and whose reply nobody has heard."""
    return _checked(_heard(state._replace(server=_run(state.server, command, without)[0]), command))


def _heard(state: State, command: Command) -> State:
    """Take note that a join is a beat."""
    return _beaten(state, command.identity) if command.name == "join" else state


def _beaten(state: State, identity: Identity) -> State:
    """Make void that somebody was handed this member before its beat."""
    processes = (each._replace(handed_is_valid=False) if each.handed == identity else each for each in state.processes)
    return state._replace(processes=tuple(processes))


def _recoveries(state: State, index: int, process: Process, without: str) -> Iterator[State]:
    if process.handed is None:
        if process.window >= DEATH or state.server.row == (DEATH, 0) or without == "R8 window":
            for identity, ticks in sorted(state.server.ages):
                if ticks >= DEATH and identity != process.identity:
                    yield state.with_process(index, process._replace(handed=identity, handed_is_valid=True))
        return
    yield _recovered(state, index, process, without)


def _recovered(state: State, index: int, process: Process, without: str) -> State:
    """Return the state after one batch of the recovery of whom a process was handed."""
    identity = process.handed
    assert identity is not None
    epoch = state.server.epoch(identity)
    is_settled = state.server.age(identity) is None
    if epoch != FENCED and (is_settled or (not process.handed_is_valid and without != "R8 score")):
        return state.with_process(index, process._replace(handed=None))
    for each in state.processes:
        if epoch and each.life == "up" and each.has_joined and each.identity == identity and not each.is_late:
            raise Violation(f"{identity} lives, and was recovered")
    server, left = recover(state.server, identity)
    if not left:
        process = process._replace(handed=None)
    return _checked(state.with_process(index, process)._replace(server=server))


def _tick(state: State, without: str) -> State:
    """Let time go by: who can, beats."""
    server, processes = state.server, list(state.processes)
    server = age(server) if without == "R8 audit" else audit(age(server))
    heard: list[Identity] = []
    for index, process in enumerate(processes):
        if process.life == "frozen":
            processes[index] = process._replace(is_late=True)
        if process.life != "up" or not process.has_joined or process.is_fork:
            continue
        server, is_stranger = beat(server, process.identity)
        heard += [] if is_stranger else [process.identity]
        processes[index] = process._replace(
            window=min(DEATH, process.window + 1),
            unsure=process.unsure or is_stranger,
            is_late=is_stranger and process.is_late,
        )
    state = state._replace(server=server, processes=tuple(processes))
    for identity in heard:
        state = _beaten(state, identity)
    return _checked(state)


def _blackout(state: State, without: str) -> State:
    """Make all beats old at once."""
    state = state.spend("blackout")
    server = state.server._replace(ages=frozenset((name, DEATH) for name, _ in state.server.ages))
    if without != "R8 row":
        is_kept = any(each.life == "up" and each.has_joined for each in state.processes)
        server = server._replace(row=(0, 0) if is_kept else None)
    processes = tuple(each if without == "R8 window" else each._replace(window=0) for each in state.processes)
    return state._replace(server=server, processes=processes)


def _dead(process: Process) -> Process:
    return Process("dead", process.identity)


def _checked(state: State) -> State:
    """Raise Violation unless each unit is in exactly one place."""
    for unit in (0, 1):
        held = sum(each[2] == unit for each in state.server.held)
        places = state.server.queue.count(unit) + held + state.server.done[unit]
        if places != 1:
            raise Violation(f"unit {unit} is in {places} places")
    return state


# 5. the end of all faults


def settle_all(state: State, without: str) -> State | None:
    """Return the state after one round without faults, None when all is done.  A fresh process takes part."""
    state = state._replace(left=())
    if all(process.identity[0] != HELPER for process in state.processes):
        processes = tuple(_dead(each) if each.life == "frozen" else each for each in state.processes)
        state = state._replace(processes=(*processes, Process("up", (HELPER, 0))))
    before = state
    for index in range(len(state.processes)):
        while state.processes[index].life == "up":
            command = next(_commands(state, state.processes[index], without), None)
            if command is None:
                break
            state = _sent(state, index, command, without)
    if state.late:
        return _arrived(state._replace(late=state.late[1:]), state.late[0], without)
    state = _tick(state, without)
    for index in range(len(state.processes)):
        while state.processes[index].life == "up" and not state.processes[index].is_fork:
            recovery = next(_recoveries(state, index, state.processes[index], without), None)
            if recovery is None:
                break
            state = recovery
    if state == before:
        _check_end(state)
        return None
    return state


def _check_end(state: State) -> None:
    if state.server.done != (1, 1) or state.server.held or state.server.queue:
        raise Violation(f"stuck: {state.server}")
    alive = {each.identity for each in state.processes if each.life == "up"}
    if {identity for identity, _ in state.server.members} != alive:
        raise Violation(f"members that nobody is: {state.server}")


def explore(first: State, without: str = "", told: Callable[[State], None] = lambda _: None) -> int:
    """Visit every state that can be reached, and bring each to rest; return how many.  Raises Violation."""
    seen, waiting, at_rest = {first}, [first], set[State]()
    while waiting:
        state = waiting.pop()
        told(state)
        _bring_to_rest(state, without, at_rest)
        for following in steps(state, without):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen)


def _bring_to_rest(state: State, without: str, at_rest: set[State]) -> None:
    passed: list[State] = []
    current: State | None = state._replace(left=())
    while current is not None and current not in at_rest:
        if len(passed) > MAX_ROUNDS * 3:
            raise Violation(f"never comes to rest: {current.server}")
        passed.append(current)
        current = settle_all(current, without)
    at_rest.update(passed)
