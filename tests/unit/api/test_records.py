"""Records: what any Sidekiq wrote is read, and nothing that lies in Redis makes reading raise."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kiqcluster.api import JobRecord
from kiqcluster.sidekiq import backtraces, ruby_json
from kiqcluster.sidekiq.payload import WRAPPERS, wrap

NOW = 1_795_168_740.5


def record(place: str | None = None, **payload: Any) -> JobRecord:
    return JobRecord(ruby_json.encode(payload), place)


def everything(job: JobRecord) -> dict[str, Any]:
    """Return every property of a record."""
    names = [name for kind in type(job).__mro__ for name, value in vars(kind).items() if isinstance(value, property)]
    return {name: getattr(job, name) for name in names}


def test_a_record_says_what_the_payload_says() -> None:
    job = record(
        **{"class": "Mail", "args": [1, {"a": None}], "jid": "a1", "queue": "mailers", "retry_count": 2},
        tags=["x", "y"],
        error_class="ValueError",
        error_message="no",
        bid="b",
    )

    assert (job.is_job, job.name, job.display_class, job.jid, job.queue) == (True, "Mail", "Mail", "a1", "mailers")
    assert job.args == job.display_args == [1, {"a": None}]
    assert (job.retry_count, job.tags, job.error_class, job.error_message) == (2, ["x", "y"], "ValueError", "no")
    assert (job["bid"], job["unheard of"]) == ("b", None)


def test_the_queue_where_it_was_found_counts() -> None:
    assert record("found", queue="named").queue == "found"
    assert record(None, queue="named").queue == "named"
    assert record(None, queue=5).queue == ""


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (NOW, NOW),  # to 7
        (1_795_168_740_500, NOW),  # from 8 on
        (1_795_168_740, 1_795_168_740.0),  # foreign clients
        ("2026-11-20T12:39:00Z", None),
        (None, None),
        (True, None),
        (-5, None),
        ([], None),
    ],
)
@pytest.mark.parametrize("name", ["created_at", "enqueued_at", "failed_at", "retried_at"])
def test_times_of_every_version_are_epoch_seconds(name: str, stored: Any, expected: float | None) -> None:
    assert getattr(record(**{name: stored}), name) == expected


@pytest.mark.parametrize(
    ("payload", "latency"),
    [
        ({"enqueued_at": NOW - 7, "created_at": NOW - 90}, 7.0),
        ({"enqueued_at": 1_795_168_730_500}, 10.0),
        ({"created_at": NOW - 90}, 90.0),
        ({"enqueued_at": NOW + 5}, 0.0),  # another host's clock
        ({"enqueued_at": "yesterday"}, 0.0),
        ({}, 0.0),
    ],
)
def test_latency_is_how_long_it_has_waited(payload: dict[str, Any], latency: float) -> None:
    assert record(**payload).latency(NOW) == latency


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_active_jobs_are_shown_without_their_envelope(wrapper: str) -> None:
    envelope = {"job_class": "SampleJob", "arguments": [1, {"_aj_globalid": "gid://shop/User/5"}]}
    job = record(**{"class": wrapper, "wrapped": "SampleJob", "args": [envelope], "queue": "default"})

    assert job.name == wrapper
    assert job.args == [envelope]
    assert job.display_class == "SampleJob"
    assert job.display_args == [1, "gid://shop/User/5"]


def test_a_mail_is_shown_as_mailer_and_method() -> None:
    arguments = ["UserMailer", "welcome", "deliver_now", {"args": [5]}]
    envelope = {"job_class": "ActionMailer::MailDeliveryJob", "arguments": arguments}
    job = record(**{"class": WRAPPERS[0], "wrapped": "ActionMailer::MailDeliveryJob", "args": [envelope]})

    assert job.display_class == "UserMailer#welcome"


def test_a_payload_may_name_itself() -> None:
    assert record(**{"class": "X", "display_class": "Import of March", "args": []}).display_class == "Import of March"


def test_an_encrypted_argument_is_masked_and_stays_as_it_is() -> None:
    job = record(**{"class": "X", "args": [1, "BAhTOhFTaWRla2lx"], "encrypt": True})

    assert job.display_args == [1, "[encrypted data]"]
    assert job.args == [1, "BAhTOhFTaWRla2lx"]
    assert record(**{"class": "X", "args": [], "encrypt": True}).display_args == []


@pytest.mark.parametrize("raw", [b"", b"not json", b"123", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_bytes_that_are_no_object_are_shown_as_the_only_argument(raw: bytes) -> None:
    job = JobRecord(raw, "default")

    assert not job.is_job
    assert job.payload == {}
    assert job.args == job.display_args == [raw.decode(errors="replace")]
    assert job.display_class == "(no job)"
    assert (job.name, job.jid, job.queue) == ("", "", "default")


def test_an_object_that_names_no_class_is_no_job_but_says_the_rest() -> None:
    job = record(jid="a1", args=[5])

    assert not job.is_job
    assert (job.jid, job.args, job.display_class) == ("a1", [5], "(no job)")


def test_bytes_that_were_wrapped_for_the_dead_set_are_shown_with_their_reason() -> None:
    job = JobRecord(wrap(b"not json", "mailers", ValueError("no JSON"), NOW))

    assert job.args == ["not json"]
    assert (job.queue, job.error_class, job.error_message, job.failed_at) == ("mailers", "ValueError", "no JSON", NOW)


LINES = ["a.rb:1:in `x'", "ü.py:2:in 'y'"]


@pytest.mark.parametrize(
    ("stored", "lines"),
    [
        (backtraces.encode(LINES), LINES),
        (base64.encodebytes(zlib.compress(json.dumps(LINES * 99).encode())).decode(), LINES * 99),  # 6.4: line breaks
        (LINES, LINES),  # before 6.0.1
        ([1, "a"], ["a"]),
        (None, []),
        ("garbage", []),
        ("\ud800", []),
        (5, []),
        (base64.b64encode(zlib.compress(b'["x"]')[:-3]).decode(), []),
        (base64.b64encode(b"\x04\x08[\x06I").decode(), []),  # Ruby's Marshal, from before 5
    ],
)
def test_backtraces_of_every_version_are_lines(stored: Any, lines: list[str]) -> None:
    assert record(error_backtrace=stored).error_backtrace == lines


def test_a_backtrace_that_would_fill_the_memory_is_none() -> None:
    bomb = base64.b64encode(zlib.compress(b'["' + b"x" * 20_000_000 + b'"]')).decode()

    assert record(error_backtrace=bomb).error_backtrace == []


ODD = [None, True, 5, -1, 2**70, 10**5_000, 1.5, 1e308, "", "x", "\ud800", [], [None], ["x", 5], {}, {"a": {"b": []}}]
KEYS = [
    *("class", "args", "jid", "queue", "tags", "wrapped", "display_class", "encrypt", "retry_count", "error_class"),
    *("error_message", "error_backtrace", "created_at", "enqueued_at", "failed_at", "retried_at"),
]


@given(some.dictionaries(some.sampled_from(KEYS), some.sampled_from([*ODD, *WRAPPERS])))
def test_no_payload_makes_reading_raise(payload: dict[str, Any]) -> None:
    job = record(**payload)

    shown = everything(job)

    assert isinstance(shown["args"], list)
    assert isinstance(shown["display_args"], list)
    assert isinstance(job.latency(NOW), float)
    assert repr(job)


def test_an_id_of_more_digits_than_python_prints_is_read() -> None:
    assert record(jid=10**5_000).jid == "1" + 5_000 * "0"


@given(some.binary())
def test_no_bytes_make_reading_raise(raw: bytes) -> None:
    job = JobRecord(raw)

    assert everything(job)["tags"] == []
    assert repr(job)
    assert job == JobRecord(raw)


def test_records_of_the_same_bytes_and_place_are_equal() -> None:
    assert record("q", jid="a") == record("q", jid="a")
    assert record("q", jid="a") != record("r", jid="a")
    assert record("q", jid="a") != record("q", jid="b")
    assert len({record("q", jid="a"), record("q", jid="a")}) == 1


def test_a_number_that_takes_long_to_decode_is_not_decoded() -> None:
    digits = b"9" * 300_000

    assert JobRecord(b'{"class":"Send","args":[' + digits + b"]}").payload == {}
    assert JobRecord(b'{"class":"Send","args":[' + digits[:25_000] + b"]}").name == "Send"


@pytest.mark.parametrize(
    "arguments", [b"[" + b"[]," * 1_000_000 + b"0]", b"[" + b"9" * 300_000 + b"]"], ids=["values", "digits"]
)
def test_compressed_arguments_that_would_fill_the_memory_are_not_shown(arguments: bytes) -> None:
    stored = base64.b64encode(zlib.compress(arguments)).decode()
    job = record(**{"class": "X", "args": [stored], "compressed": True})

    (shown,) = job.display_args
    assert shown.startswith("[compressed: ")
    assert job.payload["args"] == [stored]
