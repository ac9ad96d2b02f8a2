"""Reload: which slots keep their process, which come and which go; and which settings wait, and for what."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.process.config import Config, settings
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.expansion import SlotPlan, plan_slots
from kiqcluster.supervisor.cluster.reload import (
    APPLIED_BY_RELOAD,
    FIXED_AT_START,
    compare,
    effective_config,
    pending_settings,
)
from kiqcluster.supervisor.cluster.slots import Slot

KNOWN = ("default", "mailers", "cronjob:nightly")


def plans(*groups: str, known: tuple[str, ...] = KNOWN, config: Config | None = None) -> list[SlotPlan]:
    return plan_slots([parse_group(text) for text in groups], known, config or Config(min_concurrency=0))


def slots(*groups: str) -> list[Slot]:
    return [Slot(plan) for plan in plans(*groups)]


def names(kept: list[tuple[Slot, SlotPlan]]) -> list[tuple[int, str]]:
    return [(slot.number, plan.group.text) for slot, plan in kept]


class TestCompare:
    def test_nothing_changed_keeps_every_slot(self) -> None:
        before = slots("default", "mailers")

        change = compare(before, plans("default", "mailers"), same_threads=True)

        assert [slot for slot, _ in change.kept] == before
        assert change.added == change.removed == []

    def test_the_order_of_the_groups_does_not_matter_and_numbers_stay(self) -> None:
        before = slots("default", "mailers")

        change = compare(before, plans("mailers", "default"), same_threads=True)

        assert names(change.kept) == [(1, "mailers"), (0, "default")]
        assert [plan.slot for _, plan in change.kept] == [1, 0]

    def test_a_group_that_is_gone_is_removed_and_one_that_is_new_gets_a_free_number(self) -> None:
        before = slots("default", "mailers")

        change = compare(before, plans("mailers", "cronjob"), same_threads=True)

        assert names(change.kept) == [(1, "mailers")]
        assert [slot.number for slot in change.removed] == [0]
        assert [(plan.slot, plan.group.text) for plan in change.added] == [(2, "cronjob")]  # 0 is on its way out

    def test_the_number_of_a_slot_that_is_gone_is_taken_again(self) -> None:
        before = slots("default", "mailers", "cronjob")
        del before[1]

        change = compare(before, plans("default", "cronjob", "low", "lower"), same_threads=True)

        assert [plan.slot for plan in change.added] == [1, 3]

    def test_a_slot_that_retires_comes_back_as_another(self) -> None:
        before = slots("default")
        before[0].is_retiring = True

        change = compare(before, plans("default"), same_threads=True)

        assert change.kept == change.removed == []
        assert [plan.slot for plan in change.added] == [1]

    @pytest.mark.parametrize(("wanted", "kept", "added", "removed"), [(1, 1, 0, 1), (2, 2, 0, 0), (3, 2, 1, 0)])
    def test_the_same_group_may_be_there_several_times(self, wanted: int, kept: int, added: int, removed: int) -> None:
        change = compare(slots("default", "default"), plans(*["default"] * wanted), same_threads=True)

        assert (len(change.kept), len(change.added), len(change.removed)) == (kept, added, removed)

    @pytest.mark.parametrize("text", ["default=2", "default,mailers", "default=2,mailers"])
    def test_other_queues_or_weights_are_another_group(self, text: str) -> None:
        change = compare(slots("default"), plans(text), same_threads=True)

        assert (len(change.kept), len(change.added), len(change.removed)) == (0, 1, 1)

    def test_new_queues_of_a_namespace_keep_the_slot_and_its_threads(self) -> None:
        before = slots("cronjob:*")
        more = plans("cronjob:*", known=(*KNOWN, "cronjob:weekly", "cronjob:yearly"))

        change = compare(before, more, same_threads=True)

        ((slot, plan),) = change.kept
        assert slot is before[0]
        assert set(plan.weights) == {"cronjob:nightly", "cronjob:weekly", "cronjob:yearly"}
        assert plan.concurrency == before[0].plan.concurrency < more[0].concurrency

    def test_a_slot_that_gets_other_threads_keeps_its_number_and_gets_another_process(self) -> None:
        before = slots("default", "default,mailers,cronjob")

        change = compare(
            before,
            plans("default", "default,mailers,cronjob", config=Config(min_concurrency=0, max_concurrency=2)),
            same_threads=False,
        )

        assert names(change.kept) == [(0, "default")]  # two threads, as before
        assert names(change.resized) == [(1, "default,mailers,cronjob")]
        assert [(plan.slot, plan.concurrency) for _, plan in change.resized] == [(1, 2)]
        assert change.added == change.removed == []


@given(
    st.lists(st.sampled_from(["a", "b", "c", "a,b", "a=2,b"]), max_size=6),
    st.lists(st.sampled_from(["a", "b", "c", "a,b", "a=2,b"]), max_size=6),
    st.sets(st.integers(0, 5)),
    st.sampled_from([0, 1, 2, 3]),
)
def test_after_any_reload_there_is_one_slot_for_each_group_with_a_number_of_its_own(
    old: list[str], new: list[str], retiring: set[int], threads: int
) -> None:
    before = slots(*old)
    for number in retiring & set(range(len(before))):
        before[number].is_retiring = True
    config = Config(concurrency=threads) if threads else Config(min_concurrency=0)

    change = compare(before, plans(*new, config=config), same_threads=not threads)

    stay = change.kept + change.resized
    there = [slot.plan.group.text for slot, _ in stay] + [plan.group.text for plan in change.added]
    assert sorted(there) == sorted(new)
    leaving = [slot for slot in before if slot.is_retiring] + change.removed
    numbers = [slot.number for slot in leaving] + [plan.slot for _, plan in stay]
    numbers += [plan.slot for plan in change.added]
    assert len(set(numbers)) == len(numbers)
    assert all(slot.number == plan.slot for slot, plan in stay)
    assert {id(slot) for slot, _ in stay}.isdisjoint(id(slot) for slot in leaving)


class TestSettings:
    def test_nothing_changed_waits_for_nothing(self) -> None:
        assert pending_settings(Config(), Config()) == ([], [])

    def test_what_is_read_once_waits_for_a_new_supervisor(self) -> None:
        assert pending_settings(Config(), Config(redis="redis://elsewhere", listen="off")) == (["redis", "listen"], [])

    def test_what_a_worker_has_from_its_birth_waits_for_a_rolling_restart(self) -> None:
        assert pending_settings(Config(), Config(max_retries=3, require=("app",))) == ([], ["require", "max_retries"])

    def test_what_the_supervisor_goes_by_waits_for_nothing(self) -> None:
        assert pending_settings(Config(), Config(stop_timeout=5.0, recycle_jobs=10, quiet_lease=1.0)) == ([], [])

    def test_what_nobody_has_reloaded_waits_for_that_whatever_it_is(self) -> None:
        new = Config(stop_timeout=5.0, max_retries=3, redis="redis://elsewhere")

        assert pending_settings(Config(), new, at_once=False) == (["redis"], ["stop.timeout", "max_retries"])

    def test_a_new_configuration_holds_but_for_what_is_read_once(self) -> None:
        old = Config(redis="redis://here", pidfile="/run/a", stop_timeout=25.0)
        new = Config(redis="redis://elsewhere", pidfile=None, stop_timeout=5.0, groups=("a",))

        held = effective_config(old, new)

        assert held == dataclasses.replace(new, redis="redis://here", pidfile="/run/a")
        assert pending_settings(held, new)[0] == ["redis", "pidfile"]  # so that the next reload says it again

    def test_the_lists_name_settings_that_there_are_and_none_twice(self) -> None:
        there = {each.name for each in settings()}

        assert there >= FIXED_AT_START
        assert there >= APPLIED_BY_RELOAD
        assert FIXED_AT_START.isdisjoint(APPLIED_BY_RELOAD)
