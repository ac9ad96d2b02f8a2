"""A rolling restart over slots whose processes do what a test says: nothing is forked."""

from __future__ import annotations

import os
import socket
from math import inf
from pathlib import Path

from kiqcluster.errors import UsageError
from kiqcluster.ipc.frames import Channel
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.catalogue import Catalogue, Failed, StartPreflight, Then
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.release_paths import ReleasePaths
from kiqcluster.supervisor.rolling_restart import RollingRestart
from tests.kit import ManualClock


class FakeProcesses:
    """Forks nothing: a replacement is there as soon as it is asked for, and does what the test says."""

    def __init__(self, state: ClusterState, clock: ManualClock) -> None:
        self.config = Config(roll_bake_time=0.0)
        self.can_fork = True
        self.generation: int | None = None  # of who is started; the latest roll's, if the test does not say
        self.begun: list[tuple[int, bool]] = []  # slot and whether it was to be quiet
        self.asked_to_stop: list[tuple[int, float, str]] = []
        self.dropped: list[int] = []
        self._state = state
        self._clock = clock
        self._sockets: list[socket.socket] = []

    def child(self, slot: Slot, *, ready: bool) -> Child:
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]
        now = self._clock.monotonic()
        generation = self._state.generation if self.generation is None else self.generation
        child = Child(os.getpid(), Channel(ours), now, LastBeat(now, redis=True), generation=generation)
        child.ready_at = now if ready else None
        return child

    def start_replacement(self, slot: Slot, *, quiet: bool) -> str:
        if not self.can_fork:
            return "no process could be started"
        self.begun.append((slot.number, quiet))
        slot.replacement = self.child(slot, ready=False)
        return ""

    def drop_replacement(self, slot: Slot) -> None:
        if slot.replacement is not None:
            self.dropped.append(slot.number)
            slot.replacement = None

    def drain(self, slot: Slot) -> None:
        assert slot.child is not None
        self.asked_to_stop.append((slot.number, self.config.stop_timeout, ""))
        slot.leaving.append(slot.child)
        slot.child = None

    def ask_to_stop(self, child: Child, seconds: float, reason: str = "") -> None:
        child.ending.stop_deadline = self._clock.monotonic() + seconds
        (number,) = (slot.number for slot in self._state.slots if child in slot.children())
        self.asked_to_stop.append((number, seconds, reason))

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


class FakeConfiguration:
    """Accepts every release."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def start_preflight(self) -> None:
        return None

    def learn_release(self, catalogue: Catalogue) -> None:
        return None

    def on_all_replaced(self) -> None:
        return None

    def want_restart(self, topic: str, reason: str) -> None:
        return None

    def postpone_reload(self) -> None:
        return None


class FakeQuery:
    """Keeps the question, for the test to answer."""

    def __init__(self) -> None:
        self.asked: list[Path] = []
        self.failed: list[Failed] = []

    def interrupt(self, why: str) -> None:
        return None

    def ask(
        self, config: Config, directory: Path, then: Then, failed: Failed, start_preflight: StartPreflight | None = None
    ) -> None:
        self.asked.append(directory)
        self.failed.append(failed)
        self.then = then

    def answer(self, catalogue: Catalogue | None = None) -> None:
        try:
            self.then(catalogue or Catalogue(()))
        except UsageError as error:
            self.failed[-1](error)


class Stage:
    """Slots with children that are ready, and a rolling restart over them."""

    def __init__(self, slots: int, directory: Path | None = None) -> None:
        self.clock = ManualClock(1_000.0)
        self.state = ClusterState()
        self.processes = FakeProcesses(self.state, self.clock)
        self.happened: list[str] = []
        events = Events()
        events.listen(lambda event, _: self.happened.append(event))
        self.configuration = FakeConfiguration(self.processes.config)
        self.releases = ReleasePaths(directory or Path.cwd())
        self.query = FakeQuery()
        self.restart = RollingRestart(
            self.configuration, self.processes, self.releases, self.query, self.state, events, self.clock
        )
        for number in range(slots):
            slot = Slot(SlotPlan(number, parse_group("default"), {"default": 1}, "random", 1), memory_check_at=inf)
            slot.child = self.processes.child(slot, ready=True)
            self.state.slots.append(slot)

    def roll(self, ident: str = "one") -> None:
        self.restart.announce(ident)
        self.restart.replace_all()
        self.restart.turn()

    @property
    def begun(self) -> list[int]:
        """Return the slots for which a replacement was started, in order."""
        return [number for number, _ in self.processes.begun]

    def promote(self, number: int) -> None:
        """Have a slot's replacement work, so that the one before it is to leave."""
        slot = self.state.slots[number]
        assert slot.child is not None
        assert slot.replacement is not None
        slot.replacement.ready_at = self.clock.monotonic()
        slot.leaving.append(slot.child)
        slot.child, slot.replacement = slot.replacement, None
        self.restart.on_promoted(slot)
        self.restart.turn()

    def leave(self, number: int) -> None:
        """Have the one that was replaced be gone."""
        self.state.slots[number].leaving.clear()
        self.restart.turn()

    def renew(self, number: int) -> None:
        self.promote(number)
        self.leave(number)

    def fail(self, number: int) -> None:
        """Have a slot's replacement die."""
        self.state.slots[number].replacement = None
        self.restart.on_replacement_failed(self.state.slots[number], "exited with 1")
        self.restart.turn()

    def die(self, number: int, reason: str = "killed") -> None:
        """Have a slot's child die; nobody is there yet in its place."""
        self.state.slots[number].child = None
        self.state.slots[number].last_death = {"reason": reason}
        self.restart.on_death(self.state.slots[number], "was killed")
        self.restart.turn()

    def respawn(self, number: int, *, ready: bool = True) -> None:
        slot = self.state.slots[number]
        slot.child = self.processes.child(slot, ready=ready)
        self.restart.turn()

    def report(self) -> tuple[str, int, int]:
        roll = self.state.roll
        assert roll is not None
        return str(roll.as_json()["state"]), roll.done, roll.of
