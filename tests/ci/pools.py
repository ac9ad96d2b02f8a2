"""Pools: a plugin of pytest by which some processes run the tests that wait, and others those that compute.

A test with real processes waits for nine tenths of its time: few processes at once would leave the cores idle, and many
that compute would have deadlines pass.  So there are two pools, which run at the same time, each with its own files:
waiting     many processes, for files whose tests start programs
computing   one process for each core, for all others

A pool has shards, which share its files by their recorded durations: else each process would import all files of its
pool, which took a tenth of the CPU seconds of a run.

1. pytest_configure_node          in the process that distributes: says to each new process which shard it belongs to
2. pytest_ignore_collect          there: it imports the files of its shard alone
3. pytest_collection_modifyitems  there: the longest files first, by durations.toml, so that none is left for the end
4. Pools                          distributes files within each shard

Files that share what takes long to start are one: the folders of TOGETHER.

Used with `-p tests.ci.pools -n N`, N at least 2; the first COMPUTING processes compute.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

__all__ = ["COMPUTING", "PROCESSES", "Pools", "files_of", "pool_of", "recorded_seconds", "shards"]

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
CORES = min(max(os.cpu_count() or 2, 2), 8)
COMPUTING = CORES  # processes that compute
PROCESSES = 4 * CORES  # all of them
SHARE = {"computing": 1, "waiting": 2}  # pool → processes that distribute the files of a shard among them
COMPUTES = {
    "ci",
    "conformance",
    "migration",
    "properties",
    "redis",
    "typing",
    "unit",
}  # folders whose tests seldom wait
TOGETHER = {"browser"}  # folders whose tests one process runs: they share Chromium and a live cluster
DURATIONS = Path(__file__).with_name("durations.toml")
RECORDED_FROM_SECONDS = 2.0  # that a file takes
UNRECORDED_SECONDS = 1.0  # of a file that durations.toml does not name


def pool_of(path: Path) -> str:
    """Return the pool that runs a file."""
    return "computing" if path.relative_to(TESTS).parts[0] in COMPUTES else "waiting"


@cache
def recorded_seconds() -> dict[str, float]:
    """Return file → seconds that its short tests took; files that take little are not there."""
    seconds: dict[str, float] = tomllib.loads(DURATIONS.read_text())
    return seconds


def files_of(paths: Sequence[str]) -> list[Path]:
    """Return the files of tests at paths from the root: folders, files, file::test."""
    found: set[Path] = set()
    for path in (ROOT / each.partition("::")[0] for each in paths):
        found.update(path.rglob("test_*.py") if path.is_dir() else [path])
    return sorted(found)


def shards(paths: Sequence[Path], sizes: Mapping[str, int]) -> dict[Path, str]:
    """Return file → shard: the longest first, each to the shard of its pool that has least to do for its processes.

    sizes: shard → number of its processes.
    """
    seconds = dict.fromkeys(sizes, 0.0)
    found: dict[Path, str] = {}
    for unit in sorted({unit_of(path) for path in paths}, key=lambda unit: (-seconds_of(unit), unit)):
        own = [shard for shard in sizes if shard.partition(" ")[0] == pool_of(unit)]
        least = min(own, key=lambda shard: seconds[shard] / sizes[shard])
        seconds[least] += seconds_of(unit)
        found[unit] = least
    return {path: found[unit_of(path)] for path in paths}


def unit_of(path: Path) -> Path:
    """Return what one process runs: the file, or the folder of TOGETHER that it is in."""
    folder = path.relative_to(TESTS).parts[0]
    return TESTS / folder if folder in TOGETHER else path


@cache
def seconds_of(path: Path) -> float:
    """Return how long the short tests of a file take, or of a folder."""
    if path.is_dir():
        return sum(seconds_of(each) for each in path.rglob("test_*.py"))
    return recorded_seconds().get(path.relative_to(TESTS).as_posix(), UNRECORDED_SECONDS)


# in the process that distributes


class Assignment:
    """Which shard each process belongs to; one that replaces another after a crash belongs to the same."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._left = [shard for shard, size in sizes.items() for _ in range(size)]  # of processes still to come

    def next(self) -> str:
        return self._left.pop(0)

    def give_back(self, shard: str) -> None:
        self._left.insert(0, shard)


class Files(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Distributes files, and folders of TOGETHER as if they were files."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return unit_of(ROOT / file).relative_to(ROOT).as_posix()


class Pools:
    """A scheduler of pytest-xdist that has one for each shard."""

    def __init__(self, config: pytest.Config, log: Any, sizes: dict[str, int], session: pytest.Session) -> None:
        self._session = session
        self._pools = {name: Files(config, log) for name in sizes}
        for name, size in sizes.items():
            self._pools[name].numnodes = size

    def _of(self, node: Any) -> LoadFileScheduling:
        return self._pools[node.workerinput["shard"]]

    @property
    def nodes(self) -> list[Any]:
        return [node for pool in self._pools.values() for node in pool.nodes]

    @property
    def collection_is_completed(self) -> bool:
        return all(pool.collection_is_completed for pool in self._pools.values())

    @property
    def tests_finished(self) -> bool:
        return all(pool.tests_finished for pool in self._pools.values())

    @property
    def has_pending(self) -> bool:
        return any(pool.has_pending for pool in self._pools.values())

    def add_node(self, node: Any) -> None:
        self._of(node).add_node(node)

    def remove_node(self, node: Any) -> str | None:
        crashed: str | None = self._of(node).remove_node(node)
        return crashed

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Take what a process has collected; once all of its shard have, they begin."""
        pool = self._of(node)
        pool.add_node_collection(node, collection)
        if pool.collection_is_completed:
            pool.schedule()
            if not pool.collection:
                for each in pool.nodes:
                    each.shutdown()
        # pytest-xdist takes the tests of the latest process for all.
        collections = [list(pool.registered_collections.values()) for pool in self._pools.values()]
        self._session.testscollected = sum(len(each[0]) for each in collections if each)

    def schedule(self) -> None:
        """Do nothing: each shard has begun by itself."""

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._of(node).mark_test_complete(node, item_index, duration)

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        raise NotImplementedError


ASSIGNMENT = pytest.StashKey[Assignment]()
SESSION = pytest.StashKey[pytest.Session]()
SHARD_OF = pytest.StashKey[dict[Path, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ASSIGNMENT] = Assignment(_sizes(config))


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SESSION] = session


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Pools:
    return Pools(config, log, _sizes(config), config.stash[SESSION])


def _sizes(config: pytest.Config) -> dict[str, int]:
    """Return shard → number of its processes; each pool has one process at least."""
    processes = max(2, len(config.option.tx))
    computing = min(COMPUTING, processes - 1)
    sizes: dict[str, int] = {}
    for pool, left in (("computing", computing), ("waiting", processes - computing)):
        share = SHARE[pool]
        for number, first in enumerate(range(0, left, share), 1):
            sizes[f"{pool} {number}"] = min(share, left - first)
    return sizes


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput |= {"shard": node.config.stash[ASSIGNMENT].next(), "sizes": _sizes(node.config)}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if error:
        node.config.stash[ASSIGNMENT].give_back(node.workerinput["shard"])


# in each of the processes


def _is_own(path: Path, config: pytest.Config) -> bool:
    """Return whether this process runs a file; all files, in the process that distributes."""
    given = getattr(config, "workerinput", None)
    if given is None:
        return True
    if SHARD_OF not in config.stash:
        config.stash[SHARD_OF] = shards(files_of(config.args), given["sizes"])
    pool, shard = given["shard"].partition(" ")[0], config.stash[SHARD_OF].get(path)
    return pool_of(path) == pool if shard is None else bool(shard == given["shard"])  # a folder has no shard


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if TESTS in collection_path.parents and not _is_own(collection_path, config) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _is_own(item.path, config)]  # nothing ignores files that are named
    items.sort(key=_place)  # the tests of a file stay in their order


def _place(item: pytest.Item) -> tuple[float, str, str]:
    unit = unit_of(item.path)
    return (-seconds_of(unit), str(unit), str(item.path))
