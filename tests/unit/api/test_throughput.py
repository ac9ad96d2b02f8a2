"""Throughput: over how long it is measured, and what resets do to it."""

from __future__ import annotations

from kiqcluster.api.throughput import WINDOW_SECONDS, Rate, Throughput


def test_one_look_says_nothing_of_it() -> None:
    assert Throughput().add(100.0, 5, 1) == Rate(None, None)


def test_it_is_what_the_counters_gained_in_that_time() -> None:
    throughput = Throughput()
    throughput.add(100.0, 1_000, 10)

    assert throughput.add(102.0, 1_300, 11) == Rate(150.0, 0.5)


def test_a_counter_that_moves_every_ten_seconds_is_no_peak() -> None:
    """Ruby's processes count with their heartbeats; looks are more frequent."""
    throughput, rates = Throughput(), []
    for second in range(60):
        rates.append(throughput.add(float(second), second // 10 * 1_000, 0).processed)

    assert all(rate is not None and 50 <= rate <= 170 for rate in rates[20:])


def test_what_is_long_past_counts_no_more() -> None:
    throughput = Throughput()
    throughput.add(0.0, 0, 0)
    throughput.add(1.0, 1_000_000, 0)
    for second in range(2, 30):
        rate = throughput.add(float(second), 1_000_000, 0)

    assert WINDOW_SECONDS + 2 < 30
    assert rate == Rate(0.0, 0.0)


def test_counters_that_were_reset_begin_anew() -> None:
    throughput = Throughput()
    throughput.add(0.0, 1_000, 10)

    assert throughput.add(1.0, 0, 0) == Rate(None, None)
    assert throughput.add(2.0, 7, 0) == Rate(7.0, 0.0)


def test_two_looks_at_one_moment_say_nothing() -> None:
    throughput = Throughput()
    throughput.add(5.0, 1, 0)

    assert throughput.add(5.0, 2, 0) == Rate(None, None)
