"""The deploy lock: one owner at a time, for as long as a lease."""

from __future__ import annotations

import pytest

from kiqcluster.control.deploy_lock import DeployHeld, DeployLock, default_owner
from kiqcluster.errors import ExitCode, RedisRefused
from kiqcluster.store import Store
from tests.kit import wait_until


@pytest.fixture
def ours(store: Store) -> DeployLock:
    return DeployLock(store, "mira@app-1:100")


@pytest.fixture
def theirs(store: Store) -> DeployLock:
    return DeployLock(store, "juri@app-2:200")


def test_while_one_has_it_another_is_refused_and_told_whose_it_is(ours: DeployLock, theirs: DeployLock) -> None:
    ours.take(60.0)

    with pytest.raises(DeployHeld, match="mira@app-1:100") as caught:
        theirs.take(60.0)

    assert caught.value.exit_code == ExitCode.PIDFILE_HELD
    assert theirs.look().owner == "mira@app-1:100"


def test_its_owner_takes_it_again_and_a_lease_never_gets_shorter_by_that(ours: DeployLock) -> None:
    ours.take(600.0)

    again = ours.take(60.0)

    assert again.before == again.owner == "mira@app-1:100"
    assert 590.0 < again.remaining <= 600.0
    assert ours.take(900.0).remaining > 890.0


def test_it_is_free_once_its_owner_lets_go_and_nobody_else_can(ours: DeployLock, theirs: DeployLock) -> None:
    ours.take(60.0)

    assert theirs.drop().owner == "mira@app-1:100"
    assert ours.drop().owner == ""

    assert theirs.take(60.0).owner == "juri@app-2:200"


def test_whose_owner_has_died_it_ends_with_its_lease(ours: DeployLock, theirs: DeployLock) -> None:
    ours.take(0.05)

    wait_until(lambda: not theirs.look().owner, "the lease to end")

    assert theirs.take(60.0).before == ""
    with pytest.raises(DeployHeld):
        ours.take(60.0)  # whoever comes late finds out


def test_by_force_it_changes_hands_and_says_whose_it_was(ours: DeployLock, theirs: DeployLock) -> None:
    ours.take(60.0)

    assert theirs.take(60.0, force=True).before == "mira@app-1:100"

    with pytest.raises(DeployHeld, match="juri@app-2:200"):
        ours.take(60.0)


def test_a_key_of_another_type_is_refused_as_what_it_is(ours: DeployLock, store: Store) -> None:
    store.call("RPUSH", store.keys.deploy, "x")

    for operation in (lambda: ours.take(60.0), ours.drop):
        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            operation()


def test_the_steps_of_one_script_have_one_owner() -> None:
    assert default_owner() == default_owner()
