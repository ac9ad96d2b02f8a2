"""A fleet in miniature: processes that obey the rules of docs/engine.md, on a real Redis with the real scripts.

What is modelled is the processes (single-threaded, deciding as `fetch.py` and `recovery.py` in `worker/` do) and the
network between them and Redis: any reply may be lost, any command may arrive late, after its sender has given it up,
has gone on or is dead.  Everything in Redis is real: the calls of store/engine/ and every script.

1. World     the server, the commands still on their way, the account of every job
2. Process   what one worker does, one step at a time; a test chooses which
3. check     each job is in exactly one place; nobody has lost what it holds
4. calm      the faults end; whatever is left must be finished, and nothing may stay behind

limits.py has the jobs of which only a few run at once, and the guarded pushes.

`without` takes one rule out, to show that the walks would notice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha1
from random import Random
from typing import Any, Protocol, cast

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import (
    Dead,
    Deferred,
    Discard,
    Done,
    Dropped,
    Effect,
    Interrupted,
    Outcome,
    Requeue,
    Retry,
)
from kiqcluster.store import Store, guarded_push
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine import engine as engine_module
from kiqcluster.store.engine import reserve_calls, settle_calls, wait_lists
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import ALL_SUSPECT, ANY_DEATHS, BeginVerdict, Member, Reserved, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits, Move
from kiqcluster.store.replies import unwrapped
from kiqcluster.store.scripts import SEND_PARKED, Script, Word
from kiqcluster.worker.run.endings import Refused
from kiqcluster.worker.run.job_hooks import JobHooks
from kiqcluster.worker.run.read_job import ReadJob
from tests.properties import limits
from tests.properties.limits import INDEX, LOCK, PARKED, SLOTS, LimitState, Violation, begin_rows

QUEUES = ("high", "low")
AHEAD = 2  # units that are reserved ahead of need
NOW = 1_795_168_740.25
DEATHS = 3  # of processes, until what they ran is buried
MOST_TURNS = 200  # until everything must be done once the faults have ended
SMALL_BATCH = 2  # units that one script gives back, or settles, so that it takes several
ENDED, COUNTED = "test:ended", "test:counted"  # lists that the outcomes write with their effects
LIMITS = DeadSetLimits(1_000_000, 1e9)
SILENCE = 60.0  # seconds after which others recover a member

ASIDE = "aside:"
JID = re.compile(rb'"jid":"(\w+)"')

CENSUS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = {redis.call('GET', key)} end
  found[#found + 1] = {key, value}
end
return found
"""

# Move the time of every beat back, and have the next beat look for members without one.
AGE = """
local scored = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #scored, 2 do redis.call('ZADD', KEYS[1], scored[i + 1] - ARGV[1], scored[i]) end
redis.call('DEL', KEYS[2])
"""

Command = Sequence[Word]


class Fault(Enum):
    """What becomes of one exchange."""

    NONE = "none"
    AWAY = "nothing is sent"
    LOST = "it runs, the reply is lost"
    CUT = "only its first command runs, the reply is lost"
    LATE = "it is given up, and may run later"


@dataclass
class Snapshot:
    """What a replica knows: the keys, and the jobs pushed until then."""

    dumps: list[tuple[bytes, bytes]]
    jobs: set[bytes]
    expired: int


class Holder(Protocol):
    """A process that holds units."""

    def check(self, inflight: dict[str, set[str]]) -> None: ...

    def limited(self) -> set[str]: ...


class World:
    """The server and the network.

    jobs: names of the jobs pushed (job_of).  maybe: those whose push got no answer; they are pushed once they are seen.
    late: commands that their senders have given up.  armed: waits of idle processes at the server, which outlive them.
    spoiled: keys that hold something of a wrong type for a while; what they held is aside.
    """

    def __init__(self, store: Store, without: str = "") -> None:
        self.store = store
        self.without = without
        self.connection = store.connection()
        self.jobs: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.spoiled: set[str] = set()
        self.late: list[list[Command]] = []
        self.armed: list[tuple[str, str]] = []
        self.to_forget: list[str] = []  # without R1: memberships whose end is still to come
        self.released: set[str] = set()  # holders of places that were released before their outcomes were written
        self.forgotten: set[str] = set()  # those of them whose release a fail-over may have lost
        self.recovered: set[str] = set()  # identities that somebody has recovered, or begun to
        self.processes: list[Process] = []
        self.others: Sequence[Holder] = []  # of another kind
        self.is_away = False
        self.replica: Snapshot | None = None
        self.born = 0
        self.largest = 2  # limited jobs that may run at once
        self.override: int | None = None  # another limit in force
        self.most_held = 0  # places that may be taken: more than the limit after it was lowered
        self.expired = 0  # claims of unique jobs that have ended
        self.has_failed_over = False  # grants may be back of jobs that have begun since: only the sweep drops them
        self.has_skipped_begin = False  # a limited job has ended without asking for a place, so it releases none
        modules = (engine_module, reserve_calls, settle_calls, wait_lists, guarded_push)
        scripts = [each for module in modules for each in vars(module).values()]
        (self.census_digest, *_) = self.raw(
            ("SCRIPT", "LOAD", CENSUS),
            *[("SCRIPT", "LOAD", each.text) for each in scripts if isinstance(each, Script)],
            ("FLUSHDB",),
        )

    # the server

    def raw(self, *commands: Command) -> list[Any]:
        """Run commands as the server itself would, without any fault."""
        return self.connection.exchange(commands)

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Run what a process has sent."""
        self.recovered |= {
            arguments_of(command)[0] for command in commands if command[1] == engine_module.RECOVER.digest
        }
        if self.without == "R2":
            return [self._run_unfenced(command) for command in commands]
        return self.connection.exchange_each(commands)

    def _run_unfenced(self, command: Command) -> Any:
        """Run a command; a reserve as if its process were a member of its epoch."""
        if command[1] != reserve_calls.RESERVE.digest:
            return self.connection.exchange_each([command])[0]
        members, (identity, epoch, *_) = command[3], arguments_of(command)
        before = self.raw(("HGET", members, identity))[0]
        self.raw(("HSET", members, identity, f"{epoch} as it says"))
        reply = self.connection.exchange_each([command])[0]
        self.raw(("HSET", members, identity, before) if before else ("HDEL", members, identity))
        return reply

    def push(self, count: int, queue: str, kind: str = "job") -> None:
        payloads = [f"{kind}-{self.number()}" for _ in range(count)]
        self.jobs |= {payload.encode() for payload in payloads}
        self.raw(("LPUSH", f"queue:{queue}", *payloads))

    def push_unique(self, wire: Wire, queue: str) -> None:
        """Push a job unless another one has claimed the lock."""
        job = f"unique-{self.number()}".encode()
        rows = [Effect("claim", LOCK, (job, 3_600)), Effect("sadd", INDEX, (job,))]
        guarded = guarded_push.GuardedJob(queue, None, job, rows)
        try:
            (refusal,) = guarded_push.push_guarded(cast(Connection, wire), Keys(), [guarded])
        except ReplyLost:
            self.maybe.add(job)
        except RedisUnavailable:
            pass
        else:
            self.jobs |= set() if refusal else {job}

    def expire(self) -> None:
        """Let the claim of the last unique job end."""
        self.expired += self.raw(("DEL", LOCK))[0]

    def cancel(self, count: int) -> None:
        """Cancel the parked jobs that come next: they are dropped before they begin."""
        for entry in self.raw(("ZRANGE", PARKED, 0, count - 1))[0]:
            self.raw(("SET", limits.cancelled(job_of(entry.partition(b"\0")[2])), "1"))

    def sweep_parked(self) -> None:
        """Look at the line of parked jobs a while later: what was sent back and never began counts as gone."""
        for digest in self.raw(("ZRANGE", limits.GRANTS, 0, -1))[0]:
            self.raw(("ZADD", limits.GRANTS, 1, digest))
        self.send_parked()

    def send_parked(self) -> None:
        self.raw(("EVAL", SEND_PARKED.text, 2, SLOTS, "kiq:members", self.largest, limits.NAME))

    def set_limit(self, override: int | None) -> None:
        """Put another limit into force, None for the one that jobs declare."""
        self.override = override
        field = f"{limits.NAME}|override"
        (held,) = self.raw(("SCARD", SLOTS))
        self.raw(
            ("HDEL", limits.OVERRIDES, field)
            if override is None
            else ("HSET", limits.OVERRIDES, field, f"{override} {10**14}")
        )
        self.most_held = max(held, self.limit)
        self.send_parked()

    def line(self) -> list[bytes]:
        """Return the parked jobs, the first one first."""
        return [entry.partition(b"\0")[2] for entry in self.raw(("ZRANGE", PARKED, 0, -1))[0]]

    @property
    def limit(self) -> int:
        """The limit in force."""
        limit = self.largest if self.override is None else self.override
        return max(0, limit or limits.NO_LIMIT)

    def is_next(self, unit: Unit) -> bool:
        """Return whether a job may begin by the order in which jobs were parked: no other waits or is on its way."""
        digest = sha1(unit.payload, usedforsecurity=False).hexdigest()
        grant, parked, granted, held, is_held = self.raw(
            ("ZSCORE", limits.GRANTS, digest),
            ("ZCARD", PARKED),
            ("ZCOUNT", limits.GRANTS, 2, "+inf"),
            ("SCARD", SLOTS),
            ("SISMEMBER", SLOTS, f"{unit.identity}/{unit.token}"),
        )
        return bool(is_held or grant or self.limit == limits.NO_LIMIT or not (parked or held + granted >= self.limit))

    def number(self) -> int:
        self.born += 1
        return self.born

    def ring(self, index: int) -> None:
        """Let a wait that is armed at the server move its payload."""
        queue, wake = self.armed.pop(index)
        with suppress(RedisRefused):
            self.raw(("LMOVE", f"queue:{queue}", wake, "RIGHT", "LEFT"))

    def arrive(self, index: int) -> None:
        """Let a late command arrive."""
        self.run(self.late.pop(index))

    def spoil(self, key: str) -> None:
        """Put something of a wrong type where a list or a sorted set belongs."""
        if key not in self.spoiled:
            self.spoiled.add(key)
            if self.raw(("EXISTS", key))[0]:
                self.raw(("RENAME", key, f"{ASIDE}{key}"))
            self.raw(("SET", key, "of a wrong type"))

    def mend(self) -> None:
        for key in self.spoiled:
            self.raw(("DEL", key))
            if self.raw(("EXISTS", f"{ASIDE}{key}"))[0]:
                self.raw(("RENAME", f"{ASIDE}{key}", key))
        self.spoiled.clear()

    def pass_time(self, seconds: float = 2 * SILENCE) -> None:
        """Make every beat older, by more than others wait for; less than 0: the server's clock was set back."""
        self.raw(("EVAL", AGE, 2, "kiq:beats", "kiq:audit", 1_000 * seconds))

    def scores(self) -> dict[str, int | None]:
        """Return every member, and every beat without one, with the time of its beat."""
        members, flat = self.raw(("HKEYS", "kiq:members"), ("ZRANGE", "kiq:beats", 0, -1, "WITHSCORES"))
        scores = {name.decode(): int(score) for name, score in zip(flat[::2], flat[1::2], strict=True)}
        return {**dict.fromkeys(sorted(name.decode() for name in members)), **scores}

    def forget(self, index: int) -> None:
        """Without R1: end a membership whose units were given back some time ago."""
        self.raw(("HDEL", "kiq:members", self.to_forget.pop(index)))

    def replicate(self) -> None:
        """Have the replica catch up."""
        self.check()
        keys = self.raw(("KEYS", "*"))[0]
        dumps = self.raw(*[("DUMP", key) for key in keys]) if keys else []
        self.replica = Snapshot(list(zip(keys, dumps, strict=True)), set(self.jobs), self.expired)

    def fail_over(self) -> None:
        """Go on with what the replica knows: pushes are lost, settled units are back."""
        assert self.replica is not None
        self.raw(("FLUSHDB",), *[("RESTORE", key, 0, dump) for key, dump in self.replica.dumps])
        self.jobs, self.expired = set(self.replica.jobs), self.replica.expired
        self.maybe -= self.jobs
        self.late, self.armed, self.to_forget = [], [], []
        for process in self.processes:
            process.doubtful |= process.held.keys()
        self.forgotten |= self.released
        self.has_failed_over = True
        self.set_limit(self.override)

    # processes

    def spawn(self) -> Process:
        self.processes = [process for process in self.processes if process.is_alive]
        process = Process(self, self.number())
        self.processes.append(process)
        return process

    def awake(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive and not process.is_frozen]

    # what is true at any time

    def check(self) -> set[str]:
        """Raise Violation unless each job is in exactly one place, and everybody has what it holds.

        Returns the members.
        """
        copies: Counter[bytes] = Counter()
        inflight: dict[str, set[str]] = {}
        members: set[str] = set()
        processed = counted = 0
        places = LimitState()
        for raw_key, values in self.raw(("EVALSHA", self.census_digest, 0))[0]:
            key = raw_key.decode().removeprefix(ASIDE)
            if raw_key.decode() in self.spoiled:
                continue
            copies.update(map(job_of, places.read(key, values).elements()))
            if key.startswith("kiq:inflight:"):
                inflight[key.removeprefix("kiq:inflight:")] = {
                    field.partition(b":")[0].decode() for field in values[::2]
                }
                copies.update(map(job_of, values[1::2]))
            elif key.startswith(("queue:", "kiq:wake:")) or key in ("retry", "schedule", "dead", ENDED):
                copies.update(job_of(value) for value in values)
            elif key == "kiq:members":
                members = {name.decode() for name in values[::2]}
            elif key == "stat:processed":
                processed = int(values[0])
            elif key == COUNTED:
                counted = len(values)
        self.jobs |= self.maybe & (copies.keys() | places.index)
        self.maybe -= self.jobs
        doubled = sorted(job for job, count in copies.items() if count > 1)
        if doubled:
            raise Violation(f"in several places: {doubled}")
        if copies.keys() - self.jobs:
            raise Violation(f"nobody has pushed {copies.keys() - self.jobs}")
        gone, done = len(self.jobs) - len(copies), processed - counted  # plain Done leaves no trace but its count
        if gone != done:
            raise Violation(f"{gone} jobs are gone, {done} are done: {sorted(self.jobs - copies.keys())}")
        holders: list[Holder] = [*self.processes, *self.others]
        for each in holders:
            each.check(inflight)
        running = {name for each in holders for name in each.limited()}
        places.check(inflight, running, max(self.limit, self.most_held), self.forgotten)
        places.check_pushes({job for job in self.jobs if job.startswith(b"unique")}, self.expired)
        return members

    def calm(self, rng: Random) -> None:
        """End all faults, let everybody go on; raise Violation if anything is left behind."""
        self.is_away = False
        self.mend()
        self.raw(("DEL", limits.CLOSED))
        if self.override is not None:
            self.set_limit(None)
        for process in self.processes:
            if process.is_frozen and rng.random() < 0.5:
                process.is_frozen = False
            elif process.is_frozen:
                process.is_alive = False
        last = self.spawn()
        self._until_done(last)
        while self.late or self.to_forget or self.armed:
            for pending, happen in ((self.late, self.arrive), (self.to_forget, self.forget), (self.armed, self.ring)):
                if pending and rng.random() < 0.5:
                    happen(rng.randrange(len(pending)))
            self.check()
            if rng.random() < 0.2:
                last.sweep_dead()
        self._until_done(last)
        while self.to_forget:
            self.forget(0)
        self.sweep_parked()
        members = self.check()
        places = (b"queue:", b"kiq:wake:", b"kiq:inflight:", b"kiq:held:", SLOTS.encode())
        if left := [key for key in self.raw(("KEYS", "*"))[0] if key.startswith(places)]:
            raise Violation(f"stranded in {left}")
        if members != {process.member.identity for process in self.awake()}:
            raise Violation(f"members that nobody is, or the other way round: {sorted(members)}")

    def _until_done(self, last: Process) -> None:
        """Have everybody work without a fault until there is nothing to do; every process checks what it holds."""
        for turn in range(MOST_TURNS):
            is_busy = turn < 2
            for process in self.awake():
                process.quiet = False
                process.unsure |= turn == 0  # the check that is made once a minute (R3)
                process.round(8)
                for token in process.unfinished():
                    is_busy = True
                    is_limited = not process.has_begun(token)
                    process.finish(token, "done")
                    if is_limited:
                        process.round(None)  # its place is free for the next one
                is_busy |= bool(process.outcomes)
                process.round(8)
            last.sweep_dead()
            is_busy |= last.poll() > 0
            if self.has_skipped_begin or self.has_failed_over:
                self.sweep_parked()
            if not is_busy:
                return


class Wire:
    """A link whose next exchange suffers a fault; those after it do not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.fault = Fault.NONE
        self.before: list[Command] = []  # without R4: what makes every token look held

    def begin(self, commands: Sequence[Command]) -> None:
        self.replies = self.exchange_each(commands)

    def finish(self, timeout: float | None = None) -> list[Any]:
        return self.replies

    def exchange(self, commands: Sequence[Command], timeout: float | None = None) -> list[Any]:
        return unwrapped(commands, self.exchange_each(commands, timeout))

    def exchange_each(self, commands: Sequence[Command], timeout: float | None = None) -> list[Any]:
        fault, self.fault = self.fault, Fault.NONE
        extra, self.before = self.before, []
        if self._world.is_away or fault is Fault.AWAY:
            raise RedisUnavailable("away")
        if fault is Fault.LATE:
            self._world.late.append([*extra, *commands])
            raise ReplyLost("late")
        if extra:
            self._world.raw(*extra)
        replies = self._world.run(commands[:1] if fault is Fault.CUT else commands)
        if fault in (Fault.LOST, Fault.CUT):
            raise ReplyLost("lost")
        return replies


class WireStore(Store):
    """A store with one wire."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        super().__init__("redis://127.0.0.1:1/0")
        self.keys = keys
        self._wire = wire

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        yield cast(Connection, self._wire)


class Process:
    """A worker: what fetch.py and recovery.py do, one round trip at a time.

    held: by token, until the settle is acknowledged.  outcomes: finished, not acknowledged yet.
    doubtful: tokens held since before a fail-over: what Redis knows of them is not known.
    begun: tokens of limited jobs that may run.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.wire = Wire(world)
        self.engine = engine_for(world, self.wire, f"p{number}")
        self.member = self._new_member()
        self.is_alive, self.is_frozen, self.has_joined = True, False, False
        self.quiet = False
        self.unsure = False
        self.held: dict[str, Unit] = {}
        self.outcomes: list[Settlement] = []
        self.doubtful: set[str] = set()
        self.begun: set[str] = set()
        self.raised = self.member
        self.call = 0

    def _new_member(self) -> Member:
        return Member(f"host:{self.number}:{self.world.number()}", 1, f"boot ns {self.number} 1")

    def unfinished(self) -> list[str]:
        settled = {each.unit.token for each in self.outcomes}
        return [token for token in self.held if token not in settled]

    # steps

    def round(self, wanted: int | None, fault: Fault = Fault.NONE) -> None:
        """Make the next round trip that is due: join, resync, or settle and reserve."""
        self.wire.fault = fault
        try:
            if not self.has_joined:
                self.engine.join(self.member)
                self.has_joined = True
            elif self.unsure and self.world.without != "R3":
                self._resync()
            else:
                self._exchange(None if self.quiet else wanted)
        except ReplyLost:
            self.unsure = True
        except RedisUnavailable:
            pass
        self.wire.fault = Fault.NONE

    def has_begun(self, token: str) -> bool:
        """Return whether a unit runs.  A job without a limit begins as soon as it is here."""
        return token in self.begun or not limits.is_limited(self.held[token].payload)

    def begin(self, token: str, fault: Fault = Fault.NONE) -> bool:
        """Ask whether a limited job may run; if not, have its unit come to an end."""
        unit, verdict = self.held[token], None
        is_next = self.world.is_next(unit)
        self.wire.fault = fault
        with suppress(StoreError):
            verdict = self.engine.begin_run(unit, begin_rows(unit.payload, self.world.largest))
        self.wire.fault = Fault.NONE
        if verdict is not None and verdict.action == "go":
            if not is_next:
                raise Violation(f"others are overtaken by {unit.payload!r}")
            self.begun.add(token)
            return True
        self.outcomes.append(Settlement(unit, refused_outcome(unit, verdict)))
        return False

    def release(self, fault: Fault = Fault.NONE) -> None:
        """Release what units hold whose runs have ended, before their outcomes are written."""
        ended = [each.unit for each in self.outcomes if each.unit.token in self.begun]
        self.wire.fault = fault
        with suppress(StoreError):
            if ended and self.engine.begin_units([], ended).is_released:
                for unit in ended:
                    unit.holds = False
                    self.world.released.add(f"{self.member.identity}/{unit.token}")
        self.wire.fault = Fault.NONE

    def limited(self) -> set[str]:
        """Return the limited jobs that run here, as holders of places, unless others may have recovered them."""
        identity = self.member.identity
        if not self.is_alive or identity in self.world.recovered:
            return set()
        return {f"{identity}/{token}" for token in self.begun.intersection(self.unfinished()) - self.doubtful}

    def finish(self, token: str, kind: str, fault: Fault = Fault.NONE) -> None:
        """Have a job come to an end.  A limited job must begin before."""
        unit = self.held[token]
        if not self.has_begun(token) and unit.deaths >= DEATHS:
            self.world.has_skipped_begin = True
        elif not self.has_begun(token) and kind != "requeue" and not self.begin(token, fault):
            return
        self.outcomes.append(Settlement(unit, outcome(unit, "bury" if unit.deaths >= DEATHS else kind)))

    def arm(self, queue: str) -> None:
        """Wait at the server for a payload of a queue (BLMOVE)."""
        self.world.armed.append((queue, self.engine._keys.wake(queue)))

    def give_back(self) -> None:
        """Quiet: what has not started goes back; half of what is held runs."""
        self.quiet = True
        for token in self.unfinished()[1::2]:
            self.finish(token, "requeue")

    def stop(self, fault: Fault = Fault.NONE) -> None:
        """Leave: settle, then recover oneself, which fences a reserve that is still on its way (R7)."""
        self.wire.fault = fault
        for token in self.unfinished()[::2]:
            if self.has_begun(token):
                self.finish(token, "interrupt")
        with suppress(StoreError):
            self.engine.exchange(self.wire, self.member, 0, dict.fromkeys(QUEUES, (0, 0)), self.outcomes, NOW)
            self._recover(self.member.identity)
        self.die()

    def die(self) -> None:
        self.is_alive = False
        self.held, self.outcomes, self.begun = {}, [], set()

    def sweep(self, identity: str, fault: Fault = Fault.NONE, score: int | None = None) -> None:
        """Recover another process, whatever it is: dead, frozen or only slow."""
        self.wire.fault = fault
        with suppress(StoreError):
            self._recover(identity, ALL_SUSPECT, score)
        self.wire.fault = Fault.NONE

    def look(self, fault: Fault = Fault.NONE) -> None:
        """Beat, and recover whoever was handed as silent."""
        self.wire.fault = fault
        with suppress(StoreError):
            for identity, score in self.engine.beat(self.wire, [self.member.identity], SILENCE, 2).silent.items():
                self._recover(identity, ALL_SUSPECT, score)
        self.wire.fault = Fault.NONE

    def sweep_dead(self) -> None:
        """Recover whoever has been silent, as every process does that has beaten for long enough.

        Twice: the first time, members without a beat are given one.
        """
        for _ in range(2):
            self.world.pass_time()
            alive = sorted(process.member.identity for process in self.world.awake())
            silent = self.engine.beat(self.wire, alive, SILENCE, 1_000).silent
            for identity, score in silent.items():
                self._recover(identity, score=score)

    def poll(self, fault: Fault = Fault.NONE) -> int:
        """Move what is due; return how many entries."""
        moved = 0
        self.wire.fault = fault
        with suppress(StoreError):
            for source in ("retry", "schedule"):
                due = self.world.connection.exchange([("ZRANGE", source, 0, 4)])[0]
                if due and not isinstance(due, RedisRefused):
                    moves = [Move(old, "push", QUEUES[0], old) for old in due]
                    moved += self.engine.move_due(source, moves, NOW + 100)[0]
        self.wire.fault = Fault.NONE
        return moved

    # what is true of it at any time

    def check(self, inflight: dict[str, set[str]]) -> None:
        """Raise Violation if it has lost a unit that it runs, though nobody has recovered it."""
        if not self.is_alive or self.unsure or self.member.identity in self.world.recovered:
            return
        gone = set(self.unfinished()) - self.doubtful - inflight.get(self.member.identity, set())
        if gone:
            raise Violation(f"{self.member.identity} runs {sorted(gone)}, which is not in flight any more")

    # round trips

    def _exchange(self, wanted: int | None) -> None:
        batch = list(self.outcomes)
        if wanted is None and not batch:
            return
        ahead = AHEAD if wanted else 0  # the first queue may give more than is wanted at once
        limits = None if wanted is None else {QUEUES[0]: (wanted, wanted + ahead), QUEUES[1]: (wanted, wanted)}
        self.call += 1
        suspects = [unit.deaths for unit in self.held.values() if unit.deaths]
        most_deaths = ANY_DEATHS if not suspects else int(self.call % 2 and max(suspects) == 1)
        refusals, reserved = self.engine.exchange(
            self.wire, self.member, self.call, limits, batch, NOW, most_deaths=most_deaths
        )
        self.outcomes = [each for each in self.outcomes if each.unit.token in refusals]
        for token in {each.unit.token for each in batch} - refusals.keys():
            self.held.pop(token, None)
        if reserved is not None:
            self._receive(reserved)

    def _receive(self, reserved: Reserved) -> None:
        if reserved.fenced:
            self._rejoin()
        self.held.update({unit.token: unit for unit in reserved.units})

    def _resync(self) -> None:
        """Have one batch given back; whatever happens between two of them."""
        self.raised = self.raised.raised()
        returned = self.engine.resync(self.wire, self.member, self.raised, list(self.held))
        if returned is None:
            self._rejoin()
        elif returned[1] == 0:
            self.member = self.raised
            self.unsure = False

    def _rejoin(self) -> None:
        """Go on under a new identity; what was held is others' now, what was finished still settles to nothing."""
        self.member = self.raised = self._new_member()
        self.has_joined, self.unsure = False, False
        self.held.clear()
        self.begun.clear()

    def _recover(self, identity: str, running: Sequence[str] = (), score: int | None = None) -> None:
        self.engine.recover(self.wire, identity, running, score)


def outcome(unit: Unit, kind: str) -> Outcome:
    """Return an outcome that leaves its trace with its effects; only a plain Done leaves none."""
    again = unit.payload + b"+"
    job = Effect("lpush", ENDED, (job_of(unit.payload),))
    count = Effect("lpush", COUNTED, ("1",))
    return {
        "done": Done(),
        "done with effects": Done(effects=(job, count)),
        "discard": Discard(effects=(job, count)),
        "retry": Retry(again, NOW + 1, effects=(count,)),
        "dead": Dead(again, NOW, effects=(count,)),
        "bury": Dead(again, NOW, counted=False),
        "defer": Deferred(again, NOW + 1),
        "interrupt": Interrupted(again),
        "requeue": Requeue(),
    }[kind]


class ModelJob(ReadJob):
    """A job whose bytes are no JSON, for the model tells jobs apart by them."""

    def entry(self, _changes: object, _without: object = ()) -> bytes:
        return self.unit.payload + b"+"


def refused_outcome(unit: Unit, verdict: BeginVerdict | None) -> Outcome:
    """Return what becomes of a unit that may not begin.  verdict: None if the reply was lost."""
    decided = Refused(verdict).outcome(ModelJob(unit, {}, "", None, ()), NOW, JobHooks(Setup(), Random(0), 0))
    is_dropped = isinstance(decided, Dropped)
    return replace(decided, effects=(Effect("lpush", ENDED, (job_of(unit.payload),)),)) if is_dropped else decided


KINDS = ("done", "done with effects", "discard", "retry", "dead", "defer", "interrupt", "requeue")


def arguments_of(command: Command) -> list[str]:
    """Return a script's arguments, without its keys."""
    return [str(word) for word in command[3 + int(command[2]) :]]


def job_of(payload: bytes) -> bytes:
    """Return what stays the same of a job: its jid, or its name without what retries have added."""
    jid = JID.search(payload)
    return jid[1] if jid else payload.rstrip(b"+")


# rules taken out


class WithoutR1(Engine):
    """Recovery gives units back and forgets the membership later, in a step of its own."""

    world: World

    def recover(self, connection: Any, identity: str, running: Any = (), score: int | None = None) -> int | None:
        record = self.world.raw(("HGET", "kiq:members", identity))[0]
        units = super().recover(connection, identity, running, score)
        if record is not None and units is not None:
            self.world.raw(("HSET", "kiq:members", identity, record))
            self.world.to_forget.append(identity)
        return units


class WithoutR4(Engine):
    """Settle writes what it is told, whether the token is held or not."""

    def begin(self, connection: Any, *arguments: Any, **options: Any) -> Any:
        done: Sequence[Settlement] = arguments[3]
        for unit in (settlement.unit for settlement in done):
            connection.before.append(("HSETNX", f"kiq:inflight:{unit.identity}", unit.field, unit.payload))
        return super().begin(connection, *arguments, **options)


def engine_for(world: World, wire: Wire, name: str) -> Engine:
    keys = Keys()
    if world.without == "R6":

        class OwnWakeLists(Keys):
            def wake(self, queue: str) -> str:
                return f"kiq:wake:{queue}:{name}"

        keys = OwnWakeLists()
    kind = {"R1": WithoutR1, "R4": WithoutR4}.get(world.without, Engine)
    engine = kind(WireStore(wire, keys), LIMITS)
    if isinstance(engine, WithoutR1):
        engine.world = world
    return engine
