"""Releases: where the next process finds its application, behind a link that moves."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.errors import ApplicationError
from kiqcluster.supervisor.releases import Releases
from tests.kit import ManualClock


class Place:
    """Releases on disk, and the link to one of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.current = directory / "current"
        for name in ("1", "2", "3"):
            (directory / name).mkdir()

    def move(self, name: str) -> None:
        self.current.unlink(missing_ok=True)
        self.current.symlink_to(self.directory / name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """`current` leads to release 1; the working directory is put back."""
    before = Path.cwd()
    place = Place(tmp_path)
    place.move("1")
    yield place
    os.chdir(before)


@pytest.fixture
def releases(place: Place) -> Releases:
    """Release 1 has booted."""
    with selectors.DefaultSelector() as selector:
        releases = Releases(place.current, selector, ManualClock(), lambda: None, lambda pid: None)
    releases.approve()
    return releases


def entered(releases: Releases) -> str:
    """Return the name of the release that the next process would start in."""
    releases.enter()
    return Path.cwd().name


def test_a_link_that_was_moved_is_followed_and_keeps_its_own_name(releases: Releases, place: Place) -> None:
    assert entered(releases) == "1"

    place.move("2")

    assert entered(releases) == "2"
    assert releases.enter() == place.current


def test_while_it_is_pinned_the_release_that_booted_last_is_entered(releases: Releases, place: Place) -> None:
    place.move("2")
    releases.pin()

    assert entered(releases) == "1"
    place.move("3")
    assert entered(releases) == "1"


def test_a_roll_looks_at_the_newest_and_its_success_makes_that_the_one_to_go_back_to(
    releases: Releases, place: Place
) -> None:
    place.move("2")
    releases.pin()
    releases.unpin()
    assert entered(releases) == "2"

    releases.approve()
    place.move("3")
    releases.pin()

    assert entered(releases) == "2"


def test_a_pinned_release_that_has_been_removed_gives_way_to_what_is_there(releases: Releases, place: Place) -> None:
    place.move("2")
    releases.pin()
    (place.directory / "1").rmdir()

    assert entered(releases) == "2"


def test_a_release_that_was_changed_in_place_cannot_be_gone_back_to(releases: Releases, place: Place) -> None:
    releases.pin()

    assert releases.enter() == place.current


def test_a_process_is_said_to_have_the_release_that_it_gets_and_its_generation(
    releases: Releases, place: Place
) -> None:
    def what(generation: int) -> tuple[str, int, str]:
        start = releases.start(generation)
        return Path(start.release).name, start.generation, Path(start.wanted).name

    assert what(0) == ("1", 0, "")
    place.move("2")
    assert what(0) == ("2", 0, "")  # before the roll; the link says where the code comes from

    releases.pin()  # the roll has failed
    assert what(1) == ("1", 0, "2")
    releases.unpin()
    releases.approve(2)
    assert what(2) == ("2", 2, "")
    place.move("3")
    releases.pin()
    assert what(3) == ("2", 2, "3")


def test_what_was_preloaded_is_what_every_process_has(releases: Releases, place: Place) -> None:
    releases.preloaded()
    assert releases.why_not_renewed() is None

    place.move("2")

    start = releases.start(1)
    assert (Path(start.release).name, Path(start.wanted).name) == ("1", "2")
    assert str(place.directory / "1") in str(releases.why_not_renewed())
    place.move("1")
    assert releases.why_not_renewed() is None


def test_nothing_to_go_back_to_before_anything_has_booted(place: Place) -> None:
    with selectors.DefaultSelector() as selector:
        releases = Releases(place.current, selector, ManualClock(), lambda: None, lambda pid: None)
    place.move("2")
    releases.pin()

    assert entered(releases) == "2"


def test_a_directory_that_is_gone_is_an_error_that_names_it(releases: Releases, place: Place) -> None:
    place.current.unlink()

    with pytest.raises(ApplicationError, match="current is gone"):
        releases.enter()
