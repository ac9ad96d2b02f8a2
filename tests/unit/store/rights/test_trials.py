"""The list of commands that a worker needs is what its scripts call, and what the documentation allows."""

from __future__ import annotations

import re

import pytest

from kiqcluster.store import scripts
from kiqcluster.store.rights.trials import WORKER_COMMANDS
from kiqcluster.store.scripts import Script
from tests.kit import ROOT

WORKER_SCRIPTS = (
    "JOIN",
    "REGISTER_HANDS",
    "STALE_HANDS",
    "RETURN_WAKE_LISTS",
    "ONCE",
    "BEGIN",
    "RELEASE",
    "RESERVE",
    "SETTLE",
    "RESYNC",
    "RECOVER",
    "BEAT",
    "SEND_PARKED",
    "MOVE_ENTRIES",
    "DUE",
    "TRIM_DEAD",
)
OPTIONAL = {"COMMAND|INFO", "INFO", "PING", "SELECT", "ROLE", "WAIT", "CLIENT|SETINFO", "CLIENT|ID", "CLIENT|KILL"}
CALL = re.compile(r"p?call\((?:redis\.call, )?'([A-Z]+)'")


@pytest.mark.parametrize("name", WORKER_SCRIPTS)
def test_every_command_of_a_workers_script_is_tried_at_boot(name: str) -> None:
    script: Script = getattr(scripts, name)

    assert set(CALL.findall(script.text)) - WORKER_COMMANDS.keys() == set()


def test_the_user_of_the_documentation_has_exactly_these_rights() -> None:
    (line,) = re.findall(
        r"^ACL SETUSER worker [^\\]*(?:\\\n[^\\`]*)*$", (ROOT / "docs/guides/secure_redis.md").read_text(), re.MULTILINE
    )

    commands = {word[1:].upper() for word in line.split() if word.startswith("+")}

    assert commands - OPTIONAL == WORKER_COMMANDS.keys()
