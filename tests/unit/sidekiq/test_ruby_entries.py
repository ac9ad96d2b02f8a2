"""Entries that Ruby can show and enqueue: what breaks it, and that a payload of others is never mended."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from kiqcluster.errors import MalformedPayload
from kiqcluster.sidekiq import backtraces
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, WRAPPERS, bare, read
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby, misfits
from kiqcluster.sidekiq.ruby_json import decode, encode
from tests.shapes import BREAKING, KEYS, SHAPES

NOW = 1_795_168_740.5
SOUND: dict[str, Any] = {
    "retry": True,
    "queue": "default",
    "args": [],
    "class": "X",
    "jid": "0" * 24,
    "created_at": NOW,
    "enqueued_at": 1_795_168_815_271,
    "failed_at": NOW,
    "retried_at": NOW,
    "retry_count": 3,
    "tags": ["a"],
    "error_class": "E",
    "error_message": "",
    "error_backtrace": backtraces.encode(["a:1:in 'f'"]),
}
RAW = encode(SOUND)
ENVELOPE = {**SOUND, "class": WRAPPERS[1], "wrapped": "SyncJob", "args": [{"arguments": [1]}]}
MAIL = "ActionMailer::MailDeliveryJob"


class TestMisfits:
    def test_a_payload_that_every_page_shows_has_none(self) -> None:
        assert misfits(SOUND) == misfits(ENVELOPE) == []

    @pytest.mark.parametrize("key", KEYS)
    def test_a_key_is_one_in_the_shapes_on_which_a_page_of_real_ruby_broke(self, key: str) -> None:
        sound = {**SOUND, "args": [1]}
        found = {shape for shape, text in SHAPES.items() if misfits({**sound, key: decode(text.encode())}) == [key]}

        assert found == BREAKING.get(key, set())

    @pytest.mark.parametrize(("value", "fits"), [(None, True), (False, True), (True, False), (0, False), ("", False)])
    def test_pages_mask_the_last_argument_of_an_encrypted_job(self, value: Any, fits: bool) -> None:
        assert misfits({**SOUND, "args": [1], "encrypt": value}) == []
        assert misfits({**SOUND, "encrypt": value}) == ([] if fits else ["encrypt"])

    @pytest.mark.parametrize("key", ["class", "args"])
    def test_what_rubys_client_needs_must_be_there(self, key: str) -> None:
        assert misfits({name: value for name, value in SOUND.items() if name != key}) == [key]

    @pytest.mark.parametrize("value", [1_000_000_001, 10**400, 1e300])
    def test_a_window_for_retries_beyond_rubys_limit_is_one(self, value: float) -> None:
        assert misfits({**SOUND, "retry_for": value}) == ["retry_for"]

    @pytest.mark.parametrize(
        "broken",
        [
            "é",
            base64.b64encode(b"x").decode(),
            base64.b64encode(zlib.compress(b"{")).decode(),
            base64.b64encode(zlib.compress(b"[1]")).decode(),
            base64.b64encode(zlib.compress(b'{"a":1}')).decode(),
        ],
    )
    def test_a_text_that_is_no_backtrace_is_one(self, broken: str) -> None:
        assert misfits({**SOUND, "error_backtrace": broken}) == ["error_backtrace"]

    @pytest.mark.parametrize(
        ("wrapped", "arguments", "fits"),
        [
            ("SyncJob", [{}], True),
            ("SyncJob", [{"arguments": None}], True),
            ("SyncJob", ["compressed"], True),
            ("SyncJob", [5], False),
            ("SyncJob", [["x"]], False),
            ("SyncJob", [], False),
            ("", [], False),
            (None, [], True),
            (False, [5], True),
            (None, [MAIL], False),
            (MAIL, [{"arguments": ["M", "m", "d", {"args": [1]}]}], True),
            (MAIL, [{"arguments": ["M", "m", "d", {"_aj_globalid": "gid://x"}]}], False),
            (MAIL, [{"arguments": ["M", "m", "d", 5]}], False),
            (MAIL, [{"arguments": ["M", "m", "d"]}], False),
            (MAIL, [{"arguments": "x"}], False),
            (MAIL, ["compressed"], False),
            ("ActionMailer::DeliveryJob", [{"arguments": [1]}], True),
            ("ActionMailer::DeliveryJob", [{"arguments": None}], False),
        ],
    )
    def test_pages_look_into_envelopes(self, wrapped: Any, arguments: list[Any], fits: bool) -> None:
        assert misfits({**ENVELOPE, "wrapped": wrapped, "args": arguments}) == ([] if fits else ["wrapped"])


class TestEntry:
    def test_one_that_every_page_shows_has_its_bytes_and_the_changes(self) -> None:
        assert entry_for_ruby(RAW, {}, "mails") == RAW
        assert entry_for_ruby(
            b'{"class":"X","args":[1.50],"jid":"a","queue":"q","at":1}', {"n": 1}, "mails", ["at"]
        ) == (b'{"class":"X","args":[1.50],"jid":"a","queue":"q","n":1}')

    @pytest.mark.parametrize(("key", "supplied"), [("queue", "mails"), ("args", [])])
    @pytest.mark.parametrize("unset", ["missing", None])
    def test_what_a_payload_leaves_unset_is_supplied(self, key: str, supplied: Any, unset: Any) -> None:
        payload = {name: value for name, value in SOUND.items() if name != key}
        raw = encode(payload if unset == "missing" else {**payload, key: unset})

        assert decode(entry_for_ruby(raw, {}, "mails")) == {**payload, key: supplied}

    @pytest.mark.parametrize("unset", [None, ""])
    def test_a_jid_is_supplied_for_without_one_an_entry_cannot_be_reached(self, unset: Any) -> None:
        payload = decode(entry_for_ruby(encode({**SOUND, "jid": unset}), {}, "mails"))

        assert len(payload["jid"]) == 24

    def test_a_queue_that_no_text_names_is_where_the_job_was(self) -> None:
        assert decode(entry_for_ruby(encode({**SOUND, "queue": 5}), {}, "mails"))["queue"] == "mails"

    @pytest.mark.parametrize(
        "odd",
        [b'"tags":"vip"', b'"cattr":"x"', b'"x":1e400', b'"x":"\\ud800"', b'"x":' + b"[" * 200 + b"]" * 200],
        ids=lambda odd: odd[:12].decode(),
    )
    def test_a_payload_that_would_break_a_page_is_kept_whole_with_what_pages_show(self, odd: bytes) -> None:
        raw = RAW[:-1] + b"," + odd + b"}"

        entry = entry_for_ruby(raw, {"error_message": "again"}, "mails")

        shown = decode(entry)
        assert misfits(shown) == []
        assert shown["class"] == INVALID_PAYLOAD
        assert (shown["display_class"], shown["jid"], shown["queue"]) == ("X", SOUND["jid"], "default")
        assert (shown["error_message"], shown["retry_count"], shown["failed_at"]) == ("again", 3, NOW)
        assert bare(entry) == raw.replace(b'"error_message":""', b'"error_message":"again"')
        assert read(entry)["class"] == "X"

    @pytest.mark.parametrize("time", ['"enqueued_at":"1700000000.123"', '"at":"soon"', '"at":null'])
    def test_times_that_the_next_push_sets_are_left_out_where_they_would_break_a_page(self, time: str) -> None:
        raw = b'{"class":"X","args":[1.50],"jid":"a","queue":"q"}'

        assert entry_for_ruby(raw[:-1] + f",{time}}}".encode(), {}, "mails") == raw

    @pytest.mark.parametrize("key", ["created_at", "failed_at", "retried_at", "retry_count"])
    def test_times_and_counts_of_earlier_runs_are_kept(self, key: str) -> None:
        raw = encode({**SOUND, key: "3"})

        assert bare(entry_for_ruby(raw, {}, "mails")) == raw

    def test_once_it_fits_it_is_kept_no_longer(self) -> None:
        entry = entry_for_ruby(encode({**SOUND, "tags": "vip"}), {}, "mails")

        assert entry_for_ruby(entry, {"tags": ["vip"]}, "mails") == encode({**SOUND, "tags": ["vip"]})

    def test_an_encrypted_argument_stays_masked(self) -> None:
        entry = entry_for_ruby(encode({**SOUND, "args": [1], "encrypt": True, "tags": "vip"}), {}, "mails")

        assert decode(entry)["encrypt"] is True

    @pytest.mark.parametrize("raw", [b"", b"{", b"123", b"[]", b"\xff"])
    def test_bytes_that_are_no_object_are_malformed(self, raw: bytes) -> None:
        with pytest.raises(MalformedPayload):
            entry_for_ruby(raw, {}, "mails")
