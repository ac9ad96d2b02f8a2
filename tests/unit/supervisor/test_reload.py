"""What a reload says of settings that have changed: heeded, or waiting for a roll or a new supervisor."""

from __future__ import annotations

import dataclasses

from kiqcluster.config import Config, settings
from kiqcluster.supervisor.reload import AT_ONCE, FIXED, unheeded

OLD = Config()


def test_what_is_heeded_at_once_waits_for_nothing() -> None:
    new = dataclasses.replace(OLD, timeout=5.0, concurrency=7, max_jobs=100)

    assert unheeded(OLD, new) == ([], [])


def test_what_a_worker_has_from_its_birth_waits_for_a_roll() -> None:
    assert unheeded(OLD, dataclasses.replace(OLD, max_retries=3)) == ([], ["max_retries"])


def test_what_is_read_once_waits_for_a_new_supervisor() -> None:
    assert unheeded(OLD, dataclasses.replace(OLD, listen="off")) == (["listen"], [])


def test_every_setting_is_in_one_list_at_most() -> None:
    names = {each.name for each in settings()}

    assert not AT_ONCE & FIXED
    assert names >= AT_ONCE | FIXED
