"""What mypy must see in the store: an error reply has a type of its own where a caller asks for it, and nowhere else.

Nothing here runs.  Each line with an ignore takes an error for a value, which is an error in mypy.
"""

from __future__ import annotations

from typing import Any, assert_type

from kiqcluster.store import Connection, Store
from kiqcluster.store.scripts import Call, run_scripts, run_scripts_each
from kiqcluster.store.wire import ErrorReply, WrongType


def replies(store: Store, connection: Connection, calls: list[Call]) -> None:
    assert_type(store.pipeline([("TIME",)]), list[Any])
    assert_type(connection.exchange([("TIME",)]), list[Any])
    assert_type(run_scripts(connection, calls), list[Any])


def errors_among_them(store: Store, connection: Connection, calls: list[Call]) -> int:
    (read,) = store.read_each([("GET", "a")])
    (asked,) = connection.exchange_each([("GET", "a")])
    (ran,) = run_scripts_each(connection, calls)
    len(read)  # type: ignore[arg-type]
    asked.decode()  # type: ignore[union-attr]
    for _ in ran:  # type: ignore[union-attr]
        pass
    if isinstance(read, WrongType) or isinstance(asked, ErrorReply) or isinstance(ran, ErrorReply):
        return 0
    return len(read) + len(asked) + len(ran)
