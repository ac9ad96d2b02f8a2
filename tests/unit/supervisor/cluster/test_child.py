"""What is known of children: how they died, and what that is called."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import RunningJob
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import (
    MAX_NAMED_JOBS,
    Child,
    Death,
    Ending,
    LastBeat,
    Responses,
    restart_reason,
)
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot


@pytest.fixture
def child() -> Iterator[Child]:
    """A child that has just been started."""
    ours, theirs = socket.socketpair()
    yield Child(pid=1, channel=Channel(ours), started_at=0.0, beat=LastBeat(0.0))
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("status", "code", "number", "text"),
    [
        (0, 0, None, "exited with 0"),
        (3 << 8, 3, None, "exited with 3"),
        (255 << 8, 255, None, "exited with 255"),
        (signal.SIGKILL, None, signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, None, signal.SIGSEGV, "was killed by SIGSEGV"),
    ],
)
def test_a_wait_status_is_a_code_or_a_signal(status: int, code: int | None, number: int | None, text: str) -> None:
    death = Death.of(status)

    assert (death.code, death.signal, str(death)) == (code, number, text)


@pytest.mark.parametrize("number", sorted(signal.valid_signals()))
def test_every_signal_can_be_shown(number: int) -> None:
    text = str(Death(None, number))

    assert "SIG" in text or text.endswith(f"signal {int(number)}")


@pytest.mark.parametrize(
    ("changes", "death", "reason"),
    [
        ({}, Death(1, None), "boot"),
        ({}, Death(None, 9), "boot"),
        ({"ready_at": 1.0}, Death(None, 9), "killed"),
        ({"ready_at": 1.0}, Death(1, None), "crash"),
        ({"ready_at": 1.0, "ending": Ending(said_bye=True)}, Death(0, None), "remote_stop"),
        ({"ready_at": 1.0}, Death(0, None), "crash"),
        ({"ready_at": 1.0, "ending": Ending(kill_reason="silent")}, Death(None, 9), "silent"),
        ({"ready_at": 1.0, "ending": Ending(kill_reason="job_timeout")}, Death(None, 9), "job_timeout"),
    ],
)
def test_a_death_that_nobody_asked_for_has_one_reason(
    child: Child, changes: dict[str, object], death: Death, reason: str
) -> None:
    for name, value in changes.items():
        setattr(child, name, value)

    assert restart_reason(child, death) == reason


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "booting"),
        ({"ready_at": 1.0}, "ready"),
        ({"ready_at": 1.0, "quiet": True}, "quiet"),
        ({"ready_at": 1.0, "quiet": True, "responses": Responses(is_unresponsive=True)}, "unresponsive"),
        ({"quiet": True}, "booting"),
        ({"ready_at": 1.0, "ending": Ending(said_bye=True)}, "stopping"),
        ({"ready_at": 1.0, "ending": Ending(kill_reason="silent")}, "stopping"),
    ],
)
def test_a_slot_has_one_word_for_its_state(child: Child, changes: dict[str, object], state: str) -> None:
    slot = Slot(SlotPlan(0, parse_group("*"), {}, "random", 1))
    assert slot.state == "backoff"

    slot.child = child
    for name, value in changes.items():
        setattr(child, name, value)

    assert slot.state == state


@pytest.mark.parametrize(
    ("words", "reason", "short"),
    [
        ("", "", ""),
        ("no database", ": no database", ": no database"),
        (
            "-r shop failed to load: KeyError: 1\nTraceback …",
            ": -r shop failed to load: KeyError: 1\nTraceback …",
            None,
        ),
    ],
)
def test_why_it_ended_is_told_in_full_and_in_one_line(child: Child, words: str, reason: str, short: str | None) -> None:
    child.ending.exit_reason = words

    assert child.reason == reason
    assert child.first_reason_line == (": -r shop failed to load: KeyError: 1" if short is None else short)
    assert (
        child.describe_death(Death(3, None), 1.0, 1_000.0, [])
        == f" after 1.0 s, running jobs: 0{child.first_reason_line}"
    )


def test_what_ran_at_its_end_is_named_and_nobody_is_blamed_for_a_kill_of_ours(child: Child) -> None:
    jobs = [RunningJob("t", f"jid{number}", "Invoice", 990.0) for number in range(MAX_NAMED_JOBS + 2)]

    report = child.describe_death(Death(None, 9), 1.0, 1_000.0, jobs)

    assert "running jobs: 12 (Invoice jid0 for 10.0 s, " in report
    assert ", 2 more)" in report
    assert "memory ran out" in report
    child.ending.kill_reason = "silent"
    assert "memory ran out" not in child.describe_death(Death(None, 9), 1.0, 1_000.0, jobs)
