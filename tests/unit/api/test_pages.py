"""Pages: how large the next one is, and how it is laid against the last."""

from __future__ import annotations

import pytest

from kiqcluster.api import JobRecord
from kiqcluster.api._pages import MAX_PAGE_BYTES, MAX_PAGE_JOBS, aligned, batches, page_size


def names(text: str) -> list[bytes]:
    return [name.encode() for name in text]


@pytest.mark.parametrize(
    ("bytes_each", "size"), [(0, 500), (200, 500), (8_000, 500), (40_000, 100), (1_000_000, 4), (90_000_000, 4)]
)
def test_large_jobs_come_in_smaller_pages(bytes_each: int, size: int) -> None:
    assert page_size([b"x" * bytes_each] * 3) == size


@pytest.mark.parametrize(
    ("page", "behind", "ahead", "expected", "start"),
    [
        ("abcdef", "ab", "cd", 2, 2),  # nothing has changed
        ("xabcdef", "ab", "cd", 2, 3),  # one more before
        ("bcdef", "ab", "cd", 2, 1),  # one less
        ("cdef", "ab", "cd", 2, 0),  # all that was read is gone
        ("abdef", "ab", "cd", 2, 2),  # what came next is gone
        ("abef", "ab", "cd", 2, 2),  # all that was to come next is gone
        ("ef", "ab", "cd", 2, None),  # both: nothing tells
        ("", "ab", "cd", 0, None),
        ("aaaaaa", "aa", "aa", 3, 3),  # all alike: nothing seems to have changed
        ("abcabc", "ab", "ca", 2, 2),
        ("abcabc", "ab", "ca", 5, 5),
    ],
)
def test_a_page_goes_on_where_the_last_one_ended(
    page: str, behind: str, ahead: str, expected: int, start: int | None
) -> None:
    assert aligned(names(page), names(behind), names(ahead), expected) == start


def test_batches_hold_a_page_and_never_more_bytes_than_one() -> None:
    small = [JobRecord(b"x")] * 1_001
    large = [JobRecord(b"y" * (MAX_PAGE_BYTES // 3))] * 5

    assert [len(batch) for batch in batches(small)] == [MAX_PAGE_JOBS, MAX_PAGE_JOBS, 1]
    assert [len(batch) for batch in batches(large)] == [3, 2]
    assert list(batches([])) == []


def test_what_does_not_go_together_goes_apart() -> None:
    records = [JobRecord(name) for name in names("aabba")]

    found = [[each.raw for each in batch] for batch in batches(records, lambda first, other: first == other)]

    assert found == [names("aa"), names("bb"), names("a")]
