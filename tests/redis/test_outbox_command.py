"""The command `python -m kiqcluster.contrib.outbox`: what it shows, and what it does with refused rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sql
from click.testing import CliRunner, Result
from sqlalchemy.orm import Session

from kiqcluster import Client, job
from kiqcluster.contrib.outbox.__main__ import outbox as command
from kiqcluster.contrib.sqlalchemy import outbox
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.store.shards import Shard

APPLICATION = """
from kiqcluster import job
from kiqcluster.contrib.sqlalchemy import use_outbox

use_outbox({url!r})


@job
def known() -> None: ...
"""


@pytest.fixture
def application(tmp_path: Path, database: sql.Engine) -> str:
    path = tmp_path / f"application_of_{tmp_path.name}.py"  # a process imports a name once
    path.write_text(APPLICATION.format(url=database.url.render_as_string(hide_password=False)))
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words)


@pytest.mark.usefixtures("registry")
def test_it_shows_what_waits_and_tries_it_again(
    application: str, database: sql.Engine, store: Store, setup: Setup
) -> None:
    setup.store = store

    @job
    def ship(order: int) -> None: ...

    assert run("-r", application, "status").output == "default: 0 waiting; 0 with a problem\n"
    with Session(database) as session, session.begin():
        outbox(session, ship, push_after_commit=False).perform_bulk([[1], [2]])
    store.call("SET", "queue:default", "no list")

    once = run("-r", application, "relay", "--once")
    assert (once.exit_code, "default: 2 still wait, 2 with a problem" in once.output) == (1, True)
    said = run("-r", application, "status").output
    assert "default: 2 waiting, the oldest for" in said
    assert "; 2 with a problem" in said
    assert "WRONGTYPE" in said

    store.call("DEL", "queue:default")
    assert run("-r", application, "retry").output == "default: 2 rows\n"
    assert run("-r", application, "relay", "--once").exit_code == 0
    assert store.call("LLEN", "queue:default") == 2


@pytest.mark.usefixtures("registry")
def test_it_names_shards_that_do_not_answer(application: str, database: sql.Engine, store: Store, setup: Setup) -> None:
    setup.store, setup.config = store, Config(shards=(Shard("far", "redis://127.0.0.1:1/0"),))

    @job
    def ship(order: int) -> None: ...

    with Session(database) as session, session.begin(), Client.via("far"):
        outbox(session, ship, push_after_commit=False).perform_bulk([[1], [2]])

    status, once = run("-r", application, "status"), run("-r", application, "relay", "--once")
    assert (status.exit_code, once.exit_code) == (0, 1)
    assert "2 still wait, 0 with a problem" in once.output
    for said in (status.output, once.output):
        assert "the shard 'far' does not answer" in said
        assert "'default' does not" not in said


@pytest.mark.usefixtures("setup", "registry")
def test_it_needs_an_application_with_an_outbox(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from kiqcluster import job\n\n\n@job\ndef known() -> None: ...\n")
    said = run("-r", str(tmp_path / "bare.py"), "status")
    assert said.exit_code != 0
    assert "declares no outbox" in said.output
