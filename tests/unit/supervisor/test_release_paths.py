"""Releases: where the next process finds its application, behind a link that moves, and what a roll decides."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.errors import ApplicationError
from kiqcluster.supervisor.release_paths import ReleasePaths
from tests.unit.supervisor.rolling_restart_stage import Stage


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
def stage(place: Place) -> Iterator[Stage]:
    """A cluster of one slot, with release 1 in use."""
    stage = Stage(1, place.current)
    stage.releases.use(stage.releases.newest_release(0))
    yield stage
    stage.processes.close()


@pytest.fixture
def releases(stage: Stage) -> ReleasePaths:
    """Release 1 is in use."""
    return stage.releases


def entered(stage: Stage) -> str:
    """Return the name of the release that the next process would start in."""
    start = stage.restart.enter_release()
    assert start.directory == Path.cwd()
    return Path.cwd().name


def begin_roll(stage: Stage, ident: str = "one") -> None:
    """Have the newest release answer, and processes get it."""
    assert stage.restart.roll(ident) is None
    stage.query.answer()
    stage.restart.turn()


def succeed(stage: Stage) -> None:
    stage.renew(0)
    stage.restart.conclude()


def fail(stage: Stage) -> None:
    stage.fail(0)
    stage.restart.conclude()


def after_reload(stage: Stage) -> str:
    """Return the name of the release that processes get once a reload is done."""
    stage.releases.use(stage.releases.release_for_reload(stage.state.generation))
    return entered(stage)


def test_a_link_that_was_moved_is_not_followed_before_a_roll(stage: Stage, place: Place) -> None:
    place.move("2")

    assert entered(stage) == "1"
    stage.restart.roll("one")
    assert stage.query.asked == [place.directory / "2"]
    assert entered(stage) == "1"  # the new release has not answered yet
    stage.query.answer()
    assert entered(stage) == "2"


def test_every_process_of_a_roll_gets_the_release_that_it_has_begun_with(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)

    place.move("3")

    assert entered(stage) == "2"
    succeed(stage)
    assert entered(stage) == "2"
    begin_roll(stage, "two")
    assert entered(stage) == "3"


def test_after_a_roll_that_has_failed_the_release_before_is_entered_until_the_next(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)
    fail(stage)

    assert entered(stage) == "1"
    place.move("3")
    assert entered(stage) == "1"


def test_until_its_end_is_acted_upon_a_roll_that_has_failed_decides_what_processes_get(
    stage: Stage, place: Place
) -> None:
    place.move("2")
    begin_roll(stage)
    stage.fail(0)

    assert entered(stage) == "2"
    stage.restart.conclude()
    assert entered(stage) == "1"


def test_a_roll_that_succeeds_brings_the_release_to_go_back_to(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)
    succeed(stage)

    place.move("3")
    begin_roll(stage, "two")
    fail(stage)

    assert entered(stage) == "2"


def test_a_roll_that_takes_the_place_of_another_brings_its_own_release(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)
    place.move("3")
    stage.restart.roll("two")
    assert entered(stage) == "1"  # neither has shown that it works

    stage.query.answer()
    stage.restart.turn()
    assert entered(stage) == "3"
    fail(stage)

    assert entered(stage) == "1"
    assert after_reload(stage) == "1"


def test_a_release_that_does_not_answer_is_entered_by_nobody(stage: Stage, place: Place) -> None:
    place.move("2")
    stage.restart.roll("one")
    stage.query.failed[-1](ApplicationError("no module named shop"))
    assert entered(stage) == "1"
    stage.restart.conclude()

    assert [entered(stage), after_reload(stage)] == ["1", "1"]


def test_a_reload_follows_the_link_but_not_to_what_a_roll_has_rejected(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)
    fail(stage)
    assert [after_reload(stage), after_reload(stage)] == ["1", "1"]

    place.move("3")
    assert after_reload(stage) == "3"
    place.move("2")
    assert after_reload(stage) == "3"
    begin_roll(stage, "two")
    assert entered(stage) == "2"


def test_a_release_that_a_reload_has_brought_and_that_does_not_boot_gives_way_to_the_one_before(
    stage: Stage, place: Place
) -> None:
    child = stage.state.slots[0].child
    assert child is not None
    child.release = str(place.directory / "1")
    stage.restart.on_ready(child)
    place.move("2")
    assert after_reload(stage) == "2"

    stage.state.slots[0].last_death = {"reason": "boot", "release": str(place.directory / "2")}
    stage.restart.on_death(stage.state.slots[0], "exited with 3")

    assert [entered(stage), after_reload(stage)] == ["1", "1"]


def test_a_roll_back_brings_the_release_from_before_the_deploy_and_a_reload_keeps_it(
    stage: Stage, place: Place
) -> None:
    stage.restart.begin_deploy("deploy@host")
    place.move("2")
    begin_roll(stage)
    succeed(stage)
    assert entered(stage) == "2"

    assert stage.restart.roll_back("back", "deploy@host") is None
    stage.query.answer()
    assert entered(stage) == "1"
    stage.processes.generation = 0
    stage.restart.turn()
    replacement = stage.state.slots[0].replacement
    assert replacement is not None
    replacement.release = str(place.directory / "1")
    succeed(stage)

    assert stage.report() == ("done", 1, 1)
    assert [entered(stage), after_reload(stage)] == ["1", "1"]


def test_a_release_in_use_that_was_removed_gives_way_to_the_newest_and_that_is_told_once(
    releases: ReleasePaths, place: Place
) -> None:
    place.move("2")
    (place.directory / "1").rmdir()

    first, second = releases.start(), releases.start()

    assert Path.cwd().name == "2"
    assert (Path(first.gone).name, second.gone) == ("1", "")


def test_a_release_that_is_removed_during_its_roll_gives_way_to_none(stage: Stage, place: Place) -> None:
    place.move("2")
    begin_roll(stage)
    place.move("3")
    (place.directory / "2").rmdir()

    with pytest.raises(ApplicationError, match="2 is gone"):
        stage.restart.enter_release()
    fail(stage)
    assert entered(stage) == "1"


def test_a_process_is_said_to_have_the_release_that_it_gets_and_its_generation(stage: Stage, place: Place) -> None:
    def what() -> tuple[str, int, str]:
        start = stage.restart.enter_release()
        return Path(start.release).name, start.generation, Path(start.wanted).name

    assert what() == ("1", 0, "")
    place.move("2")
    assert what() == ("1", 0, "2")

    begin_roll(stage)
    assert what() == ("2", 1, "")
    fail(stage)
    assert what() == ("1", 0, "2")
    begin_roll(stage, "two")
    succeed(stage)
    assert what() == ("2", 2, "")
    place.move("3")
    begin_roll(stage, "three")
    fail(stage)
    assert what() == ("2", 2, "3")


def test_what_was_preloaded_is_what_every_process_has(releases: ReleasePaths, place: Place) -> None:
    releases.preloaded()
    assert releases.why_not_renewed() is None

    place.move("2")
    releases.use(releases.release_for_reload(0))

    start = releases.start()
    assert (Path(start.release).name, Path(start.wanted).name, Path.cwd().name) == ("1", "2", "1")
    assert str(place.directory / "1") in str(releases.why_not_renewed())
    place.move("1")
    assert releases.why_not_renewed() is None


@pytest.mark.parametrize("leads_to", ["", "nowhere", "current"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it_and_harms_nobody_who_is_there(
    stage: Stage, place: Place, leads_to: str
) -> None:
    place.current.unlink()
    if leads_to:
        place.current.symlink_to(place.directory / leads_to)

    assert stage.restart.roll("one") is None
    assert stage.report()[0] == "failed"
    assert stage.state.roll is not None
    assert "current is gone" in stage.state.roll.error
    stage.restart.conclude()
    assert entered(stage) == "1"
