"""Compressed arguments: GitLab's Ruby code reads ours and we read its, and Ruby's pages show such jobs."""

from __future__ import annotations

import pytest

from kiqcluster import Client
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.active_job import WRAPPER, enveloped
from kiqcluster.sidekiq.ruby_json import decode
from tests.interop.browser import Browser
from tests.interop.programs import RubyProgram
from tests.interop.values import ALL_KINDS

pytestmark = pytest.mark.ruby

# The compressor of GitLab, in our words.
COMPRESS = """
require "zlib"; require "base64"
args = JSON.generate(JSON.parse(text))
job = {"class" => "Echo", "args" => [Base64.strict_encode64(Zlib::Deflate.deflate(args, 5))], "compressed" => true,
       "original_job_size_bytes" => args.bytesize, "queue" => "default"}
Sidekiq::Client.push(job)
"""
DECOMPRESS = """
require "zlib"; require "base64"
job = JSON.parse(Sidekiq.redis { |redis| redis.lindex("queue:default", 0) })
Zlib::Inflate.inflate(Base64.strict_decode64(job["args"].first)) if job["compressed"]
"""
TEXT = "x" * 5_000
MAIL = "ActionMailer::MailDeliveryJob"  # pages look into its envelope, so it is not compressed
MAIL_ARGUMENTS = ["UserMailer", "welcome", "deliver_now", {"args": [TEXT]}]
FAR_FUTURE = 4_000_000_000  # epoch seconds


def push(stage, **item):
    config = Config(size_limiter_mode="compress", size_limiter_compression_threshold=1_000, ruby_json="2.6")
    return Client(stage.store, Setup(config=config)).push(item)


def test_ruby_reads_ours(stage, ruby):
    push(stage, **{"class": "Echo", "args": [TEXT, *ALL_KINDS]})

    assert decode(ruby(DECOMPRESS).encode()) == [TEXT, *ALL_KINDS]


def test_we_read_rubys(stage, ruby):
    jid = ruby(COMPRESS, text='["é", 1.5, [{"a": null}], 123456789012345678901234567890]')
    stage.run_cluster("default", "-c", "1")

    assert stage.echo_of(jid)["args"] == ["é", 1.5, [{"a": None}], 123456789012345678901234567890]


def test_rubys_pages_show_them(stage, web_program: RubyProgram, ruby):
    for keys in (
        {"class": "Echo", "args": [TEXT]},
        {"class": WRAPPER, "wrapped": "SyncJob", "args": [enveloped("SyncJob", "default", [TEXT], 1.5)]},
        {"class": WRAPPER, "wrapped": MAIL, "args": [enveloped(MAIL, "default", MAIL_ARGUMENTS, 1.5)]},
    ):
        push(stage, **keys)
        push(stage, **keys, at=FAR_FUTURE)
    for raw in stage.store.call("LRANGE", "queue:default", 0, -1):
        for name in ("retry", "dead"):
            stage.store.call("ZADD", name, FAR_FUTURE, raw)
    browser = Browser(web_program.ask)

    for path in ("/queues/default", "/scheduled", "/retries", "/morgue"):
        page = browser.see(path)
        assert (page.status, "SyncJob" in page.text, "UserMailer#welcome" in page.text) == (200, True, True), path


def test_plain_sidekiq_passes_the_text_as_the_only_argument(stage, ruby_server):
    jid = push(stage, **{"class": "Echo", "args": [TEXT, 2], "queue": "ruby"})

    (argument,) = stage.echo_of(jid)["args"]

    assert argument.startswith("eF")  # base64 of zlib: nothing that Echo can use
