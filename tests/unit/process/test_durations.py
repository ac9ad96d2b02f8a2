"""Durations and sizes: what people write, and what they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.process.durations import MAX_DURATION_SECONDS, parse_duration, parse_size, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("1.5s", 1.5),
        ("15m", 900),
        ("1h", 3_600),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
    ],
)
def test_these_are_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "m", "15 m", "-5", "5min", "m15", "30m1h", "1h1h", "1e3", "nan", "inf", "٣", "1_000", "15M", "1.5m"],
)
def test_these_are_none_and_the_error_shows_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="15m, 1h30m"):
        parse_duration(text)


def test_one_that_must_be_a_slip_is_refused() -> None:
    assert parse_duration(f"{MAX_DURATION_SECONDS:.0f}") == MAX_DURATION_SECONDS
    with pytest.raises(ValueError, match="longer than"):
        parse_duration(f"{MAX_DURATION_SECONDS + 1:.0f}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.4, "0s"), (59.6, "1m"), (90, "1m 30s"), (900, "15m"), (3_661, "1h 1m"), (90_000, "1d 1h")],
)
def test_two_units_are_shown(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.integers(0, int(MAX_DURATION_SECONDS)))
def test_what_is_shown_is_a_duration_no_longer_than_it_was(seconds: int) -> None:
    shown = parse_duration(show_duration(seconds).replace(" ", ""))

    assert shown <= seconds
    assert shown >= seconds * 0.9


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("600MB", 600_000_000),
        ("600 MB", 600_000_000),
        ("1.5GB", 1_500_000_000),
        ("100kB", 100_000),
        ("512MiB", 536_870_912),
        ("2000B", 2_000),
        ("0", 0),
        (0, 0),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: object, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["600", 600, 600.0, True, False, None, "", "MB", "-5MB", "5 mb", "5Mi", "1e3MB", "5MBs"]
)
def test_anything_else_is_refused_with_the_units(text: object) -> None:
    with pytest.raises(ValueError, match="units B, kB, MB, GB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "600MB", "1500MB", "5MB", "100kB", "1234B", "512MiB", "2GB", "1GiB"])
def test_what_is_shown_is_read_again(text: str) -> None:
    assert show_size(parse_size(text)) == text
