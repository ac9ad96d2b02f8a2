"""Encrypted arguments: Ruby's pages say that they are, and a process of Ruby gets nothing that it could use."""

from __future__ import annotations

import base64

import pytest

from kiqcluster import Client
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from tests.interop.browser import Browser
from tests.interop.programs import RubyProgram
from tests.kit import require_module

require_module("cryptography")
pytestmark = pytest.mark.ruby

KEY, SECRET = base64.b64encode(b"k" * 32).decode(), "hunter2"
FAR_FUTURE = 4_000_000_000  # epoch seconds


def push(stage, **item):
    config = Config(encryption_keys=f"1:{KEY}", ruby_json="2.6")
    payload = {"class": "Echo", "args": ["ann", SECRET], "encrypt": True, **item}
    return Client(stage.store, Setup(config=config)).push(payload)


def test_rubys_pages_show_that_it_is_encrypted_and_not_the_text(stage, web_program: RubyProgram, ruby):
    push(stage)
    push(stage, at=FAR_FUTURE)
    (raw,) = stage.store.call("LRANGE", "queue:default", 0, -1)
    for name in ("retry", "dead"):
        stage.store.call("ZADD", name, FAR_FUTURE, raw)
    browser = Browser(web_program.ask)

    for path in ("/queues/default", "/scheduled", "/retries", "/morgue"):
        text = browser.see(path).text
        assert ("[encrypted data]" in text, SECRET in text) == (True, False), path
    assert ruby("Sidekiq::Queue.new.first.display_args") == ["ann", "[encrypted data]"]


def test_plain_sidekiq_passes_the_stored_text(stage, ruby_server):
    jid = push(stage, queue="ruby")

    name, text = stage.echo_of(jid)["args"]

    assert name == "ann"
    assert SECRET.encode() not in base64.b64decode(text)
