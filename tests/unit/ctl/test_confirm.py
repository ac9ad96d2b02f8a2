"""Confirmation and progress: what is asked for, and what is said where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO

import pytest

from kiqcluster.ctl.text.options import Declined, Output, confirm, progress
from kiqcluster.errors import UsageError

WHAT = "delete 1,204 entries of the dead set"


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tty]:
    """Have a terminal on standard input and error: `terminal(typed="y\\n")`; what is returned is its screen."""

    def use(typed: str = "") -> Tty:  # only now: pytest puts its own in place again before the test begins
        screen = Tty()
        monkeypatch.setattr(sys, "stdin", Tty(typed))
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return use


class TestConfirm:
    def test_with_yes_nothing_is_asked(self, terminal: Callable[..., Tty]) -> None:
        screen = terminal(typed="n\n")

        confirm(Output(as_json=False), WHAT, yes=True)
        confirm(Output(as_json=True), WHAT, yes=True)

        assert screen.getvalue() == ""

    def test_in_a_terminal_it_is_asked_for_with_its_count(self, terminal: Callable[..., Tty]) -> None:
        screen = terminal(typed="y\n")

        confirm(Output(as_json=False), WHAT, yes=False)

        assert WHAT in screen.getvalue()

    @pytest.mark.parametrize("typed", ["n\n", "\n", ""])
    def test_whatever_is_not_yes_declines(self, terminal: Callable[..., Tty], typed: str) -> None:
        terminal(typed)

        with pytest.raises(Declined) as declined:
            confirm(Output(as_json=False), WHAT, yes=False)

        assert declined.value.exit_code == 1

    def test_where_nobody_can_be_asked_it_is_exit_2_that_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", StringIO())

        with pytest.raises(UsageError, match="--yes") as refused:
            confirm(Output(as_json=False), WHAT, yes=False)

        assert refused.value.exit_code == 2
        assert WHAT in str(refused.value)

    def test_a_document_is_never_interrupted_by_a_question(self, terminal: Callable[..., Tty]) -> None:
        terminal(typed="y\n")

        with pytest.raises(UsageError, match="--yes"):
            confirm(Output(as_json=True), WHAT, yes=False)


class TestProgress:
    def test_in_a_terminal_there_is_a_bar(self, terminal: Callable[..., Tty]) -> None:
        screen = terminal()

        with progress(Output(as_json=False), 2, "deleting") as advance:
            advance(1)
            advance(1)

        assert "deleting" in screen.getvalue()
        assert "2/2" in screen.getvalue()

    def test_in_a_pipe_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe = StringIO()
        monkeypatch.setattr(sys, "stderr", pipe)

        with progress(Output(as_json=False), 2, "deleting") as advance:
            advance(2)

        assert pipe.getvalue() == ""

    def test_beside_a_document_there_is_none(self, terminal: Callable[..., Tty]) -> None:
        screen = terminal()

        with progress(Output(as_json=True), 2, "deleting") as advance:
            advance(2)

        assert screen.getvalue() == ""
