"""kiqctl kill: a job that is between two runs when it is looked for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kiqcluster.control.control_messages import Message
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.control.transports import Answer
from kiqcluster.ctl.fleet import steer

JID = "6f1d22b3a9c04e7f8a51d0c2"


def asked(monkeypatch: pytest.MonkeyPatch, *errors: str | None) -> tuple[int, list[str]]:
    """Return the exit code of a kill that gets these answers, and for which jids it asked."""
    answers, jids = list(errors), list[str]()

    def send(_: SocketTransport, message: Message) -> list[Answer]:
        jids.append(message.jid)
        return [Answer("app-1", answers.pop(0))]

    monkeypatch.setattr(SocketTransport, "send", send)
    monkeypatch.setattr(SocketTransport, "running", lambda _: [])
    monkeypatch.setattr(SocketTransport, "statuses", lambda _: {})
    monkeypatch.setattr(steer, "RETRY_SECONDS", 0.0)
    done = CliRunner().invoke(steer.kill, [JID, "--socket", "/run/kiqcluster.sock"])
    return done.exit_code, jids


def test_a_job_whose_process_has_just_died_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, f"runs no job {JID}", None) == (0, [JID, JID])


def test_one_that_runs_nowhere_for_a_while_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steer, "BETWEEN_RUNS_SECONDS", -1.0)

    assert asked(monkeypatch, f"runs no job {JID}") == (1, [JID])
