"""Status: ready or why not, started or not, and the document of /status."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kiqcluster.control.orders import BY_SIGNAL
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, Ending, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, ReloadReport, Roll, RollPhase
from kiqcluster.supervisor.http.status import status_document, why_not_ready, why_not_started


def slot_of(number: int, **fields: object) -> Slot:
    """Return a slot whose child serves, but for what the fields say."""
    slot = Slot(SlotPlan(number, parse_group("a=2,b"), {"a": 2, "b": 1}, "weighted", 5))
    slot.child = Child(100 + number, None, 10.0, LastBeat(40.0, redis=True), ready_at=12.0)  # type: ignore[arg-type]  # it has no socket
    for name, value in fields.items():
        setattr(slot.child if hasattr(slot.child, name) else slot.child.beat, name, value)
    slot.history = replace(slot.history, ever_ready=slot.child.is_ready)
    return slot


def put_into_eu(*slots: Slot) -> None:
    """Have slots serve another shard."""
    for slot in slots:
        slot.plan = replace(slot.plan, group=replace(slot.plan.group, shard="eu"))


@pytest.fixture
def state() -> ClusterState:
    """A cluster of three slots that serve."""
    return ClusterState(started_epoch=1_000.0, slots=[slot_of(number) for number in range(3)])


class TestReadiness:
    def test_a_cluster_whose_slots_all_serve_is_ready(self, state: ClusterState) -> None:
        assert why_not_ready(state, None) is None

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"ready_at": None}, "slot 1 is in booting"),
            ({"ready_at": None, "waits_for": "Redis"}, "slot 1 is in booting: Redis"),
            ({"quiet": True}, "slot 1 is quiet"),
            ({"redis": False}, "slot 1 cannot reach Redis"),
        ],
    )
    def test_it_says_which_slot_is_not_and_why(
        self, state: ClusterState, fields: dict[str, object], reason: str
    ) -> None:
        state.slots[1] = slot_of(1, **fields)

        assert why_not_ready(state, None) == reason

    def test_a_slot_without_a_process_backs_off(self, state: ClusterState) -> None:
        state.slots[2].child = None

        assert why_not_ready(state, None) == "slot 2 is in backoff"

    def test_a_quiet_holds_before_the_children_have_heard_of_it(self, state: ClusterState) -> None:
        state.quiet.begin(BY_SIGNAL, 60.0, 0.0, 0.0)

        assert why_not_ready(state, None) == "slot 0 is quiet"

    def test_before_there_are_slots_and_once_it_stops_it_is_not(self, state: ClusterState) -> None:
        assert why_not_ready(ClusterState(), None) == "the application is being imported"
        state.stop_by = 5.0
        assert why_not_ready(state, 1) == "stopping"

    @pytest.mark.parametrize(
        ("quorum", "reason"),
        [
            (1, None),
            (2, "1 of 2 slots are ready: slot 0 is quiet"),
            (3, "slot 0 is quiet"),
            (9, "slot 0 is quiet"),
        ],
    )
    def test_a_quorum_is_enough(self, state: ClusterState, quorum: int, reason: str | None) -> None:
        state.slots[:2] = [slot_of(0, quiet=True), slot_of(1, redis=False)]

        assert why_not_ready(state, quorum) == reason

    @pytest.mark.parametrize(
        ("redis", "reason"),
        [
            ((True, False, False), None),
            ((True, True, False), "slot 2 cannot reach Redis"),
            ((False, True, True), None),
            ((False, False, False), "slot 0 cannot reach Redis"),
            ((None, False, False), "slot 0 is in booting"),
            ((None, True, True), "slot 0 is in booting"),
        ],
    )
    def test_a_slot_is_judged_by_its_own_shard(
        self, state: ClusterState, redis: tuple[bool | None, ...], reason: str | None
    ) -> None:
        """A shard that is away takes no readiness from those that serve another one."""
        state.slots = [
            slot_of(number, **({"ready_at": None} if reaches is None else {"redis": reaches}))
            for number, reaches in enumerate(redis)
        ]
        put_into_eu(*state.slots[1:])

        assert why_not_ready(state, None) == reason

    def test_a_shard_that_is_away_is_shown(self, state: ClusterState) -> None:
        state.slots[2] = slot_of(2, ready_at=None, waits_for="cannot reach Redis")
        put_into_eu(state.slots[2])
        shown = status_document(state, "here:1:abc", None, 45.0)

        assert (shown["ready"], shown["shards_away"], shown["state"]) == (True, ["eu"], "running")
        assert state.is_up(None)
        put_into_eu(*state.slots)
        assert "shards_away" not in status_document(state, "here:1:abc", None, 45.0)
        assert not state.is_up(None)


class TestStartup:
    def test_it_has_started_once_every_slot_has_been_ready(self, state: ClusterState) -> None:
        assert why_not_started(state.slots, None) is None
        assert why_not_started([], None) == "the application is being imported"
        state.slots[1] = slot_of(1, ready_at=None, waits_for="Redis")
        assert why_not_started(state.slots, None) == "slot 1 is in booting: Redis"
        assert why_not_started(state.slots, 2) is None

    def test_neither_a_death_nor_an_outage_undoes_it(self, state: ClusterState) -> None:
        state.slots[:2] = [slot_of(0, redis=False), slot_of(1, quiet=True)]
        state.slots[2].child = None

        assert why_not_started(state.slots, None) is None


class TestDocument:
    def document(self, state: ClusterState) -> dict[str, object]:
        """Return it as JSON brings it, 45 s after the clock's beginning."""
        found: dict[str, object] = json.loads(json.dumps(status_document(state, "here:1:abc", None, 45.0)))
        return found

    def test_it_tells_of_every_slot(self, state: ClusterState) -> None:
        state.slots[0] = slot_of(
            0, busy=2, processed=7, prefetched=3, rss=5_000, identities=["old", "me"], generation=4, release="/r/4"
        )
        state.slots[0].restarts["killed"] = 1
        running_jobs = RunningJobs(1)
        running_jobs.stamp(1_030.0, [])
        running_jobs.start(0, "1.1.1", b'{"class":"SendInvoice","jid":"b4a5","args":[]}')
        assert state.slots[0].child is not None
        state.slots[0].child.running_jobs = running_jobs
        death = {"at": 5.0, "how": "exited with 1", "reason": "crash", "running": [], "uptime": 3.0}
        state.slots[0].last_death = death

        document = self.document(state)

        assert document["slots"][0] == {  # type: ignore[index]
            "slot": 0, "state": "ready", "release": "/r/4", "generation": 4, "pid": 100, "identity": "me",
            "queues": {"a": 2, "b": 1},
            "mode": "weighted", "concurrency": 5, "busy": 2, "processed": 7, "prefetched": 3, "quiet": False,
            "redis": True, "rss": 5_000, "uptime": 35.0, "last_beat_ago": 5.0, "backoff": 0.0, "waits_for": "",
            "restarts": {"killed": 1}, "unplanned_restarts": 1, "last_death": death, "successor": None, "leaving": [],
            "running": [{"jid": "b4a5", "class": "SendInvoice", "since": 1_030.0}],
        }  # fmt: skip
        assert (document["supervisor"], document["started_at"], document["ready"]) == ("here:1:abc", 1_000.0, True)

    def test_a_successor_and_those_that_leave_have_states_of_their_own(self, state: ClusterState) -> None:
        slot = state.slots[0]
        assert slot.child is not None
        slot.replacement = replace(slot.child, pid=7, ready_at=None)
        slot.leaving = [replace(slot.child, pid=8, ending=Ending(stop_deadline=60.0))]

        shown = self.document(state)["slots"][0]  # type: ignore[index]

        assert (shown["state"], shown["successor"]["state"]) == ("ready", "booting")
        assert [each["state"] for each in shown["leaving"]] == ["stopping"]

    def test_a_slot_that_backs_off_says_for_how_long(self, state: ClusterState) -> None:
        state.slots[0].child = None
        state.slots[0].history = replace(state.slots[0].history, not_before=50.5)

        slot = self.document(state)["slots"][0]  # type: ignore[index]
        assert (slot["state"], slot["pid"], slot["backoff"], slot["uptime"]) == ("backoff", None, 5.5, None)

    @pytest.mark.parametrize(("lease", "left"), [(60.0, 55.0), (0.0, None)])
    def test_a_quiet_has_who_since_when_and_for_how_long(
        self, state: ClusterState, lease: float, left: float | None
    ) -> None:
        assert self.document(state)["quiet"] is None
        state.quiet.begin("Ann", lease, 40.0, 2_000.0)

        document = self.document(state)
        assert document["quiet"] == {"by": "Ann", "since": 2_000.0, "lease_remaining": left}
        assert (document["ready"], document["reason"]) == (False, "slot 0 is quiet")

    def test_it_tells_what_the_cluster_is_doing(self, state: ClusterState) -> None:
        assert self.document(state)["state"] == "running"
        state.roll = Roll("x", RollPhase.FAILED, 1, 3, "no boot", 9.0)
        state.reload = ReloadReport("y", "done", ended_at=8.0)
        state.stop_by = 5.0
        assert self.document(state)["roll"] == {
            "id": "x", "state": "failed", "done": 1, "of": 3, "error": "no boot", "ended_at": 9.0,
        }  # fmt: skip
        assert self.document(state)["reload"] == {"id": "y", "state": "done", "error": "", "ended_at": 8.0}
        assert self.document(state)["state"] == "stopping"
        assert self.document(ClusterState())["state"] == "starting"

    def test_it_tells_what_has_changed_and_waits(self, state: ClusterState) -> None:
        state.reload_needed, state.roll_needed, state.restart_needed = "groups", "max_retries", "redis"

        document = self.document(state)

        assert [document[f"{what}_needed"] for what in ("reload", "roll", "restart")] == [
            "groups",
            "max_retries",
            "redis",
        ]
