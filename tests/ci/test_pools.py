"""Pools: each process gets the files of one pool, and a pool does not wait for the other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.ci.pools import TESTS, Assignment, Pools, files_of, pool_of, seconds_of, shards


class Node:
    """A process of pytest-xdist, without the process."""

    def __init__(self, pool: str) -> None:
        self.workerinput = {"shard": pool}
        self.gateway = SimpleNamespace(id=f"{pool} {id(self)}")
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> Pools:
    options = SimpleNamespace(tx=["popen"] * 2, loadscopereorder=False, maxschedchunk=None)
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: getattr(options, name))
    session: Any = SimpleNamespace(testscollected=0)
    return Pools(config, None, {"computing": 1, "waiting": 1}, session)


def test_files_whose_tests_start_programs_wait() -> None:
    assert pool_of(TESTS / "process" / "test_stop.py") == pool_of(TESTS / "chaos") == "waiting"
    assert pool_of(TESTS / "unit" / "store" / "test_wire.py") == pool_of(TESTS / "redis") == "computing"


def test_a_process_that_replaces_one_belongs_to_its_shard() -> None:
    assignment = Assignment({"computing": 1, "waiting": 2})
    assert [assignment.next() for _ in range(3)] == ["computing", "waiting", "waiting"]

    assignment.give_back("computing")

    assert assignment.next() == "computing"


def test_each_file_is_in_one_shard_of_its_pool_and_shards_have_as_much_to_do() -> None:
    sizes = {"computing 1": 1, "computing 2": 1, "waiting 1": 2, "waiting 2": 1}
    found = shards(files_of(["tests"]), sizes)

    seconds = dict.fromkeys(sizes, 0.0)
    for path, shard in found.items():
        assert shard.startswith(pool_of(path))
        seconds[shard] += seconds_of(path)
    assert seconds["computing 1"] == pytest.approx(seconds["computing 2"], rel=0.1)
    assert seconds["waiting 1"] == pytest.approx(2 * seconds["waiting 2"], rel=0.1)


def test_one_process_runs_all_that_needs_a_browser(scheduler: Pools) -> None:
    found = shards(files_of(["tests"]), {"computing 1": 1, "waiting 1": 1, "waiting 2": 1})
    assert len({shard for path, shard in found.items() if path.parent.name == "browser"}) == 1

    nodes = [Node("waiting"), Node("waiting")]
    scheduler._pools["waiting"].numnodes = len(nodes)
    tests = ["tests/browser/test_a.py::one", "tests/process/test_b.py::two", "tests/browser/test_c.py::three"]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)

    assert sorted(node.sent for node in nodes) == [[0, 2], [1]]


def test_a_pool_begins_without_the_other_one_and_runs_its_own_tests(scheduler: Pools) -> None:
    first, second = Node("computing"), Node("waiting")
    for node in (first, second):
        scheduler.add_node(node)

    scheduler.add_node_collection(first, ["tests/unit/a.py::one", "tests/unit/a.py::two"])
    assert (first.sent, second.sent) == ([0, 1], [])
    states = [scheduler.collection_is_completed]

    scheduler.add_node_collection(second, ["tests/process/b.py::three"])
    assert second.sent == [0]
    assert [*states, scheduler.collection_is_completed, scheduler.has_pending] == [False, True, True]
    assert scheduler._session.testscollected == 3

    for node, index in ((first, 0), (first, 1), (second, 0)):
        scheduler.mark_test_complete(node, index)
    assert (scheduler.tests_finished, scheduler.has_pending) == (True, False)


def test_a_pool_without_tests_ends(scheduler: Pools) -> None:
    node = Node("waiting")
    scheduler.add_node(node)

    scheduler.add_node_collection(node, [])

    assert node.shutting_down


def test_the_test_that_crashed_its_process_is_named(scheduler: Pools) -> None:
    node = Node("computing")
    scheduler.add_node(node)
    scheduler.add_node_collection(node, ["tests/unit/a.py::one", "tests/unit/a.py::two"])
    scheduler.mark_test_complete(node, 0)

    assert scheduler.remove_node(node) == "tests/unit/a.py::two"
