"""The fleet in miniature of model.py, whose processes wait with hand lists as well (rules H1 to H6 of docs/engine.md).

Real: every script, the calls of store/engine/ and worker/fetch/hand_lists.py.  Modelled: what wakeups.py, fetch.py
and recovery.py decide, the network, and BLMOVE, which moves a payload as soon as its queue has one.  Time is virtual.

1. HandWorld     the server's waits, what is on its way to and from them, and time
2. HandProcess   what one worker does, one step at a time
3. without       takes one part of a rule out (PARTS)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from math import inf
from random import Random
from typing import Any, cast

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from kiqcluster.store.engine.units import ALL_SUSPECT, Reserved, Settlement, Unit
from kiqcluster.store.engine.wait_lists import forget_hands, return_wake_lists, stale_hands
from kiqcluster.store.scripts import RECOVER, REGISTER_HANDS, RESYNC, STALE_HANDS
from kiqcluster.worker.fetch.hand_lists import HandList, HandLists
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from tests.properties.limits import Violation
from tests.properties.model import (
    ASIDE,
    COUNTED,
    ENDED,
    NOW,
    QUEUES,
    SILENCE,
    Command,
    Fault,
    Process,
    World,
    arguments_of,
    job_of,
    outcome,
)

__all__ = ["BEATS_ARE_OLD", "LOOK", "MEMORY", "PARTS", "HandProcess", "HandWorld"]

PARTS = {
    "H1 registered": "a wait is armed only once its list is registered",
    "H1 member": "… and Redis has confirmed the membership and a young beat (a recovered member has no beat)",
    "H1 beat": "… and the beat is young",
    "H2 ends": "the wait ends by itself on the server, and a reply that is later still is not believed",
    "H2 late reply": "a reply later than wait and grace is not believed",
    "H2 send": "a wait is not sent once its time is over",
    "H2 asked": "the wait is counted from when the membership was asked for",
    "H2 generation": "nor one of a wait that was armed before the last resync",
    "H2 uncertain": "nor one that comes while a resync is due",
    "H3 take over": "a resync takes over what lies in the lists",
    "H3 look": "lists that were given up are looked into later",
    "H3 one wait": "a list that a push has used is not used again",
    "H4 take over": "a recovery takes over what lies in the lists",
    "H4 look": "dead processes are looked at again",
    "H4 memory": "… for as long as a command may be late",
    "H5 wake list": "suspects are returned where only a reserve looks",
    "H5 stay": "… and stay there until the waits of that time have ended",
    "H5 refuse": "no wait is armed while there are suspects",
    "H5 pause": "no wait is armed for a queue that is paused",
    "H6": "at a stop the waits are ended before the membership ends",
}
MEMORY, LOOK = 120.0, 20.0  # seconds, in place of HANDS_MEMORY_SECONDS and HANDS_LOOK_SECONDS
SUSPECT_ROUNDS = 20  # in which the last suspects run, at the end
MAX_LATE = 110.0  # seconds that a command may be late
FIN_SECONDS = (0.0, 0.0, 3.0, 15.0)  # until the server notices that a connection is gone
BEAT_SECONDS = 10.0
BEATS_ARE_OLD = 7.0  # seconds; at the next chance a process beats again

# Move everything back in time that Redis has written with its own clock, and have the next beat audit.
AGE = """
local function shift(key)
  local scored = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #scored, 2 do
    redis.call('ZADD', key, string.format('%d', math.max(0, scored[i + 1] - ARGV[1])), scored[i])
  end
end
shift(KEYS[1])
shift(KEYS[2])
for _, key in ipairs(redis.call('KEYS', KEYS[2] .. ':*')) do
  local gone = redis.call('HGET', key, 'gone')
  if gone then redis.call('HSET', key, 'gone', string.format('%d', gone - ARGV[1])) end
end
redis.call('DEL', KEYS[3])
"""
INFLIGHT, HAND, HANDS = "kiq:inflight:", "kiq:hand:", "kiq:hands:"


@dataclass(eq=False)
class Wait:
    """A BLMOVE.  hand_list: None if it moves to the wake list.  ends_at: once it has reached the server.

    is_closed: its client has given the connection up.  has_reply: then reply is the payload, None for none, or LOST.
    """

    process: HandProcess
    queue: str
    to: str
    hand_list: HandList | None
    asked_at: float
    armed_at: float
    seconds: float
    is_closed: bool = False
    has_reply: bool = False
    reply: Any = None
    ends_at: float = 0.0


LOST = object()


class HandWorld(World):
    """The server, its waits, and time.

    later: what happens at a time: (seconds, what, wait, reply).  waits: at the server, in their order.
    """

    def __init__(self, store: Store, rng: Random, without: str = "") -> None:
        super().__init__(store, without)
        self.rng = rng
        self.keys = Keys()
        self.now = 1_000.0
        self.waits: list[Wait] = []
        self.later: list[tuple[float, str, Wait, Any]] = []
        self.paused_at: dict[str, float] = {}
        self.starts: dict[bytes, str] = {}  # job → who has started it last
        self.may_start_again: set[bytes] = set()
        self.plan: dict[str, float] = {}  # faults that happen next: late, is_lost, delay, is_killed
        self.raw(("SCRIPT", "LOAD", AGE))
        self.age_digest = sha1(AGE.encode(), usedforsecurity=False).hexdigest()

    def monotonic(self) -> float:
        return self.now

    # the server

    def run(self, commands: Sequence[Command]) -> list[Any]:
        replies: list[Any] = []
        for command in commands:
            replies += self._run_without(command)
            self.serve()
        return replies

    def _run_without(self, command: Command) -> list[Any]:
        """Run a command, without the part of a rule that is taken out."""
        script, part, run = command[1], self.without, super().run
        if script == REGISTER_HANDS.digest:
            return self._arm_without(command)
        if (script, part) in ((RECOVER.digest, "H4 take over"), (RESYNC.digest, "H3 take over")):
            return self._hidden(f"{HANDS}{arguments_of(command)[0]}", command)
        if script == STALE_HANDS.digest and part == "H4 memory":
            command = [*command[:-1], 1_000]
        if script == STALE_HANDS.digest and part == "H4 look":
            return [[]]
        replies = run([command])
        if script in (RECOVER.digest, RESYNC.digest) and part == "H5 wake list":
            self._move_wake_lists()
        return replies

    def _arm_without(self, command: Command) -> list[Any]:
        members, hands, owners, _, suspects, paused = command[3:9]
        identity, epoch, *_ = arguments_of(command)
        match self.without:
            case "H1 registered":
                replies = super().run([command])
                self.raw(("DEL", hands), ("ZREM", owners, identity))
                return replies
            case "H1 member":
                before = self.raw(("HGET", members, identity))[0]
                self.raw(("HSET", members, identity, f"{epoch} as it says"))
                replies = super().run([[*command[:11], 10**15, *command[12:]]])
                self.raw(("HSET", members, identity, before) if before else ("HDEL", members, identity))
                return replies
            case "H1 beat":
                return super().run([[*command[:11], 10**12, *command[12:]]])
            case "H5 refuse":
                return self._hidden(str(suspects), command)
            case "H5 pause":
                return self._hidden(str(paused), command)
        return super().run([command])

    def _hidden(self, key: str, command: Command) -> list[Any]:
        """Run a command as if a key did not exist."""
        if not self.raw(("EXISTS", key))[0]:
            return super().run([command])
        self.raw(("RENAME", key, "test:hidden"))
        replies = super().run([command])
        (has_written,) = self.raw(("EXISTS", key))
        if has_written and key.startswith(HANDS):
            found = self.raw(("HGETALL", key))[0]
            self.raw(("HSET", "test:hidden", *found))
        self.raw(("RENAME", "test:hidden", key))
        return replies

    def _move_wake_lists(self) -> None:
        for queue in QUEUES:
            with suppress(RedisRefused):
                while self.raw(("LMOVE", f"kiq:wake:{queue}", f"queue:{queue}", "LEFT", "RIGHT"))[0]:
                    continue

    def push(self, count: int, queue: str, kind: str = "job") -> None:
        if f"queue:{queue}" not in self.spoiled:
            super().push(count, queue, kind)
            self.serve()

    def serve(self) -> None:
        """Have waits move what their queues have, the oldest first."""
        for queue in sorted({wait.queue for wait in self.waits}):
            while wait := next((each for each in self.waits if each.queue == queue), None):
                try:
                    (payload,) = self.raw(("LMOVE", f"queue:{queue}", wait.to, "RIGHT", "LEFT"))
                except RedisRefused:  # of a wrong type: it goes on
                    break
                if payload is None:
                    break
                self.waits.remove(wait)
                delay = self.plan.pop("delay", None) or self.rng.choice((0.0, 0.0, 0.0, 1.0, 5.0, 25.0, 90.0))
                reply = LOST if self.happens("is_lost", 0.1) else payload
                self.later.append((self.now + delay, "reply", wait, reply))

    def happens(self, what: str, chance: float) -> bool:
        """Whether a fault happens now: it is planned, or by chance."""
        return bool(self.plan.pop(what, 0)) or self.rng.random() < chance

    def send(self, wait: Wait) -> None:
        """Send a wait; it may be late."""
        late = self.plan.pop("late", 0.0) or (self.rng.random() < 0.06 and self.rng.uniform(1.0, MAX_LATE))
        if late:
            self.later.append((self.now + late, "arrive", wait, None))
            if self.happens("is_lost", 0.3):
                self.later.append((self.now, "reply", wait, LOST))
            return
        self._arrive(wait)

    def _arrive(self, wait: Wait) -> None:
        wait.ends_at = self.now + wait.seconds
        self.waits.append(wait)
        if wait.is_closed:
            self.later.append((self.now + self.rng.choice(FIN_SECONDS), "fin", wait, None))
        self.serve()

    def close(self, wait: Wait) -> None:
        """The client closes a connection; the server may notice that late."""
        wait.is_closed = True
        if wait in self.waits:
            self.later.append((self.now + self.rng.choice(FIN_SECONDS), "fin", wait, None))

    def kill(self, wait: Wait) -> None:
        """CLIENT KILL: what has not arrived, never does."""
        self.waits = [each for each in self.waits if each is not wait]
        self.later = [each for each in self.later if each[2] is not wait or each[1] == "reply"]
        wait.is_closed = True

    def pass_seconds(self, seconds: float) -> None:
        """Let time go by, and happen what happens meanwhile."""
        until = self.now + seconds
        while True:
            moments = [each for each, *_ in self.later] + [wait.ends_at for wait in self.waits]
            moment = min([until, *(each for each in moments if each <= until)])
            moment = max(moment, self.now)
            if moment > self.now:
                self.raw(
                    (
                        "EVALSHA",
                        self.age_digest,
                        3,
                        "kiq:beats",
                        "kiq:hands",
                        "kiq:audit",
                        round(1_000 * (moment - self.now)),
                    )
                )
            self.now = moment
            due = [each for each in self.later if each[0] <= moment]
            ended = [wait for wait in self.waits if wait.ends_at <= moment]
            if not due and not ended:
                return
            self.later = [each for each in self.later if each[0] > moment]
            self.waits = [wait for wait in self.waits if wait not in ended]
            for wait in ended:
                wait.has_reply, wait.reply = not wait.is_closed, None
            for _, what, wait, reply in due:
                if what == "arrive":
                    self._arrive(wait)
                elif what == "fin":
                    self.waits = [each for each in self.waits if each is not wait]
                elif not wait.is_closed and not wait.has_reply:
                    wait.has_reply, wait.reply = True, reply

    def pass_time(self, seconds: float = 2 * SILENCE) -> None:
        self.pass_seconds(seconds)

    def mend(self) -> None:
        super().mend()
        self.serve()

    def pause(self, queue: str) -> None:
        """Pause a queue, and end the waits for it, as Queue.pause does."""
        self.raw(("SADD", "paused", queue))
        self.paused_at.setdefault(queue, self.now)

    def resume(self, queue: str) -> None:
        self.raw(("SREM", "paused", queue))
        self.paused_at.pop(queue, None)

    def spawn(self) -> HandProcess:
        self.processes = [process for process in self.processes if process.is_alive]
        process = HandProcess(self, self.number())
        self.processes.append(process)
        return process

    def fleet(self) -> list[HandProcess]:
        return cast("list[HandProcess]", self.processes)

    def awake(self) -> list[HandProcess]:  # type: ignore[override]
        return cast("list[HandProcess]", super().awake())

    # what is true at any time

    def check(self) -> set[str]:
        """Raise Violation unless each job is in exactly one place, and everybody has what it holds."""
        copies: Counter[bytes] = Counter()
        inflight: dict[str, set[str]] = {}
        members: set[str] = set()
        processed = counted = 0
        for raw_key, values in self.raw(("EVALSHA", self.census_digest, 0))[0]:
            key = raw_key.decode().removeprefix(ASIDE)
            if raw_key.decode() in self.spoiled:
                continue
            if key.startswith(INFLIGHT):
                tokens = {field.partition(b":")[0].decode() for field in values[::2]}
                inflight.setdefault(key.removeprefix(INFLIGHT), set()).update(tokens)
                copies.update(map(job_of, values[1::2]))
            elif key.startswith(HAND):
                identity, token, _ = key.removeprefix(HAND).rsplit(":", 2)
                inflight.setdefault(identity, set()).add(token)
                copies.update(map(job_of, values))
                if len(values) > 1:
                    raise Violation(f"{key} has several payloads: {values}")
            elif key.startswith(("queue:", "kiq:wake:")) or key in ("retry", "schedule", "dead", ENDED):
                copies.update(job_of(value) for value in values)
            elif key == "kiq:members":
                members = {name.decode() for name in values[::2]}
            elif key == "stat:processed":
                processed = int(values[0])
            elif key == COUNTED:
                counted = len(values)
        doubled = sorted(job for job, count in copies.items() if count > 1)
        if doubled:
            raise Violation(f"in several places: {doubled}")
        gone, done = len(self.jobs) - len(copies), processed - counted
        if gone != done:
            raise Violation(f"{gone} jobs are gone, {done} are done: lost some of {sorted(self.jobs - copies.keys())}")
        for process in self.processes:
            process.check(inflight)
        return members

    def on_start(self, process: HandProcess, unit: Unit, wait: Wait | None) -> None:
        """Raise Violation if this process must not start a unit."""
        hand = f"{HAND}{unit.identity}:{unit.field}"
        member, held, in_hand, suspect = self.raw(
            ("HGET", "kiq:members", unit.identity),
            ("HGET", f"{INFLIGHT}{unit.identity}", unit.field),
            ("LINDEX", hand, 0),
            ("HGET", "kiq:suspects", sha1(unit.payload, usedforsecurity=False).hexdigest()),
        )
        if unit.payload not in (held, in_hand) or not (member or b"f")[:1].isdigit():
            raise Violation(f"{unit.identity} has started {unit}, which it does not hold")
        job = job_of(unit.payload)
        before = self.starts.get(job)
        if before is not None and before not in self.recovered and job not in self.may_start_again:
            raise Violation(f"{job!r} runs twice: {before} has it, and {unit.identity}")
        self.starts[job] = unit.identity
        self.may_start_again.discard(job)
        if wait is not None:
            if suspect:
                raise Violation(f"a suspect was started from a hand list: {unit}")
            if wait.asked_at > self.paused_at.get(unit.queue, inf):
                raise Violation(f"{unit} of a paused queue was started: its wait was armed in the pause")

    # the end of all faults

    def calm(self, rng: Random) -> None:
        """End all faults, let everybody go on; raise Violation if anything is left behind."""
        self.is_away = False
        self.mend()
        for queue in QUEUES:
            self.resume(queue)
        for process in self.fleet():
            process.is_mute = False
            if process.is_frozen and rng.random() < 0.5:
                process.is_frozen = False
            elif process.is_frozen:
                process.kill()
        last = self.spawn()
        for process in self.awake():
            # The check that is made once a minute (R3).
            process.unsure |= self.raw(("EXISTS", f"{INFLIGHT}{process.member.identity}"))[0]
        self._work()
        while self.late:
            self.arrive(rng.randrange(len(self.late)))
        until = self.now + max(MAX_LATE, SILENCE) + 40.0
        while self.now < until or self.later or self.waits:
            self.pass_seconds(LOOK)
            self._work()
        for _ in range(2 + SUSPECT_ROUNDS):  # suspects run one at a time, and those that must wait pass by in turn
            self._work()
        self.check()
        self._check_nothing_left(all_hands=False)
        for process in self.awake():
            if process is not last:
                process.stop()
        until = self.now + MEMORY + 3 * LOOK
        while self.now < until:
            self.pass_seconds(LOOK)
            self._work()
        for wait in list(last.waits.values()):
            self.kill(wait)
        last.stop()
        self.check()
        self._check_nothing_left(all_hands=True)

    def _work(self) -> None:
        for process in self.awake():
            process.quiet = False
            process.beat_and_look()
            process.read_replies()
            process.sweep_hands()
            process.round(8)
            while process.at_hand or process.outcomes or process.unsure or process.unfinished():
                process.start_all()
                for token in process.unfinished():
                    process.finish(token, "done")
                process.round(8)
            process.drop_old_waits()

    def _check_nothing_left(self, *, all_hands: bool) -> None:
        prefixes: tuple[bytes, ...] = (b"queue:", b"kiq:wake:", b"kiq:inflight:", b"kiq:hand:")
        if all_hands:
            prefixes += (b"kiq:hands",)
        left = [key for key in self.raw(("KEYS", "*"))[0] if key.startswith(prefixes)]
        if left:
            raise Violation(f"stranded in {left}")


class HandProcess(Process):
    """A worker that waits with hand lists.

    at_hand: units that are not started, by token; started_from: the wait that has brought a unit.
    is_mute: its beats fail, though it works.  pending: waits that are registered, and sent next.
    """

    world: HandWorld

    def __init__(self, world: HandWorld, number: int) -> None:
        super().__init__(world, number)
        self.hand_lists = HandLists(self.engine, world, SILENCE)
        self.generation = self.seen_generation = 0
        self.waits: dict[str, Wait] = {}
        self.unused: dict[str, HandList] = {}
        self.pending: list[tuple[str, HandList | None, float]] = []
        self.at_hand: deque[str] = deque()
        self.brought: dict[str, Wait] = {}
        self.is_mute = False
        self.have_waits_ended = True
        self.beat_at = self.awake_since = world.now
        self.suspects_stay_until = 0.0
        self.must_return = False

    # fetch.py and coordinator.py

    def _receive(self, reserved: Reserved) -> None:
        super()._receive(reserved)
        for unit in reserved.units:
            unit.reserved_at = self.world.now
            self.at_hand.append(unit.token)

    def _resync(self) -> None:
        identity = self.member
        super()._resync()
        if not self.unsure and self.member is not identity and self.has_joined:
            self.generation += 1

    def _rejoin(self) -> None:
        super()._rejoin()
        self.at_hand.clear()
        self.generation += 1

    def _exchange(self, wanted: int | None) -> None:
        batch = list(self.outcomes)
        super()._exchange(wanted)
        settled = {each.unit.token for each in batch} - {each.unit.token for each in self.outcomes}
        for token in settled:
            self.brought.pop(token, None)

    def unfinished(self) -> list[str]:
        """Return the units that run."""
        waiting = set(self.at_hand)
        return [token for token in super().unfinished() if token not in waiting]

    def finish(self, token: str, kind: str, fault: Fault = Fault.NONE) -> None:
        if kind in ("interrupt", "requeue", "retry", "defer", "dead"):
            self.world.may_start_again.add(job_of(self.held[token].payload))
        self.outcomes.append(Settlement(self.held[token], outcome(self.held[token], kind)))

    def start(self) -> None:
        """Start the next unit at hand, unless it has been here for too long."""
        if not self.at_hand:
            return
        token = self.at_hand.popleft()
        unit = self.held[token]
        if self.world.now > unit.reserved_at + STALE_UNIT_SECONDS:
            self.outcomes.append(Settlement(unit, outcome(unit, "requeue")))
            return
        self.world.on_start(self, unit, self.brought.get(token))

    def start_all(self) -> None:
        while self.at_hand:
            self.start()

    def give_back(self) -> None:
        """Quiet: what has not started goes back."""
        self.quiet = True
        while self.at_hand:
            unit = self.held[self.at_hand.popleft()]
            self.outcomes.append(Settlement(unit, outcome(unit, "requeue")))

    def on_push(self, wait: Wait, payload: bytes | None, *, has_ended: bool = False) -> None:
        hand_list = wait.hand_list
        assert hand_list is not None
        without = self.world.without
        if payload is not None:
            is_old = hand_list.generation != self.generation and without != "H2 generation"
            if not is_old and not (self.unsure and without != "H2 uncertain"):
                unit = Unit(hand_list.queue, payload, hand_list.token, hand_list.identity, is_in_hand=True)
                unit.reserved_at = self.world.now
                self.held[unit.token] = unit
                self.brought[unit.token] = wait
                self.at_hand.append(unit.token)
                return
        if without == "H3 one wait" and has_ended:
            self.unused[hand_list.queue] = hand_list
        elif without != "H3 look":
            self.hand_lists.give_up(hand_list, has_ended=has_ended)
        self.unsure = self.unsure or without != "H3 resync"

    # wakeups.py

    def arm_waits(self, fault: Fault = Fault.NONE) -> None:
        """Register lists for the queues that nobody waits for; the waits are sent in a step of their own."""
        self.drop_old_waits()
        if self.pending or self.unsure or self.quiet or not self.has_joined or self.at_hand:
            return
        queues = [queue for queue in QUEUES if queue not in self.waits and not self.raw_paused(queue)]
        if not queues:
            return
        asked = self.world.now
        self.wire.fault = fault
        spares = {queue: (0, self.unused.get(queue)) for queue in queues}
        try:
            lists = self.hand_lists.register(self.member, self.generation, spares)
        except StoreError:
            return
        finally:
            self.wire.fault = Fault.NONE
        if lists is None:
            self.unsure = True
        for queue in lists or {}:
            self.unused.pop(queue, None)
        self.pending = [(queue, (lists or {}).get(queue), asked) for queue in queues]

    def raw_paused(self, queue: str) -> bool:
        """Whether the last reserve has found it paused: sometimes not."""
        return queue in self.world.paused_at and self.world.rng.random() < 0.5

    def send_waits(self) -> None:
        for queue, hand_list, asked in self.pending:
            to = f"kiq:wake:{queue}"
            seconds, armed_at = 30.0, self.world.now
            if hand_list is not None:
                to = f"{HAND}{hand_list.identity}:{hand_list.field}"
                seconds = 1e6 if self.world.without == "H2 ends" else self.hand_lists.wait_seconds
                armed_at = self.world.now if self.world.without == "H2 asked" else asked
                if self.world.now > armed_at + self.hand_lists.wait_seconds and self.world.without != "H2 send":
                    self.unused[queue] = hand_list
                    continue
            wait = Wait(self, queue, to, hand_list, asked, armed_at, seconds)
            self.waits[queue] = wait
            self.world.send(wait)
        self.pending = []

    def drop_old_waits(self) -> None:
        """Drop waits that must have ended long ago, and those of an older generation."""
        now = self.world.now
        for wait in [each for each in self.waits.values() if now > each.armed_at + each.seconds + 5.0]:
            self._abandon(wait, has_ended=False)
        if self.seen_generation == self.generation:
            return
        self.seen_generation = self.generation
        for wait in [each for each in self.waits.values() if each.hand_list is not None]:
            if self.world.without == "H2 generation":
                continue
            has_ended = not self.world.is_away and self.world.happens("is_killed", 0.7)
            if has_ended:
                self.world.kill(wait)
            self._abandon(wait, has_ended=has_ended)

    def _abandon(self, wait: Wait, *, has_ended: bool) -> None:
        self.waits.pop(wait.queue, None)
        if not has_ended:
            self.world.close(wait)
            self.have_waits_ended = False
        if wait.hand_list is not None:
            self.on_push(wait, None, has_ended=has_ended)

    def read_replies(self) -> None:
        self.world.pass_seconds(0)
        for wait in [each for each in self.waits.values() if each.has_reply]:
            del self.waits[wait.queue]
            if wait.reply is LOST:
                self.world.close(wait)
                if wait.hand_list is not None:
                    self.on_push(wait, None)
            elif wait.hand_list is None:
                continue
            elif wait.reply is None:
                self.unused[wait.queue] = wait.hand_list
            else:
                until = wait.armed_at + wait.seconds + self.hand_lists.grace_seconds
                is_late = self.world.now > until and self.world.without != "H2 late reply"
                self.on_push(wait, None if is_late else wait.reply)

    def sweep_hands(self, fault: Fault = Fault.NONE) -> None:
        """Look into lists that were given up."""
        self.wire.fault = fault
        with suppress(StoreError):
            if self.hand_lists.look(self.member.identity):
                self.unsure = True
        self.wire.fault = Fault.NONE

    # recovery.py

    def beat_and_look(self, fault: Fault = Fault.NONE) -> None:
        """Beat, recover who is silent, look at the hand lists of the dead, and return wake lists."""
        now = self.world.now
        if self.is_mute or not self.has_joined:
            return
        self.wire.fault = fault
        if now > self.beat_at + SILENCE / 3:
            self.awake_since = now  # R8: the window begins anew
        may_recover = now >= self.awake_since + SILENCE
        try:
            beat = self.engine.beat(self.wire, [self.member.identity], SILENCE, 5 if may_recover else 0)
            self.beat_at = now
            if self.member.identity in beat.strangers:
                self.unsure = True
            for identity, score in beat.silent.items():
                self._recover(identity, ALL_SUSPECT, score)
            for identity in stale_hands(self.engine.store):
                self._recover(identity)
            if self.must_return:
                stay = now < self.suspects_stay_until and self.world.without != "H5 stay"
                self.must_return = return_wake_lists(self.wire, self.world.keys, QUEUES, suspects_stay=stay) > 0
        except StoreError:
            pass
        self.wire.fault = Fault.NONE

    def _recover(self, identity: str, running: Sequence[str] = (), score: int | None = None) -> None:
        units = self.engine.recover(self.wire, identity, running, score)
        if units and identity != self.member.identity:
            self.must_return = True
            self.suspects_stay_until = self.world.now + self.hand_lists.wait_seconds + self.hand_lists.grace_seconds

    def recover(self, identity: str, running: Sequence[str], fault: Fault = Fault.NONE) -> None:
        """Recover a process that has died, as its supervisor tells: these units were running."""
        self.wire.fault = fault
        with suppress(StoreError):
            self._recover(identity, running)
        self.wire.fault = Fault.NONE

    # the end

    def kill(self) -> None:
        """Die; the server notices by and by."""
        self.pending = []
        for wait in self.waits.values():
            self.world.close(wait)
        self.die()

    def stop(self, fault: Fault = Fault.NONE) -> None:
        """Leave: end the waits, settle, recover oneself."""
        have_ended = self.have_waits_ended and not self.world.is_away
        self.pending = []
        for wait in self.waits.values():
            if self.world.without == "H6" or self.world.is_away:
                self.world.close(wait)
            else:
                self.world.kill(wait)
        self.wire.fault = fault
        for token in self.unfinished()[::2]:
            self.finish(token, "interrupt")
        with suppress(StoreError):
            limits = dict.fromkeys(QUEUES, (0, 0))
            self.engine.exchange(self.wire, self.member, 0, limits, self.outcomes, NOW)
            return_wake_lists(self.wire, self.world.keys, QUEUES)
            self._recover(self.member.identity)
            if have_ended and not self.hand_lists.has_given_up:
                forget_hands(self.wire, self.world.keys, self.member.identity)
        self.die()
