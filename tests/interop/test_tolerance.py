"""What we write has, field by field, the types on which the pages of some Sidekiq break when they are others.

A table has every field of every structure: one that is new fails until it is in here.
"""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest

from kiqcluster import Client
from kiqcluster.api import Queue, WorkSet
from kiqcluster.sidekiq.ruby_json import decode
from tests.apps.interop import Echo, fragile, held
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = pytest.mark.ruby


def is_text(value):
    return isinstance(value, str) and value != ""


def is_time(value):
    """Float seconds: the one form that 6.4, 7 and 8 all read right."""
    return type(value) is float and 1.5e9 < value < 1e10


def is_count(value):
    return type(value) is int and value >= 0


def is_flag(value):
    return type(value) is bool


def is_names(value):
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_jid(value):
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{24}", value) is not None


def is_backtrace(value):
    return is_names(json.loads(zlib.decompress(base64.b64decode(value, validate=True))))


def is_weights(value):
    return isinstance(value, dict) and all(is_count(each) for each in value.values())


def is_capsules(value):
    return all(
        is_count(each["concurrency"])
        and each["mode"] in ("strict", "weighted", "random")
        and is_weights(each["weights"])
        for each in value.values()
    )


def is_digits(value):
    return re.fullmatch("[0-9]+", value) is not None


def is_decimal(value):
    return re.fullmatch(r"[0-9]{10}\.[0-9]+", value) is not None


def is_object(value):
    return isinstance(json.loads(value), dict)


JOB = {
    "class": is_text,
    "args": lambda value: isinstance(value, list),
    "jid": is_jid,
    "queue": is_text,
    "retry": lambda value: is_flag(value) or is_count(value),
    "created_at": is_time,
}
OPTIONS = {"tags": is_names, "backtrace": lambda value: is_flag(value) or is_count(value)}
FAILURE = {
    "retry_count": is_count,
    "failed_at": is_time,
    "error_class": is_text,
    "error_message": lambda value: isinstance(value, str),
    "error_backtrace": is_backtrace,
}
QUEUED = {"enqueued_at": is_time}
STRUCTURES = {
    "job in a queue": {**JOB, **QUEUED, **OPTIONS},
    "job of a bulk push": {**JOB, **QUEUED, "backtrace": OPTIONS["backtrace"]},
    "scheduled job": {**JOB, **OPTIONS},
    "job that failed": {**JOB, **QUEUED, **OPTIONS, **FAILURE},
    "job that failed twice": {**JOB, **QUEUED, **OPTIONS, **FAILURE, "retried_at": is_time},
    "dead job": {**JOB, **QUEUED, **OPTIONS, **FAILURE},
    "job of an unknown class": {**JOB, "deferred": is_flag, "deferred_by": is_text, "deferred_count": is_count},
    "bytes that were no job": {
        **JOB,
        **{key: FAILURE[key] for key in FAILURE if key != "error_backtrace"},
        "kiq_wrapped": lambda value: value in ("text", "base64"),
    },
    "process": {
        "info": is_object,
        "busy": is_digits,
        "beat": is_decimal,
        "quiet": lambda value: value in ("true", "false"),
        "rss": is_digits,
        "rtt_us": is_digits,
        "concurrency": is_digits,
        "kiq_cluster": is_object,
        "kiq_supervisor": lambda value: re.fullmatch(r"[0-9.]+ .+:[0-9]+:[0-9a-f]+", value) is not None,
    },
    "info of a process": {
        "hostname": is_text,
        "started_at": is_time,
        "pid": is_count,
        "tag": lambda value: isinstance(value, str),
        "concurrency": is_count,
        "queues": is_names,
        "weights": lambda value: isinstance(value, list) and all(map(is_weights, value)),
        "labels": is_names,
        "identity": lambda value: re.fullmatch(r".+:[0-9]+:[0-9a-f]{12}", value) is not None,
        "version": is_text,
        "embedded": is_flag,
        "capsules": is_capsules,
        "application": lambda value: isinstance(value, str),
        "cron": is_text,
    },
    "running job": {"queue": is_text, "payload": is_object, "run_at": is_count},
}
FIELDS = [(structure, field) for structure, fields in STRUCTURES.items() for field in fields]


@pytest.fixture(scope="module")
def written(shared_stage, ruby):
    """Have a real cluster and a real client write each of STRUCTURES."""
    store = shared_stage.store
    options = {"tags": ["vip", "é"], "backtrace": True}
    once, twice, dead = (fragile.set(**options, **more).perform_async(*ALL_KINDS) for more in ({}, {}, {"retry": 0}))
    wait_until(lambda: store.call("ZCARD", "retry") == 2 and store.call("ZCARD", "dead") == 1, "the failures")
    failed_once = shared_stage.entries("retry")[once]  # now: it soon runs again
    ruby("Sidekiq::RetrySet.new.find_job(jid).reschedule(1)", jid=twice)
    wait_until(lambda: shared_stage.entries("retry").get(twice, {}).get("retry_count") == 1, "the second failure")
    unknown = Client().push({"class": "Never::Heard", "args": [1]})
    store.call("LPUSH", "queue:default", b"certainly not JSON")
    wait_until(lambda: store.call("ZCARD", "dead") == 2, "the bytes to be buried")
    wait_until(lambda: unknown in shared_stage.entries("schedule"), "the unknown class to be put off")
    later = Echo.set(**options).perform_in(3_600, *ALL_KINDS)
    waiting = Echo.set(queue="waiting", **options).perform_async(*ALL_KINDS)
    fragile.set(queue="bulk").perform_bulk([ALL_KINDS])
    held_jid = held.perform_async(*ALL_KINDS)
    wait_until(lambda: store.call("LLEN", "began"), "a job to run")
    ruby("Sidekiq::ProcessSet.new.each(&:dump_threads)")  # any signal is followed by a beat
    running = wait_until(lambda: WorkSet(store=store).find_work(held_jid), "it to show", seconds=5)
    busy = f"{running.identity}:work".encode()
    hashes = {key: store.call("HGETALL", key) for key in (busy, busy + b"ers", busy.removesuffix(b":work"))}
    fields = {key: dict(zip(flat[::2], flat[1::2], strict=True)) for key, flat in hashes.items()}
    process = {key.decode(): value.decode() for key, value in fields[busy.removesuffix(b":work")].items()}
    lives = {key: store.call("TTL", key) for key in hashes}
    store.call("RPUSH", "release", "now")
    in_dead = shared_stage.entries("dead")
    return {
        "job in a queue": next(each.payload for each in Queue("waiting") if each.jid == waiting),
        "job of a bulk push": next(iter(Queue("bulk"))).payload,
        "scheduled job": shared_stage.entries("schedule")[later],
        "job that failed": failed_once,
        "job that failed twice": shared_stage.entries("retry")[twice],
        "dead job": in_dead[dead],
        "job of an unknown class": shared_stage.entries("schedule")[unknown],
        "bytes that were no job": next(each for each in in_dead.values() if each["jid"] != dead),
        "process": process,
        "info of a process": json.loads(process["info"]),
        "running job": json.loads(next(iter(fields[busy].values()))),
        "the same for 6.4.1": json.loads(next(iter(fields[busy + b"ers"].values()))),
        "lives": lives,
    }


@pytest.mark.parametrize(("structure", "field"), FIELDS)
def test_what_we_write_has_the_type_that_every_version_reads(structure, field, written):
    assert STRUCTURES[structure][field](written[structure][field]), written[structure][field]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_field_that_we_write_is_in_the_table(structure, written):
    assert written[structure].keys() == STRUCTURES[structure].keys()


def test_a_running_job_is_written_under_both_names(written):
    assert written["running job"] == written["the same for 6.4.1"]
    assert decode(written["running job"]["payload"].encode()).keys() >= JOB.keys()


def test_what_a_process_writes_about_itself_goes_with_it(written):
    assert all(0 < seconds <= 60 for seconds in written["lives"].values())
