"""Encrypted arguments: what is stored, who sees it, and how it goes with the other guarantees."""

from __future__ import annotations

import base64
import logging
import threading
import time
from random import Random
from typing import Any

import pytest

from kiqcluster import Client, current_job, job
from kiqcluster.api import Queue
from kiqcluster.application.registry import Registry
from kiqcluster.client.reenqueue import enqueued
from kiqcluster.errors import EncryptionError, InvalidArguments, InvalidPush, JobDefinitionError
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.compression import decompressed
from kiqcluster.sidekiq.outcome import Dead, Deferred, Done, Outcome, Retry
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.testing import enqueued as enqueued_jobs
from kiqcluster.testing import fake, inline
from kiqcluster.worker.run.endings import DEFERRAL_SECONDS, MAX_DEFERRALS
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import require_module
from tests.redis.kiqctl import Kiqctl
from tests.redis.test_client import payloads

require_module("cryptography")
FIRST, SECOND = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SECRET = "hunter2"


@pytest.fixture
def sealing(setup: Setup) -> Setup:
    setup.config = Config(encryption_keys=f"1:{FIRST}")
    return setup


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def login(sealing: Setup, seen: list[Any]) -> Any:
    @job(encrypt=True)
    def login(user: str, password: str = "") -> None:
        seen.append((user, password))

    return login


class Worker:
    """Runs what was stored, and keeps all that handlers, middleware and the log were told."""

    def __init__(self, setup: Setup, registry: Registry, **config: Any) -> None:
        self.told: list[Any] = []
        setup.error_handler(lambda error, context: self.told.append((str(error), context)))
        setup.death_handler(lambda payload, error: self.told.append((str(error), payload)))
        setup.config = Config(**{"encryption_keys": f"1:{FIRST}", **config})
        events = Events()
        events.listen(lambda event, fields: self.told.append((event, fields)))
        runtime = Runtime(setup.config, setup.current_store(), setup, events, rng=Random(1))
        self.metrics = JobMetrics(1, list)
        self.execution = Execution(runtime, registry, self.metrics, threading.Event())

    def run(self, raw: bytes) -> Outcome:
        return self.execution.execute(JobRun(Unit("default", raw, "token", "me"), 0.0))


def stored(store: Store) -> bytes:
    (raw,) = store.call("LRANGE", "queue:default", 0, -1)
    return raw  # type: ignore[no-any-return]


def test_redis_never_has_the_secret_and_perform_gets_it(
    login: Any, store: Store, setup: Setup, registry: Registry, seen: list[Any]
) -> None:
    login.perform_async("ann", SECRET)
    raw = stored(store)

    outcome = Worker(setup, registry).run(raw)

    assert SECRET.encode() not in raw
    assert base64.b64encode(SECRET.encode())[:8] not in raw
    assert (decode(raw)["args"][0], decode(raw)["encrypt"], decode(raw)["kiq_key_version"]) == ("ann", True, 1)
    assert (type(outcome), seen) == (Done, [("ann", SECRET)])


@pytest.mark.parametrize("push", ["bulk", "in", "by name", "set"])
def test_each_way_of_pushing_encrypts(push: str, login: Any, store: Store) -> None:
    match push:
        case "bulk":
            login.perform_bulk([["ann", SECRET], ["bob", SECRET]])
        case "in":
            login.perform_in(60, "ann", SECRET)
        case "by name":
            Client().push({"class": "elsewhere", "args": ["ann", SECRET], "encrypt": True})
        case "set":
            job(name="plain")(lambda user, word: None).set(encrypt=True).perform_async("ann", SECRET)

    found = [*store.call("LRANGE", "queue:default", 0, -1), *store.call("ZRANGE", "schedule", 0, -1)]

    assert len(found) == (2 if push == "bulk" else 1)
    assert all(SECRET.encode() not in raw and b'"kiq_key_version":1' in raw for raw in found)


def test_only_perform_sees_it(login: Any, store: Store, setup: Setup, registry: Registry, seen: list[Any]) -> None:
    """Middleware, handlers, hooks, the log and current_job() have the stored form."""
    told: list[Any] = []

    @job(name="fails", encrypt=True, retry=0, retries_exhausted=lambda payload, error: told.append(payload))
    def fails(password: str) -> None:
        seen.append(password)
        told.append(getattr(current_job(), "payload", None))
        raise ValueError("on purpose")

    @setup.server_middleware.add
    def look(run: Any, proceed: Any) -> Any:
        told.append(run.payload)
        return proceed()

    fails.perform_async(SECRET)
    worker = Worker(setup, registry)

    outcome = worker.run(stored(store))

    assert (type(outcome), seen) == (Dead, [SECRET])
    assert len(told) == 3
    assert SECRET not in repr((told, worker.told, outcome))


def test_a_retry_stays_encrypted_and_so_does_a_job_that_the_poller_moves(
    login: Any, store: Store, setup: Setup, registry: Registry
) -> None:
    @job(name="fails", encrypt=True)
    def fails(password: str) -> None:
        raise ValueError("on purpose")

    fails.perform_async(SECRET)
    raw = stored(store)

    outcome = Worker(setup, registry).run(raw)
    assert isinstance(outcome, Retry)
    moved = decode(enqueued(setup, outcome.payload, 1.0).new)

    assert moved["args"] == decode(raw)["args"]
    assert (moved["encrypt"], moved["kiq_key_version"]) == (True, 1)


@pytest.mark.parametrize("words", ["", f"2:{SECOND}", f"1:{SECOND}"])
def test_what_cannot_be_decrypted_is_buried_with_its_reason_and_runs_once_the_key_is_there(
    words: str, login: Any, store: Store, setup: Setup, registry: Registry, seen: list[Any]
) -> None:
    login.perform_async("ann", SECRET)
    raw = stored(store)

    outcome = after_waits(Worker(setup, registry, encryption_keys=words), raw, 0 if "1:" in words else MAX_DEFERRALS)

    assert isinstance(outcome, Dead)
    entry = decode(outcome.payload)
    assert entry["error_class"] == "kiqcluster.errors.PayloadDecryptionError"
    assert entry.keys().isdisjoint({"deferred", "deferred_by"})
    assert entry["args"] == decode(raw)["args"]
    assert seen == []
    assert type(Worker(setup, registry).run(outcome.payload)) is Done
    assert seen == [("ann", SECRET)]


def after_waits(worker: Worker, raw: bytes, count: int) -> Outcome:
    """Return what becomes of a job that first has to wait for its key so often."""
    for _ in range(count):
        outcome = worker.run(raw)
        assert isinstance(outcome, Deferred)
        raw = outcome.payload
    return worker.run(raw)


@pytest.mark.parametrize("words", ["", f"2:{SECOND}"])
@pytest.mark.parametrize("has_middleware", [False, True])
def test_a_job_waits_for_a_key_that_its_worker_does_not_have_yet(
    words: str,
    has_middleware: bool,
    login: Any,
    store: Store,
    setup: Setup,
    registry: Registry,
    seen: list[Any],
) -> None:
    """As during a rolling restart, while some workers have the new key."""
    if has_middleware:
        setup.server_middleware.add(lambda _run, proceed: proceed())
    login.perform_async("ann", SECRET)
    raw = stored(store)
    worker = Worker(setup, registry, encryption_keys=words)

    outcome = worker.run(raw)

    assert isinstance(outcome, Deferred)
    entry = decode(outcome.payload)
    assert 0 < outcome.at - time.time() <= DEFERRAL_SECONDS
    assert (entry["deferred_by"], entry["deferred_count"], entry["args"]) == ("unknown_key", 1, decode(raw)["args"])
    assert entry.keys().isdisjoint({"enqueued_at", "retry_count", "error_class"})
    assert (outcome.processed, outcome.failed, seen) == (False, False, [])
    assert [fields["outcome"] for event, fields in worker.told if event == "job_failed"] == ["deferred"]
    assert type(Worker(setup, registry).run(outcome.payload)) is Done
    assert seen == [("ann", SECRET)]


@pytest.mark.parametrize("version", ["1", None, True, 1.0])
def test_a_version_that_is_no_number_is_damage(version: Any, login: Any, setup: Setup, registry: Registry) -> None:
    raw = encode({"class": "login", "args": ["ann", "AAAA"], "encrypt": True, "kiq_key_version": version, "jid": "a"})

    assert isinstance(Worker(setup, registry).run(raw), Dead)


def test_after_a_rotation_old_jobs_run_and_new_ones_have_the_new_key(
    login: Any, store: Store, setup: Setup, registry: Registry, seen: list[Any]
) -> None:
    login.perform_async("ann", SECRET)
    worker = Worker(setup, registry, encryption_keys=f"1:{FIRST} 2:{SECOND}")
    login.perform_async("bob", SECRET)

    for raw in store.call("LRANGE", "queue:default", 0, -1):
        assert type(worker.run(raw)) is Done

    assert [payload["kiq_key_version"] for payload in payloads(store)] == [1, 2]
    assert {user for user, _ in seen} == {"ann", "bob"}


def test_without_keys_a_push_is_refused(setup: Setup, store: Store) -> None:
    setup.config = Config()

    @job(encrypt=True)
    def login(password: str) -> None: ...

    with pytest.raises(EncryptionError, match=r"login has encrypt=True, and there are no encryption\.keys"):
        login.perform_async(SECRET)
    assert store.call("DBSIZE") == 0


def test_a_payload_of_a_class_that_is_not_registered_stays_as_it_is_without_keys(setup: Setup, store: Store) -> None:
    """It may be for a process of Sidekiq Enterprise, and its argument in that form."""
    setup.config = Config()

    Client().push({"class": "elsewhere", "args": ["BAhTOhFTaWRla2lx"], "encrypt": True})

    assert decode(stored(store))["args"] == ["BAhTOhFTaWRla2lx"]


def test_an_argument_that_enterprise_has_encrypted_is_passed_as_it_is(
    login: Any, setup: Setup, registry: Registry, seen: list[Any]
) -> None:
    raw = b'{"class":"login","args":["ann","BAhTOhFTaWRla2lx"],"encrypt":true,"jid":"a"}'

    assert type(Worker(setup, registry).run(raw)) is Done
    assert seen == [("ann", "BAhTOhFTaWRla2lx")]


def test_a_job_without_arguments_has_nothing_to_encrypt(login: Any, sealing: Setup, store: Store) -> None:
    @job(encrypt=True)
    def tick() -> None: ...

    tick.perform_async()

    assert "kiq_key_version" not in decode(stored(store))


def test_rails_envelopes_are_refused(sealing: Setup) -> None:
    with pytest.raises(JobDefinitionError, match="encrypt does not go with active_job"):
        job(name="Login", active_job=True, encrypt=True)(lambda password: None)


def test_a_secret_that_is_no_json_is_refused_before(login: Any) -> None:
    with pytest.raises(InvalidArguments):
        login.perform_async("ann", object())


def test_so_is_it_where_arguments_are_not_checked(login: Any, setup: Setup) -> None:
    setup.config = Config(encryption_keys=f"1:{FIRST}", strict_args="off")

    with pytest.raises(InvalidPush, match="login: the payload holds what JSON cannot"):
        login.perform_async("ann", object())


class TestBesideOtherGuarantees:
    @pytest.mark.parametrize("strategy", ["until_executing", "until_executed", "until_and_while_executing"])
    def test_equal_secrets_are_equal_and_others_are_not(self, strategy: Any, sealing: Setup, store: Store) -> None:
        @job(encrypt=True, deduplicate=strategy)
        def login(user: str, password: str) -> None: ...

        first = login.perform_async("ann", SECRET)

        assert login.perform_async("ann", SECRET) == first
        assert login.perform_async("ann", "another") != first

    def test_the_name_of_a_lock_tells_nothing_of_a_secret_that_can_be_guessed(
        self, sealing: Setup, store: Store
    ) -> None:
        @job(deduplicate="until_executed")
        def login(password: str) -> None: ...

        login.perform_async(SECRET)
        login.set(encrypt=True).perform_async(SECRET)

        open_, sealed = sorted(payloads(store), key=lambda payload: "encrypt" in payload)
        assert open_["idempotency_key"] != sealed["idempotency_key"]

    @pytest.mark.parametrize("strategy", ["while_executing", "until_and_while_executing"])
    def test_equal_jobs_take_one_place_also_scheduled_ones(self, strategy: Any, sealing: Setup, store: Store) -> None:
        @job(encrypt=True, deduplicate=strategy)
        def login(user: str, password: str) -> None: ...

        login.perform_in(60, "ann", SECRET)
        login.perform_in(60, "ann", SECRET)

        first, second = (decode(raw) for raw in store.call("ZRANGE", "schedule", 0, -1))
        assert first["idempotency_key"] == second["idempotency_key"]

    def test_large_ones_are_encrypted_and_compressed(
        self, login: Any, store: Store, setup: Setup, registry: Registry, seen: list[Any]
    ) -> None:
        compressing = {"size_limiter_mode": "compress", "size_limiter_compression_threshold": 1_000}
        worker = Worker(setup, registry, **compressing)
        login.perform_async("ann" * 1_000, SECRET)
        raw = stored(store)

        assert "compressed" in decode(raw)
        assert SECRET not in repr(decompressed(decode(raw)))
        assert (type(worker.run(raw)), seen) == (Done, [("ann" * 1_000, SECRET)])
        (record,) = Queue("default")
        assert record.display_args == ["ann" * 1_000, "[encrypted data]"]


class TestViews:
    def test_pages_say_that_it_is_encrypted(self, login: Any, store: Store, kiqctl: Kiqctl) -> None:
        jid = login.perform_async("ann", SECRET)

        shown = kiqctl("jobs", "default", "--jid", jid).stdout

        assert "[encrypted data]" in shown
        assert SECRET not in shown

    def test_the_log_has_neither_key_nor_secret(
        self, login: Any, store: Store, setup: Setup, registry: Registry, caplog: pytest.LogCaptureFixture
    ) -> None:
        login.perform_async("ann", SECRET)
        with caplog.at_level(logging.DEBUG):
            Worker(setup, registry, encryption_keys=f"2:{SECOND}").run(stored(store))

        assert not any(word in caplog.text for word in (SECRET, FIRST, SECOND))


class TestTestingKit:
    def test_without_keys_jobs_of_a_test_stay_readable(self, setup: Setup, seen: list[Any]) -> None:
        setup.config = Config()

        @job(encrypt=True)
        def login(password: str) -> None:
            seen.append(password)

        with fake():
            login.perform_async(SECRET)
            assert [each.args for each in enqueued_jobs(login)] == [[SECRET]]
        with inline():
            login.perform_async(SECRET)
        login.perform_inline(SECRET)

        assert seen == [SECRET, SECRET]
