"""Wakeup: what arrives at a main loop, and what does not concern it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from kiqcluster.process.signal_pipe import COMMON_ACTIONS, Wakeup, catch
from kiqcluster.supervisor import signals
from kiqcluster.worker import inbox

MINE = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    """One that listens for two signals; afterwards they do what they did before."""
    before = {number: signal.getsignal(number) for number in MINE}
    wakeup = Wakeup()
    wakeup.listen()
    catch(MINE)
    yield wakeup
    wakeup.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def is_readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_signals_arrive_in_order_as_action_and_name(wakeup: Wakeup) -> None:
    send(signal.SIGUSR2, signal.SIGUSR1)

    assert is_readable(wakeup)
    assert wakeup.read({signal.SIGUSR1: "quiet", signal.SIGUSR2: "roll"}) == [("roll", "SIGUSR2"), ("quiet", "SIGUSR1")]
    assert not is_readable(wakeup)
    assert wakeup.read(COMMON_ACTIONS) == []


def test_a_signal_without_an_action_is_somebody_elses(wakeup: Wakeup) -> None:
    send(signal.SIGUSR2, signal.SIGUSR1)

    assert wakeup.read(COMMON_ACTIONS) == [("quiet", "SIGUSR1")]


def test_a_ring_wakes_and_asks_for_nothing(wakeup: Wakeup) -> None:
    wakeup.ring()

    assert is_readable(wakeup)
    assert wakeup.read(COMMON_ACTIONS) == []


def test_rings_that_nobody_answers_hold_nobody_up(wakeup: Wakeup) -> None:
    for _ in range(10_000):
        wakeup.ring()

    assert is_readable(wakeup)


def test_what_a_signal_asks_of_the_cluster_it_asks_of_one_worker_too() -> None:
    for actions in (signals.SIGNAL_ACTIONS, inbox.SIGNAL_ACTIONS):
        assert COMMON_ACTIONS.items() <= actions.items()
    remote = {signal.Signals[f"SIG{name}"]: action for name, action in inbox.REMOTE_ACTIONS.items()}
    assert remote.items() <= COMMON_ACTIONS.items()
