"""The board: which units run, in memory that outlives the child."""

from __future__ import annotations

import pytest

from kiqcluster.board import RECORD, Board

TOKEN = "00000001.0000000001.00001"


@pytest.fixture
def board() -> Board:
    """A board of three processors."""
    return Board(3)


def test_it_holds_what_runs_in_the_order_of_processors(board: Board) -> None:
    board.start(2, "c")
    board.start(0, "a")

    assert board.running() == ["a", "c"]


def test_what_has_finished_is_gone(board: Board) -> None:
    board.start(0, "a")
    board.start(1, "b")
    board.finish(0)

    assert board.running() == ["b"]


def test_a_shorter_token_after_a_longer_one_is_whole(board: Board) -> None:
    board.start(1, TOKEN)
    board.start(1, "x")

    assert board.running() == ["x"]


def test_neighbours_do_not_touch_each_other_with_the_longest_token(board: Board) -> None:
    tokens = [letter * (RECORD - 1) for letter in "abc"]
    for processor, token in enumerate(tokens):
        board.start(processor, token)

    assert board.running() == tokens


def test_a_token_of_the_engine_fits() -> None:
    assert len(TOKEN) < RECORD


def test_finishing_twice_or_before_a_start_is_harmless(board: Board) -> None:
    board.finish(0)
    board.start(0, "a")
    board.finish(0)
    board.finish(0)

    assert board.running() == []


def test_clearing_forgets_all(board: Board) -> None:
    for processor in range(3):
        board.start(processor, "a")
    board.clear()

    assert board.running() == []


def test_a_board_for_nobody_is_empty() -> None:
    board = Board(0)

    assert board.running() == []
    board.clear()
    board.close()
