"""Enumerators: which items come, with which cursors, and from where on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select

from kiqcluster.iterable import batches_enumerator, csv_batches_enumerator, csv_enumerator, sequence_enumerator
from kiqcluster.iterable.sql import query_batches_enumerator, query_enumerator

TABLE = Table("members", MetaData(), Column("id", Integer, primary_key=True), Column("name", String))


def test_the_items_of_a_sequence_come_with_their_index() -> None:
    assert list(sequence_enumerator("abc", cursor=None)) == [("a", 0), ("b", 1), ("c", 2)]
    assert list(sequence_enumerator("abc", cursor=2)) == [("c", 2)]
    assert list(sequence_enumerator("abc", cursor=3)) == []


def test_batches_come_with_their_number() -> None:
    assert list(batches_enumerator("abcde", cursor=None, size=2)) == [("ab", 0), ("cd", 1), ("e", 2)]
    assert list(batches_enumerator("abcde", cursor=1, size=2)) == [("cd", 1), ("e", 2)]
    assert list(batches_enumerator("", cursor=None)) == []


@pytest.fixture
def members(tmp_path: Path) -> Path:
    path = tmp_path / "members.csv"
    path.write_text('id,name\n1,ann\n2,"bob\nthe second"\n3,eve\n', encoding="utf-8-sig")
    return path


def test_the_rows_of_a_csv_file_come_with_their_index(members: Path) -> None:
    assert list(csv_enumerator(members, cursor=None)) == [
        ({"id": "1", "name": "ann"}, 0),
        ({"id": "2", "name": "bob\nthe second"}, 1),
        ({"id": "3", "name": "eve"}, 2),
    ]
    assert [row["name"] for row, _ in csv_enumerator(str(members), cursor=2)] == ["eve"]


def test_batches_of_rows_come_with_their_number(members: Path) -> None:
    found = [
        ([row["id"] for row in rows], number) for rows, number in csv_batches_enumerator(members, cursor=0, size=2)
    ]

    assert found == [(["1", "2"], 0), (["3"], 1)]
    assert [number for _, number in csv_batches_enumerator(members, cursor=1, size=2)] == [1]


def test_a_file_is_closed_where_the_job_stops(members: Path) -> None:
    rows = csv_enumerator(members, cursor=None)
    next(rows)

    rows.close()

    assert rows.gi_frame is None  # a file left open would fail the test: ResourceWarning


@pytest.mark.parametrize("cursor", [-1, "a", 1.5, True])
def test_the_cursor_of_another_enumerator_is_refused(cursor: Any, members: Path) -> None:
    for enumerate_with in (
        lambda: sequence_enumerator("ab", cursor=cursor),
        lambda: csv_enumerator(members, cursor=cursor),
    ):
        with pytest.raises(ValueError, match="no index"):
            list(enumerate_with())


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_a_size_that_is_no_number_of_items_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="number of items"):
        batches_enumerator("ab", cursor=None, size=size)


@pytest.fixture
def engine() -> Engine:
    made = create_engine("sqlite://")
    TABLE.metadata.create_all(made)
    with made.begin() as connection:
        connection.execute(insert(TABLE), [{"id": number * 10, "name": f"m{number}"} for number in range(1, 6)])
    return made


def test_the_rows_of_a_query_come_in_the_order_of_their_key(engine: Engine) -> None:
    query = select(TABLE).where(TABLE.c.id < 50)

    found = list(query_enumerator(engine, query, TABLE.c.id, cursor=None, page_size=2))

    assert [(row.name, key) for row, key in found] == [("m1", 10), ("m2", 20), ("m3", 30), ("m4", 40)]
    resumed = list(query_enumerator(engine, query, TABLE.c.id, cursor=30, page_size=2))
    assert [key for _, key in resumed] == [30, 40]


def test_rows_that_are_deleted_or_added_meanwhile_move_no_others(engine: Engine) -> None:
    rows = query_enumerator(engine, select(TABLE), TABLE.c.id, cursor=None, page_size=2)
    seen = [next(rows)[1], next(rows)[1]]

    with engine.begin() as connection:
        connection.execute(TABLE.delete().where(TABLE.c.id.in_([10, 30])))
        connection.execute(insert(TABLE), [{"id": 5, "name": "early"}, {"id": 45, "name": "late"}])
    seen += [key for _, key in rows]

    assert seen == [10, 20, 40, 45, 50]
    gone = query_enumerator(engine, select(TABLE), TABLE.c.id, cursor=30)
    assert [key for _, key in gone] == [40, 45, 50]


def test_batches_of_a_query_come_with_their_first_key(engine: Engine) -> None:
    found = query_batches_enumerator(engine, select(TABLE.c.name, TABLE.c.id), TABLE.c.id, cursor=20, size=3)

    assert [([row.id for row in rows], key) for rows, key in found] == [([20, 30, 40], 20), ([50], 50)]


def test_a_key_that_is_not_selected_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="select it as well"):
        list(query_enumerator(engine, select(TABLE.c.name), TABLE.c.id, cursor=None))
