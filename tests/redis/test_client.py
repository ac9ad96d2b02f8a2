"""The client: what lands in Redis, byte for byte, and what never does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from markupsafe import Markup

from kiqcluster import Client, Job, Outcome, Push, Run, job
from kiqcluster.application.registry import Registry
from kiqcluster.client import writes
from kiqcluster.errors import (
    CannotDeserialize,
    InvalidArguments,
    InvalidPush,
    JobDefinitionError,
    RedisRefused,
    RedisUnavailable,
    ReplyLost,
    UsageError,
)
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.active_job import WRAPPER
from kiqcluster.store import Store
from kiqcluster.store.connection import Connection
from tests.kit import RedisServer, wait_until

pytestmark = pytest.mark.usefixtures("setup")


def payloads(store: Store, queue: str = "default") -> list[dict[str, Any]]:
    """Return a queue's payloads in the order in which they would be fetched."""
    return [json.loads(raw) for raw in reversed(store.call("LRANGE", store.keys.queue(queue), 0, -1))]


@pytest.fixture
def mail(registry: Registry) -> Any:
    @job(queue="mailers", name="Acme::Mail", tags=["vip"], retry=5)
    def mail(user: int, subject: str = "hello", urgent: bool = False) -> str:
        return f"{user} {subject} {urgent}"

    return mail


class TestActiveJob:
    @pytest.fixture
    def sample(self, registry: Registry) -> Any:
        @job(name="SampleJob", active_job=True, queue="low", retry=5)
        def sample(number: int, *, word: str = "x") -> tuple[int, str]:
            return number, word

        return sample

    def test_every_verb_wraps_it(self, sample: Any, store: Store) -> None:
        sample.perform_async(1, word="y")
        sample.set(queue="high").perform_async(1)
        sample.perform_bulk([[1], [2]])
        Client().push({"class": "SampleJob", "args": [1]})
        Client().push_bulk({"class": sample, "args": [[1]]})
        sample.perform_in(60, 1)

        (at,) = store.call("ZRANGE", "schedule", 0, -1)
        found = [*payloads(store, "low"), *payloads(store, "high"), json.loads(at)]
        envelopes = [each["args"][0] for each in found]
        assert {(each["class"], each["wrapped"], each["retry"]) for each in found} == {(WRAPPER, "SampleJob", 5)}
        assert [(each["queue_name"], each["arguments"]) for each in envelopes] == [
            ("low", [1, {"word": "y", "_aj_ruby2_keywords": ["word"]}]),
            ("low", [1]),
            ("low", [2]),
            ("low", [1]),
            ("low", [1]),
            ("high", [1]),
            ("low", [1]),
        ]
        assert {each["job_class"] for each in envelopes} == {"SampleJob"}
        assert len({each["job_id"] for each in envelopes}) == len(envelopes)

    def test_bytes_are_those_that_activejob_writes(self, sample: Any, store: Store) -> None:
        sample.perform_async(1)

        (raw,) = store.call("LRANGE", "queue:low", 0, -1)
        pattern = (
            r'\{"retry":5,"queue":"low","wrapped":"SampleJob","args":\[\{"job_class":"SampleJob","job_id":"[0-9a-f-]{36}",'
            r'"provider_job_id":null,"queue_name":"low","priority":null,"arguments":\[1\],"executions":0,'
            r'"exception_executions":\{\},"locale":null,"timezone":null,"enqueued_at":"[0-9T:.-]+Z"\}\],'
            r'"class":"ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper","jid":"[0-9a-f]{24}",'
            r'"created_at":[\d.]+,"enqueued_at":[\d.]+\}'
        )
        assert re.fullmatch(pattern, raw.decode())

    def test_a_payload_that_is_wrapped_already_travels_as_it_is(self, sample: Any, store: Store) -> None:
        item = {"class": WRAPPER, "wrapped": "SampleJob", "args": [{"job_class": "SampleJob", "arguments": []}]}

        Client().push(item)

        (found,) = payloads(store)
        assert {key: found[key] for key in item} == item

    def test_run_inline_it_goes_through_its_envelope_and_the_links(self, sample: Any, setup: Setup) -> None:
        seen: list[Any] = []
        setup.client_middleware.add(lambda push, proceed: (seen.append(push.payload["class"]), proceed())[1])
        setup.server_middleware.add(lambda run, proceed: (seen.append(run.job.name), proceed())[1])

        assert sample.perform_inline(1, word="y") == (1, "y")
        assert seen == [WRAPPER, "SampleJob"]

    def test_types_that_it_has_a_form_for_reach_the_job(self, registry: Registry) -> None:
        @job(active_job=True)
        def sample(*args: Any) -> Any:
            return args

        values = (
            datetime(2026, 1, 2, tzinfo=UTC),
            timedelta(1),
            Decimal("1.50"),
            {"a": [datetime(1, 1, 1, tzinfo=UTC)]},
        )
        assert sample.perform_inline(*values) == values

    def test_a_record_of_ruby_is_not_for_python(self, sample: Any) -> None:
        with pytest.raises(CannotDeserialize):
            sample.perform_inline({"_aj_globalid": "gid://shop/Account/42"})


def test_a_push_is_what_ruby_would_have_written(mail: Any, store: Store) -> None:
    before = time.time()
    jid = mail.perform_async(7)

    (raw,) = store.call("LRANGE", "queue:mailers", 0, -1)
    pattern = (
        r'\{"retry":5,"queue":"mailers","tags":\["vip"\],"args":\[7\],"class":"Acme::Mail","jid":"[0-9a-f]{24}",'
        r'"created_at":\d+\.\d+,"enqueued_at":\d+\.\d+\}'
    )
    assert re.fullmatch(pattern, raw.decode())
    assert json.loads(raw)["jid"] == jid
    assert before - 1e-3 <= json.loads(raw)["enqueued_at"] <= time.time()
    assert store.call("SMEMBERS", "queues") == [b"mailers"]


def test_keywords_travel_as_positions_and_defaults_stay_off_the_wire(mail: Any, store: Store) -> None:
    mail.perform_async(user=1)
    mail.perform_async(2, urgent=True)
    mail.perform_async(3, subject="x")

    assert [each["args"] for each in payloads(store, "mailers")] == [[1], [2, "hello", True], [3, "x"]]


def test_arguments_that_do_not_fit_raise_where_they_are_pushed(mail: Any, store: Store) -> None:
    for wrong in (
        lambda: mail.perform_async(),
        lambda: mail.perform_async(1, 2, 3, 4),
        lambda: mail.perform_async(1, nope=2),
    ):
        with pytest.raises(InvalidArguments):
            wrong()
    with pytest.raises(InvalidArguments):
        mail.perform_bulk([[1], []])
    assert store.call("DBSIZE") == 0


def test_a_scheduled_job_is_in_the_schedule_set_and_in_no_queue(mail: Any, store: Store) -> None:
    when = datetime.now(UTC) + timedelta(hours=2)
    in_a_minute, in_an_hour, at = (
        mail.perform_in(60, 1),
        mail.perform_in(timedelta(hours=1), 2),
        mail.perform_at(when, 3),
    )

    flat = store.call("ZRANGE", store.keys.schedule, 0, -1, "WITHSCORES")
    found = {json.loads(raw)["jid"]: float(score) for raw, score in zip(flat[::2], flat[1::2], strict=True)}
    assert found[in_a_minute] == pytest.approx(time.time() + 60, abs=5)
    assert found[in_an_hour] == pytest.approx(time.time() + 3600, abs=5)
    assert found[at] == pytest.approx(when.timestamp(), abs=0.001)
    assert all("enqueued_at" not in json.loads(raw) and "at" not in json.loads(raw) for raw in flat[::2])
    assert store.call("EXISTS", "queues", "queue:mailers") == 0


def test_a_time_that_is_past_means_now(mail: Any, store: Store) -> None:
    mail.perform_at(time.time() - 1, 1)
    mail.perform_in(0, 2)

    assert len(payloads(store, "mailers")) == 2


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), "tomorrow", None, True, float("nan")])  # noqa: DTZ001
def test_what_is_no_time_is_refused(mail: Any, store: Store, when: Any) -> None:
    with pytest.raises(InvalidPush):
        Client().push({"class": mail, "args": [1], "at": when if when is not None else "x"})
    assert store.call("DBSIZE") == 0


@pytest.mark.parametrize("when", [1_893_456_000_000, 1e300, float("nan"), float("inf")])
def test_a_time_thousands_of_years_ahead_is_refused_by_every_verb(mail: Any, store: Store, when: float) -> None:
    pushes: list[Callable[[], object]] = [
        lambda: mail.perform_at(when, 1),
        lambda: mail.perform_in(when, 1),
        lambda: mail.perform_in(1_893_456_000, 1),  # an epoch second
        lambda: Client().push({"class": mail, "args": [1], "at": when}),
        lambda: Client().push_bulk({"class": mail, "args": [[1], [2]], "at": when}),
        lambda: Client().push_bulk({"class": mail, "args": [[1], [2]], "at": [5, when]}),
    ]

    for push in pushes:
        with pytest.raises(InvalidPush):
            push()
    assert store.call("DBSIZE") == 0


def test_a_bulk_push_returns_its_jids_in_order_in_chunks(mail: Any, store: Store) -> None:
    jids = mail.perform_bulk([[number] for number in range(2_500)])

    stored = payloads(store, "mailers")
    assert [each["jid"] for each in stored] == jids
    assert [each["args"] for each in stored] == [[number] for number in range(2_500)]
    assert len(set(jids)) == 2_500


def test_set_overrides_options_for_one_push(mail: Any, store: Store) -> None:
    mail.set(queue="critical", tags=["now"], retry=False).perform_async(1)
    mail.perform_async(2)

    (special,) = payloads(store, "critical")
    (plain,) = payloads(store, "mailers")
    assert (special["queue"], special["tags"], special["retry"]) == ("critical", ["now"], False)
    assert (plain["queue"], plain["tags"], plain["retry"]) == ("mailers", ["vip"], 5)
    with pytest.raises(JobDefinitionError, match="did you mean 'queue'"):
        mail.set(qeue="x")


@pytest.mark.parametrize(
    ("value", "path", "remedy"),
    [
        (datetime.now(UTC), "args[0]", "isoformat"),
        (uuid4(), "args[0]", "str(value)"),
        ({"total": [1, Decimal("1.5")]}, "args[0]['total'][1]", "str(value)"),
        ((1, 2), "args[0]", "list(value)"),
        ({1: "x"}, "args[0]", "keys are strings"),
        (b"x", "args[0]", "b64encode"),
        (Markup("x"), "args[0]", "pass str.__str__(value)"),
        ({Markup("x"): 1}, "args[0]", "JSON keys are plain text: pass str.__str__(value)"),
        (float("nan"), "args[0]", "None or a number"),
        ([float("inf")], "args[0][0]", "None or a number"),
        ("\ud800", "args[0]", "surrogate"),
    ],
)
def test_what_json_cannot_hold_raises_with_its_path_and_a_remedy(
    mail: Any, store: Store, value: Any, path: str, remedy: str
) -> None:
    with pytest.raises(InvalidArguments, match=re.escape(remedy)) as error:
        mail.perform_async(value)

    assert error.value.path == path
    assert store.call("DBSIZE") == 0


def test_modes_warn_and_off_let_convertible_values_pass_but_never_nan(mail: Any, store: Store, setup: Setup) -> None:
    for mode in ("warn", "off"):
        setup.configure(strict_args=mode)
        mail.perform_async((1, 2))
        with pytest.raises(InvalidArguments):
            mail.perform_async(float("nan"))

    assert [each["args"] for each in payloads(store, "mailers")] == [[[1, 2]], [[1, 2]]]


@pytest.mark.parametrize(
    "value",
    [2**70, -(2**200), 10**5_000, 1e20, 5e-324, -0.0, 'é☃\u2028"\\/\x00', {"a": {"b": [None, True]}}],
    ids=range(8),
)
def test_awkward_values_survive(mail: Any, store: Store, value: Any) -> None:
    mail.perform_async(value)

    from kiqcluster.sidekiq import ruby_json

    (raw,) = store.call("LRANGE", "queue:mailers", 0, -1)
    assert ruby_json.decode(raw)["args"] == [value]


def test_client_middleware_may_change_a_push_or_stop_it(mail: Any, store: Store, setup: Setup) -> None:
    @setup.client_middleware.add
    def redirect(push: Push, proceed: Any) -> Push | None:
        if push.payload["args"] == ["stop"]:
            return None
        push.payload["queue"] = "redirected"
        push.payload["trace"] = "abc"
        result: Push | None = proceed()
        return result

    stopped = mail.perform_async("stop")
    jids = mail.perform_bulk([["go"], ["stop"], ["on"]])

    assert stopped is None
    assert [jid is None for jid in jids] == [False, True, False]
    assert [(each["args"], each["trace"]) for each in payloads(store, "redirected")] == [
        (["go"], "abc"),
        (["on"], "abc"),
    ]


def test_client_middleware_that_returns_no_push_is_told_what_to_return(mail: Any, store: Store, setup: Setup) -> None:
    setup.client_middleware.add(lambda push, proceed: (push.payload, proceed()))

    with pytest.raises(UsageError, match=r"returned a tuple, so \S+ was not enqueued: return what proceed"):
        mail.perform_async("go")

    assert store.call("EXISTS", "queue:mailers") == 0


def test_via_sends_the_pushes_of_a_block_elsewhere(mail: Any, store: Store, redis_server: RedisServer) -> None:
    other = redis_server.store(db=1)

    with Client.via(other):
        mail.perform_async(1)
    mail.perform_async(2)

    assert [each["args"] for each in payloads(other, "mailers")] == [[1]]
    assert [each["args"] for each in payloads(store, "mailers")] == [[2]]


def test_an_item_may_name_any_class_and_any_key(store: Store) -> None:
    client = Client()

    jid = client.push(
        {"class": "Ruby::Job", "args": [1], "retry": 3, "queue": "ruby", "custom": {"x": 1}, "jid": "a" * 24}
    )
    bulk = client.push_bulk({"class": "Ruby::Job", "args": [[1], [2]], "at": [time.time() + 60, time.time() - 60]})

    (first,) = payloads(store, "ruby")
    assert jid == "a" * 24
    assert (first["class"], first["custom"], first["retry"]) == ("Ruby::Job", {"x": 1}, 3)
    assert [each["jid"] for each in payloads(store)] == [bulk[1]]
    assert store.call("ZCARD", store.keys.schedule) == 1


@pytest.mark.parametrize(
    "item",
    [{}, {"args": []}, {"class": 5, "args": []}, {"class": "X", "args": 5}, {"class": "X", "args": [], "queue": ""},
     {"class": "X", "args": [], "queue": "a\nb"}, "X"],
)  # fmt: skip
def test_what_is_no_job_is_refused(store: Store, item: Any) -> None:
    with pytest.raises((InvalidPush, InvalidArguments)):
        Client().push(item)
    assert store.call("DBSIZE") == 0


def test_a_push_without_an_answer_names_its_jids_and_is_never_doubled(
    mail: Any, store: Store, redis_server: RedisServer
) -> None:
    hasty = Store(redis_server.url, timeout=0.2)
    hasty.call("PING")

    with redis_server.stalled(), pytest.raises(ReplyLost) as lost, Client.via(hasty):
        mail.perform_bulk([[1], [2]])

    wait_until(lambda: store.call("EXISTS", "queue:mailers"), "the late push to run")
    found = [each["jid"] for each in payloads(store, "mailers")]
    assert list(lost.value.jids) == found
    assert len(set(found)) == 2


class Faltering(Store):
    """A store to which something happens before its second write."""

    def __init__(self, address: str, misfortune: Callable[[], object], timeout: float = 5.0) -> None:
        super().__init__(address, timeout=timeout)
        self._misfortunes: Iterator[Callable[[], object]] = iter([lambda: None, misfortune])

    def borrowed(self) -> AbstractContextManager[Connection]:
        next(self._misfortunes)()
        return super().borrowed()


@pytest.fixture
def drafted(setup: Setup) -> list[str]:
    """The jids of all pushes, in order."""
    seen: list[str] = []

    @setup.client_middleware.add
    def note(push: Push, proceed: Any) -> Push | None:
        seen.append(push.payload["jid"])
        return proceed()  # type: ignore[no-any-return]

    return seen


def test_a_bulk_push_that_fails_before_its_first_write_enqueues_nothing(mail: Any, store: Store, setup: Setup) -> None:
    good = [[number] for number in range(1_000)]

    for bad in ([], [1, 2, 3, 4], [object()], "ab"):
        with pytest.raises(InvalidArguments, match="entry 1000: "):
            mail.perform_bulk([*good, bad])
    with pytest.raises(InvalidArguments):
        Client().push_bulk({"class": "X", "args": [*good, 5]})

    @setup.client_middleware.add
    def fail_at_last(push: Push, proceed: Any) -> Push | None:
        if push.payload["args"] == ["bad"]:
            raise ZeroDivisionError
        return proceed()  # type: ignore[no-any-return]

    with pytest.raises(ZeroDivisionError):
        mail.perform_bulk([*good, ["bad"]])

    assert store.call("DBSIZE") == 0


def test_a_bulk_push_that_loses_redis_half_way_says_what_is_enqueued(
    mail: Any, drafted: list[str], own_server: RedisServer
) -> None:
    with Client.via(Faltering(own_server.url, own_server.kill)), pytest.raises(RedisUnavailable) as caught:
        mail.perform_bulk([[number] for number in range(2_500)])

    assert list(caught.value.enqueued) == drafted[:1_000]
    assert len(drafted) == 2_500


def test_a_bulk_push_that_loses_a_reply_says_what_is_enqueued_and_what_nobody_knows(
    mail: Any, store: Store, drafted: list[str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        writes, "MAX_JOBS_PER_ROUND_TRIP", 10
    )  # a chunk that fits the socket, so that it does run in the end

    with ExitStack() as until:
        stall = lambda: until.enter_context(redis_server.stalled())  # noqa: E731
        with Client.via(Faltering(redis_server.url, stall, timeout=0.2)), pytest.raises(ReplyLost) as lost:
            mail.perform_bulk([[number] for number in range(25)])

    assert list(lost.value.enqueued) == drafted[:10]
    assert list(lost.value.jids) == drafted[10:20]
    wait_until(lambda: store.call("LLEN", "queue:mailers") == 20, "the late push to run")


def test_a_bulk_push_that_redis_refuses_in_part_says_what_is_enqueued(
    mail: Any, store: Store, setup: Setup, drafted: list[str]
) -> None:
    @setup.client_middleware.add
    def redirect(push: Push, proceed: Any) -> Push | None:
        if push.payload["args"] == [1_500]:
            push.payload["queue"] = "broken"
        return proceed()  # type: ignore[no-any-return]

    store.call("SET", "queue:broken", "no list")

    with pytest.raises(RedisRefused) as refused:
        mail.perform_bulk([[number] for number in range(2_500)])

    assert refused.value.code == "WRONGTYPE"
    assert list(refused.value.enqueued) == [each["jid"] for each in payloads(store, "mailers")]
    assert list(refused.value.enqueued) == drafted[:1_500] + drafted[1_501:2_000]


def test_a_single_push_that_redis_refuses_in_part_says_whether_it_is_enqueued(mail: Any, store: Store) -> None:
    store.call("SET", "queues", "no set")
    with pytest.raises(RedisRefused) as half:
        mail.perform_async(1)
    store.call("SET", "queue:mailers", "no list")
    with pytest.raises(RedisRefused) as whole:
        mail.perform_async(2)

    assert len(half.value.enqueued) == 1
    assert whole.value.enqueued == ()


@pytest.mark.parametrize("push", ["plain", "scheduled", "guarded", "bulk"])
@pytest.mark.parametrize(
    ("setting", "code"),
    [(("REPLICAOF", "127.0.0.1", "1"), "READONLY"), (("CONFIG", "SET", "min-replicas-to-write", "3"), "NOREPLICAS")],
)
def test_a_server_that_takes_no_writes_for_now_is_unavailable_to_each_kind_of_push(
    mail: Any, own_server: RedisServer, push: str, setting: tuple[str, ...], code: str
) -> None:
    @job(queue="mailers", deduplicate="until_executed")
    def once(number: int) -> None: ...

    store = own_server.store()
    store.call(*setting)
    pushes: dict[str, Callable[[], object]] = {
        "plain": lambda: mail.perform_async(1),
        "scheduled": lambda: mail.perform_in(60, 1),
        "guarded": lambda: once.perform_async(1),
        "bulk": lambda: mail.perform_bulk([[1], [2]]),
    }

    with Client.via(store), pytest.raises(RedisUnavailable, match=code) as error:
        pushes[push]()

    assert error.value.enqueued == ()
    assert store.call("KEYS", "*") == []


def test_an_inline_run_goes_through_json_and_both_chains(mail: Any, store: Store, setup: Setup) -> None:
    seen: list[str] = []

    @setup.client_middleware.add
    def client_link(push: Push, proceed: Any) -> Push | None:
        seen.append("client")
        return proceed()  # type: ignore[no-any-return]

    @setup.server_middleware.add
    def server_link(run: Run, proceed: Any) -> Outcome | None:
        seen.append(f"server {run.queue}")
        return proceed()  # type: ignore[no-any-return]

    result = mail.perform_inline(7, urgent=True)

    assert result == "7 hello True"
    assert seen == ["client", "server mailers"]
    assert store.call("DBSIZE") == 0
    with pytest.raises(InvalidArguments):
        mail.perform_inline((1, 2))


def test_a_call_stays_a_call(mail: Any, store: Store) -> None:
    assert mail(1, "x") == "1 x False"
    assert store.call("DBSIZE") == 0


def test_a_class_has_the_same_verbs(store: Store) -> None:
    class Thumbnail(Job, queue="images", retry=2):
        def perform(self, path: str, width: int = 80) -> str:
            return f"{path}@{width}"

    Thumbnail.perform_async("a.png")
    Thumbnail.perform_bulk([["b.png", 10], ["c.png"]])
    Thumbnail.set(queue="critical").perform_async("d.png", width=3)

    assert [each["args"] for each in payloads(store, "images")] == [["a.png"], ["b.png", 10], ["c.png"]]
    assert [each["args"] for each in payloads(store, "critical")] == [["d.png", 3]]
    assert Thumbnail.perform_inline("e.png") == "e.png@80"
    assert Thumbnail.queue == "images"


@pytest.mark.parametrize(
    "extra",
    [
        *({"tags": "vip"}, {"jid": 5}, {"retry": "yes"}, {"retry": 1.5}),
        *({"retry_for": "3 days"}, {"retry_for": 2_000_000_000}, {"cattr": "no hash"}),
    ],
)
def test_an_item_that_would_break_rubys_pages_is_refused(store: Store, extra: dict[str, Any]) -> None:
    with pytest.raises(InvalidPush):
        Client().push({"class": "X", "args": [], **extra})
    assert store.call("DBSIZE") == 0


def test_a_time_that_is_none_is_refused(mail: Any, store: Store) -> None:
    with pytest.raises(InvalidPush):
        mail.perform_at(None, 1)
    assert store.call("DBSIZE") == 0
