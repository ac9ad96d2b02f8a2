"""Releases: where the next process finds its application, behind a link that moves."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.errors import ApplicationError
from kiqcluster.supervisor.release_paths import Releases
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
    """Release 1 is in use."""
    with selectors.DefaultSelector() as selector:
        releases = Releases(place.current, selector, ManualClock(), lambda: None, lambda pid: None)
    releases.aim_at_newest(0)
    releases.approve()
    return releases


def entered(releases: Releases) -> str:
    """Return the name of the release that the next process would start in."""
    start = releases.start()
    assert start.directory == Path.cwd()
    return Path.cwd().name


def begin_roll(releases: Releases, generation: int = 1) -> None:
    """Aim at what the link leads to, and have processes get it."""
    releases.aim_at_newest(generation)
    releases.roll()


def test_a_link_that_was_moved_is_not_followed_before_a_roll(releases: Releases, place: Place) -> None:
    place.move("2")

    assert entered(releases) == "1"
    releases.aim_at_newest(1)
    assert entered(releases) == "1"  # it has not told yet what it has
    releases.roll()
    assert entered(releases) == "2"


def test_every_process_of_a_roll_gets_the_release_that_it_has_begun_with(releases: Releases, place: Place) -> None:
    place.move("2")
    begin_roll(releases)

    place.move("3")

    assert entered(releases) == "2"
    releases.approve()
    assert entered(releases) == "2"
    begin_roll(releases, 2)
    assert entered(releases) == "3"


def test_after_a_roll_that_has_failed_the_release_before_is_entered_until_the_next(
    releases: Releases, place: Place
) -> None:
    place.move("2")
    begin_roll(releases)
    releases.reject()

    assert entered(releases) == "1"
    place.move("3")
    assert entered(releases) == "1"


def test_a_roll_that_succeeds_brings_the_release_to_go_back_to(releases: Releases, place: Place) -> None:
    place.move("2")
    begin_roll(releases)
    releases.approve()

    place.move("3")
    begin_roll(releases, 2)
    releases.reject()

    assert entered(releases) == "2"


def test_a_reload_follows_the_link_but_not_to_what_a_roll_has_rejected(releases: Releases, place: Place) -> None:
    def after_reload() -> str:
        releases.aim_again(5)
        releases.approve()
        return entered(releases)

    place.move("2")
    begin_roll(releases)
    releases.reject()
    assert [after_reload(), after_reload()] == ["1", "1"]

    place.move("3")
    assert after_reload() == "3"
    place.move("2")
    assert after_reload() == "3"
    begin_roll(releases)
    assert entered(releases) == "2"


def test_a_reload_that_fails_changes_nothing(releases: Releases, place: Place) -> None:
    place.move("2")
    releases.aim_again(0)
    releases.forget_aim()

    assert entered(releases) == "1"
    releases.aim_again(0)
    releases.approve()
    assert entered(releases) == "2"


def test_a_release_in_use_that_was_removed_gives_way_to_the_newest_and_that_is_told_once(
    releases: Releases, place: Place
) -> None:
    place.move("2")
    (place.directory / "1").rmdir()

    first, second = releases.start(), releases.start()

    assert Path.cwd().name == "2"
    assert (Path(first.gone).name, second.gone) == ("1", "")


def test_a_release_that_is_removed_during_its_roll_gives_way_to_none(releases: Releases, place: Place) -> None:
    place.move("2")
    begin_roll(releases)
    place.move("3")
    (place.directory / "2").rmdir()

    with pytest.raises(ApplicationError, match="2 is gone"):
        releases.start()
    releases.reject()
    assert entered(releases) == "1"


def test_a_process_is_said_to_have_the_release_that_it_gets_and_its_generation(
    releases: Releases, place: Place
) -> None:
    def what() -> tuple[str, int, str]:
        start = releases.start()
        return Path(start.release).name, start.generation, Path(start.wanted).name

    assert what() == ("1", 0, "")
    place.move("2")
    assert what() == ("1", 0, "2")

    begin_roll(releases)
    assert what() == ("2", 1, "")
    releases.reject()
    assert what() == ("1", 0, "2")
    begin_roll(releases, 2)
    releases.approve()
    assert what() == ("2", 2, "")
    place.move("3")
    begin_roll(releases, 3)
    releases.reject()
    assert what() == ("2", 2, "3")


def test_what_was_preloaded_is_what_every_process_has(releases: Releases, place: Place) -> None:
    releases.preloaded()
    assert releases.why_not_renewed() is None

    place.move("2")
    releases.aim_again(0)
    releases.approve()

    start = releases.start()
    assert (Path(start.release).name, Path(start.wanted).name, Path.cwd().name) == ("1", "2", "1")
    assert str(place.directory / "1") in str(releases.why_not_renewed())
    place.move("1")
    assert releases.why_not_renewed() is None


@pytest.mark.parametrize("leads_to", ["", "nowhere", "current"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it_and_harms_nobody_who_is_there(
    releases: Releases, place: Place, leads_to: str
) -> None:
    place.current.unlink()
    if leads_to:
        place.current.symlink_to(place.directory / leads_to)

    with pytest.raises(ApplicationError, match="current is gone"):
        releases.aim_at_newest(1)
    assert entered(releases) == "1"
