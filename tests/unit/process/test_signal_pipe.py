"""SignalPipe: signals that a main loop receives, and those that it ignores."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from kiqcluster.ipc.signal_pipe import COMMON_ACTIONS, SignalPipe, catch
from kiqcluster.supervisor import signals
from kiqcluster.worker import inbox

MINE = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def pipe() -> Iterator[SignalPipe]:
    """One that listens for two signals; afterwards they do what they did before."""
    before = {number: signal.getsignal(number) for number in MINE}
    pipe = SignalPipe()
    pipe.listen()
    catch(MINE)
    yield pipe
    pipe.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def is_readable(pipe: SignalPipe) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_signals_arrive_in_order_as_action_and_name(pipe: SignalPipe) -> None:
    send(signal.SIGUSR2, signal.SIGUSR1)

    assert is_readable(pipe)
    assert pipe.read({signal.SIGUSR1: "quiet", signal.SIGUSR2: "roll"}) == [("roll", "SIGUSR2"), ("quiet", "SIGUSR1")]
    assert not is_readable(pipe)
    assert pipe.read(COMMON_ACTIONS) == []


def test_a_signal_without_an_action_is_somebody_elses(pipe: SignalPipe) -> None:
    send(signal.SIGUSR2, signal.SIGUSR1)

    assert pipe.read(COMMON_ACTIONS) == [("quiet", "SIGUSR1")]


def test_wake_makes_the_pipe_readable_without_an_action(pipe: SignalPipe) -> None:
    pipe.wake()

    assert is_readable(pipe)
    assert pipe.read(COMMON_ACTIONS) == []


def test_wake_does_not_block_when_nobody_reads(pipe: SignalPipe) -> None:
    for _ in range(10_000):
        pipe.wake()

    assert is_readable(pipe)


def test_what_a_signal_asks_of_the_cluster_it_asks_of_one_worker_too() -> None:
    for actions in (signals.SIGNAL_ACTIONS, inbox.SIGNAL_ACTIONS):
        assert COMMON_ACTIONS.items() <= actions.items()
    remote = {signal.Signals[f"SIG{name}"]: action for name, action in inbox.REMOTE_ACTIONS.items()}
    assert remote.items() <= COMMON_ACTIONS.items()
