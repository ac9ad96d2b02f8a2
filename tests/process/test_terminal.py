"""A supervisor in a terminal: Ctrl-C, Ctrl-Z and the end of the terminal."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable, Iterator

import pytest

from tests import forkserver
from tests.kit import Cluster, is_alive
from tests.proc import wait_exited
from tests.stage import Stage

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"


class LoggedIn(forkserver.Popen):
    """A program whose session is controlled by the terminal on its standard input."""

    is_login = True


class ClusterInTerminal(Cluster):
    _popen = LoggedIn


class Terminal:
    """A pseudo-terminal with a cluster in it."""

    def __init__(self, redis: str, *arguments: str) -> None:
        self._keyboard, screen = pty.openpty()
        command = ["-r", "tests.apps.basic", "--redis", redis, *arguments]
        self.cluster = ClusterInTerminal(command, stdin=screen)
        os.close(screen)

    def press(self, key: bytes) -> None:
        os.write(self._keyboard, key)

    def shut(self) -> None:
        """Close the window."""
        if self._keyboard >= 0:
            os.close(self._keyboard)
            self._keyboard = -1


@pytest.fixture
def open_terminal(stage: Stage) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def run(*arguments: str) -> Terminal:
        opened.append(Terminal(stage.redis.url, *arguments))
        return opened[-1]

    yield run
    for each in opened:
        each.cluster.close()
        each.shut()


def test_ctrl_c_once_stops_cleanly(open_terminal: Callable[..., Terminal], stage: Stage) -> None:
    terminal = open_terminal("default", "other", "-c", "1")
    stage.occupy(terminal.cluster, 2)

    terminal.press(CTRL_C)
    terminal.cluster.wait_for("cluster_stopping", signal="SIGINT")
    stage.release()

    assert terminal.cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.members() == set()


def test_a_second_ctrl_c_puts_running_jobs_back_at_once(open_terminal: Callable[..., Terminal], stage: Stage) -> None:
    terminal = open_terminal("default", "-c", "1", "-t", "600")
    stage.occupy(terminal.cluster)

    terminal.press(CTRL_C)
    terminal.cluster.wait_for("worker_quiet")
    terminal.press(CTRL_C)

    assert terminal.cluster.wait() == 0
    assert stage.queued_args() == ["a"]


def test_ctrl_backslash_puts_running_jobs_back_at_once(open_terminal: Callable[..., Terminal], stage: Stage) -> None:
    terminal = open_terminal("default", "-c", "1", "-t", "600")
    stage.occupy(terminal.cluster)

    terminal.press(CTRL_BACKSLASH)

    assert terminal.cluster.wait() == 0
    assert stage.queued_args() == ["a"]


def test_ctrl_z_quiets_and_the_second_resumes(open_terminal: Callable[..., Terminal], stage: Stage) -> None:
    terminal = open_terminal("default", "-c", "1")
    terminal.cluster.wait_ready()

    terminal.press(CTRL_Z)
    terminal.cluster.wait_for("worker_quiet")
    stage.push("record", "a")
    terminal.press(CTRL_Z)

    stage.wait_noted("ran a")
    terminal.press(CTRL_Z)
    terminal.cluster.wait_for("worker_quiet", count=2)
    terminal.press(CTRL_C)
    assert terminal.cluster.wait() == 0


def test_a_terminal_that_is_closed_stops_the_cluster(open_terminal: Callable[..., Terminal], stage: Stage) -> None:
    terminal = open_terminal("default", "-c", "1")
    pid = stage.occupy(terminal.cluster)[0]

    terminal.shut()
    terminal.cluster.wait_for("cluster_stopping", signal="SIGHUP")
    assert is_alive(pid)  # it drains
    stage.release()

    assert terminal.cluster.wait() == 0
    wait_exited(pid)
    assert stage.notes() == ["began a", "ended a"]
