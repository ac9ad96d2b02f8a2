"""Tables: what fits, what is cut, and that nothing in a cell reaches the terminal as a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.control.process_registry import natural_sort_key
from kiqcluster.ctl.text.tables import (
    ago,
    clean,
    display_width,
    format_duration,
    format_megabytes,
    format_number,
    format_time,
    iso_time,
    number_column,
    pluralize,
    table,
    text_column,
    truncate,
)

COLUMNS = (text_column("QUEUE", 6), number_column("SIZE"), text_column("STATE"), text_column("ARGS", 4))
ROWS = [("default", "12", "", "1, 2"), ("a-queue-with-a-long-name", "1,204", "paused", "x" * 60)]


class TestTable:
    def test_words_stand_to_the_left_and_numbers_to_the_right(self) -> None:
        assert table(
            (text_column("QUEUE"), number_column("SIZE"), text_column("STATE")),
            [("low", "1", ""), ("default", "204", "paused")],
        ) == [
            "  QUEUE    SIZE  STATE",
            "  low         1",
            "  default   204  paused",
        ]

    def test_without_a_terminal_nothing_is_cut(self) -> None:
        lines = table(COLUMNS, ROWS, None)

        assert "x" * 60 in lines[2]
        assert not any("…" in line for line in lines)

    @pytest.mark.parametrize("width", [200, 110, 80, 60, 40])
    def test_it_fits_the_terminal(self, width: int) -> None:
        assert max(map(display_width, table(COLUMNS, ROWS, width))) <= width

    def test_the_widest_column_that_may_gives_way_first(self) -> None:
        lines = table(COLUMNS, ROWS, 80)

        assert "a-queue-with-a-long-name" in lines[2]
        assert lines[2].endswith("xxx…")

    def test_a_column_keeps_its_least_width_and_those_of_numbers_all_of_it(self) -> None:
        lines = table(COLUMNS, ROWS, 29)

        assert lines[2] == "  a-que…  1,204  paused  xxx…"

    def test_what_is_narrower_than_all_that_must_be_is_cut_at_the_edge(self) -> None:
        lines = table(COLUMNS, ROWS, 15)

        assert max(map(len, lines)) == 15
        assert lines[2].endswith("…")

    def test_wide_characters_take_two_cells_and_combining_ones_none(self) -> None:
        lines = table(
            (text_column("CLASS"), number_column("SIZE")), [("キュー", "1"), ("cafe\u0301", "2"), ("🚀", "3")]
        )

        assert lines[1:] == ["  キュー     1", "  cafe\u0301       2", "  🚀         3"]
        assert {display_width(line) for line in lines} == {14}

    @pytest.mark.parametrize(
        "text",
        ["👍🏽", "❤\ufe0f", "🇩🇪", "\u1100\u1161\u11a8"],
        ids=["skin tone", "emoji of a text character", "flag", "Hangul of three letters"],
    )
    def test_what_a_terminal_draws_as_one_takes_two_cells(self, text: str) -> None:
        assert display_width(text) == 2
        assert display_width(f"a{text}b") == 4
        assert table((text_column("CLASS"), number_column("SIZE")), [(text, "1")])[1] == f"  {text}        1"

    def test_what_came_from_redis_cannot_command_the_terminal(self) -> None:
        (_, line) = table((text_column("CLASS"),), [("a\x1b[2Jb\nc\u202ed\x9b",)])

        assert line == r"  a\x1b[2Jb\nc\u202ed\x9b"

    def test_a_table_without_rows_is_its_head(self) -> None:
        assert table((text_column("A"), number_column("B")), []) == ["  A  B"]

    @given(st.lists(st.tuples(st.text(), st.text(), st.text(), st.text()), max_size=5), st.integers(20, 120))
    def test_whatever_the_cells_hold_it_fits(self, rows: list[tuple[str, str, str, str]], width: int) -> None:
        lines = table(COLUMNS, rows, width)

        assert len(lines) == len(rows) + 1
        assert all(display_width(line) <= width and line.isprintable() for line in lines)


class TestCut:
    @pytest.mark.parametrize(
        ("text", "width", "shown"),
        [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("キュー", 5, "キュ…"),
            ("キュー", 4, "キ…"),
            ("e\u0301e\u0301", 1, "…"),
            ("a👍🏽b", 3, "a…"),
            ("🇩🇪🇫🇷", 3, "🇩🇪…"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
        ],
    )
    def test_it_ends_where_the_cells_do(self, text: str, width: int, shown: str) -> None:
        assert truncate(text, width) == shown

    @given(st.text(), st.integers(0, 30))
    def test_it_is_never_wider_than_asked(self, text: str, width: int) -> None:
        assert display_width(truncate(clean(text), width)) <= width


class TestWords:
    def test_numbers_have_commas(self) -> None:
        assert (format_number(0), format_number(1_204_331)) == ("0", "1,204,331")

    def test_counts_have_their_plural(self) -> None:
        assert [pluralize(n, "job") for n in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
        assert pluralize(2_000, "entry", "entries") == "2,000 entries"

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(None, "–"), (-3, "0.0s"), (0, "0.0s"), (0.42, "0.4s"), (9.94, "9.9s"), (9.96, "10s"), (90_061, "1d 1h")],
    )
    def test_durations_are_exact_where_they_are_short(self, seconds: float | None, words: str) -> None:
        assert format_duration(seconds) == words

    def test_times_are_before_or_after_now(self) -> None:
        assert (ago(95.0, 100.0), ago(400.0, 100.0), ago(None, 100.0)) == ("5.0s ago", "in 5m", "–")

    @pytest.mark.parametrize("extreme", [1e300, -1e300, float("inf"), float("nan")])
    def test_a_time_that_no_calendar_has_takes_no_room(self, extreme: float) -> None:
        assert (ago(extreme, 100.0), format_duration(extreme), format_time(extreme), iso_time(extreme)) == (
            "–",
            "–",
            "–",
            None,
        )

    def test_a_number_that_nobody_counts_to_takes_little(self) -> None:
        assert (format_number(10**18 - 1), format_number(10**5_000)) == ("999,999,999,999,999,999", "1.0e+5000")

    def test_moments_are_utc(self) -> None:
        assert format_time(1_795_168_740.9) == "2026-11-20 09:59:00Z"
        assert [format_time(at) for at in (None, -1.0, 1e300)] == ["–"] * 3

    def test_memory_is_in_megabytes(self) -> None:
        assert (format_megabytes(41_400_000), format_megabytes(0)) == ("41 MB", "–")


def test_ids_give_way_before_everything_else() -> None:
    columns = (text_column("CLASS", 6), text_column("JID", 9, shrinks_first=True), text_column("ERROR", 4))
    rows = [("SendInvoice", "b4a577edbccf1d805744efa9", "OSError: the connection was refused")]

    assert table(columns, rows, 59, 0)[1] == "SendInvoice  b4a577ed…  OSError: the connection was refused"
    assert table(columns, rows, 71, 0)[1] == "SendInvoice  b4a577edbccf1d805744…  OSError: the connection was refused"


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["web-10:7:a", "web-2:7:a", "web:1:a", "app-2b", "app-2a", "web-2:10:a"]

    assert sorted(names, key=natural_sort_key) == [
        "app-2a",
        "app-2b",
        "web-2:7:a",
        "web-2:10:a",
        "web-10:7:a",
        "web:1:a",
    ]
    assert natural_sort_key("9" * 5_000 + "a") > natural_sort_key("8a")
