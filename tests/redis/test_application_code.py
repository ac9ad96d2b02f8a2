"""Whatever code of the application does, wherever: what becomes of the job, its chain, batch, lock, place and history,
and whoever waits for it.

A new place where our code calls the application's, or reads one of its values, gets a row here: PLACES for those of
runs, PUSHES for those of pushes, MOVES for those of threads of a worker that push.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kiqcluster import Job, current_job, job, job_logger
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch
from kiqcluster.client.client import Client
from kiqcluster.client.handle import Handle
from kiqcluster.contrib.run_errors import SuppressErrors
from kiqcluster.errors import NormalFailure, OverLimit
from kiqcluster.features.history import HISTORY, read_history
from kiqcluster.iterable import IterableJob
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.logs.log import LOGGER
from kiqcluster.process.logs.own_logger import OwnLogger
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Run, Runtime, Setup
from kiqcluster.sidekiq.ruby_json import decode, encode, patch
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from kiqcluster.worker.maintenance.outside_sources import SourceMover
from kiqcluster.worker.maintenance.poller import Poller
from tests.in_process_worker import LIMITS, Worker
from tests.redis.test_cron import put
from tests.threaded_worker import ThreadedWorker

Bad = Callable[..., Any]
NEXT_JID = "b" * 24


def fail(*_: object, **_keywords: object) -> Any:
    raise ZeroDivisionError("it lies")


METHODS = (
    *("__str__", "__repr__", "__len__", "__iter__", "__getitem__", "__contains__", "__bool__", "__eq__", "__lt__"),
    *("__le__", "__gt__", "__ge__", "__add__", "__int__", "__float__", "__index__", "items", "keys", "values", "get"),
    *("encode", "close", "seconds", "total_seconds", "__await__", "__call__", "__format__"),
)


def lying(base: type, does: Bad = fail) -> type:
    """Return a class whose values do something else when somebody looks at them."""
    own = dict.fromkeys(METHODS, lambda *_args, **_keywords: does())
    return type("Lying", (base,), {**own, "__class__": property(lambda _self: does()), "__hash__": None})


def raiser(kind: type[BaseException]) -> Bad:
    def bad(*_: object, **_keywords: object) -> Any:
        raise kind("on purpose")

    return bad


KINDS: dict[str, Bad] = {
    **{kind.__name__: raiser(kind) for kind in (TypeError, RuntimeError, MemoryError, SystemExit)},
    "a lying error": raiser(lying(Exception)),
    "a lying value": lambda *_, **_keywords: lying(dict)(key=1),
}


@dataclasses.dataclass(repr=False)
class Scene:
    """What the application declares.  bad: does what the case says.  body: of the job."""

    setup: Setup
    registry: Registry
    bad: Bad
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    body: Callable[[], Any] = lambda: "fine"
    arguments: tuple[Any, ...] = (1,)
    is_bad: bool = False  # set once the job is pushed
    is_async: bool = False

    def declare(self) -> Any:
        @job(name="First", **self.options)
        def first(number: int) -> Any:
            return self.body()

        return first

    def turn(self) -> Any:
        """Misbehave, but not at the push."""
        return self.bad() if self.is_bad else None


def running() -> Any:
    found = current_job()
    assert found is not None
    return found


def cases(places: Mapping[str, object]) -> list[Any]:
    """Return a place and a kind for each case: in the short form, one of three kinds for each place."""
    return [
        pytest.param(prepare, kind, id=f"{name}-{kind}", marks=[] if (row + column) % 3 == 0 else pytest.mark.full)
        for row, (name, prepare) in enumerate(places.items())
        for column, kind in enumerate(KINDS)
    ]


PLACES: dict[str, Callable[[Scene], None]] = {}


def place(prepare: Callable[[Scene], None]) -> None:
    PLACES[prepare.__name__] = prepare


# The job


@place
def body(scene: Scene) -> None:
    scene.body = scene.bad


@place
def value(scene: Scene) -> None:
    scene.body = lambda: lying(dict, scene.bad)(key=1)


@place
def value_that_is_text(scene: Scene) -> None:
    scene.body = lambda: lying(str, scene.bad)("text")


@place
def text_of_an_error(scene: Scene) -> None:
    scene.body = raiser(type("Failing", (Exception,), {"__str__": lambda _self: scene.bad()}))


@place
def text_of_a_normal_failure(scene: Scene) -> None:
    scene.body = raiser(type("Failing", (NormalFailure,), {"__str__": lambda _self: scene.bad()}))


@place
def seconds_of_a_limit(scene: Scene) -> None:
    def over() -> None:
        error = OverLimit("limit", 1.0)
        error.seconds = error.name = lying(float, scene.bad)(1.0)  # type: ignore[assignment]
        raise error

    scene.body = over


@place
def field_of_the_log(scene: Scene) -> None:
    scene.body = lambda: running().log_extra_metadata_on_done("field", lying(list, scene.bad)([1]))


@place
def message(scene: Scene) -> None:
    scene.body = lambda: running().log(lying(str, scene.bad)("text"))


@place
def kept_message(scene: Scene) -> None:
    def keep() -> None:
        running().messages = [lying(str, scene.bad)("text")]

    scene.body = keep


@place
def progress(scene: Scene) -> None:
    scene.body = lambda: running().progress(lying(int, scene.bad)(1))


@place
def own_payload(scene: Scene) -> None:
    scene.body = lambda: running().payload.update(
        dict.fromkeys(("jid", "args", "enqueued_at", "task_id", "kiq_then", HISTORY), lying(str, scene.bad)("x"))
    )


@place
def no_payload(scene: Scene) -> None:
    scene.body = lambda: (running().payload.clear(), scene.bad())


# Around the job


@place
def middleware_before(scene: Scene) -> None:
    scene.setup.server_middleware.add(lambda _run, _proceed: scene.bad())


@place
def middleware_after(scene: Scene) -> None:
    scene.setup.server_middleware.add(lambda _run, proceed: (proceed(), scene.bad())[1])


@place
def middleware_with_a_lying_job(scene: Scene) -> None:
    scene.setup.server_middleware.add(lambda _run, proceed: proceed())
    scene.body = lambda: lying(dict, scene.bad)(key=1)


@place
def logger_before(scene: Scene) -> None:
    @job_logger
    class Lines:
        def prepare(self, item: object, proceed: Callable[[], None]) -> Any:
            return scene.bad()

        def call(self, item: object, queue: str, proceed: Callable[[], None]) -> None: ...


@place
def logger_after(scene: Scene) -> None:
    @job_logger
    class Lines:
        def prepare(self, item: object, proceed: Callable[[], None]) -> Any:
            proceed()
            return scene.bad()

        def call(self, item: object, queue: str, proceed: Callable[[], None]) -> Any:
            proceed()
            return scene.bad()


@place
def handler_of_the_log(scene: Scene) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> Any:
            return scene.bad()

    LOGGER.addHandler(Broken())
    scene.body = fail


@place
def error_handler(scene: Scene) -> None:
    scene.setup.error_handler(scene.bad)
    scene.body = fail


@place
def death_handler(scene: Scene) -> None:
    scene.setup.death_handler(scene.bad)
    scene.options["retry"] = 0
    scene.body = fail


# What the class declares


@place
def policy(scene: Scene) -> None:
    scene.options["policy"] = scene.bad


@place
def limit(scene: Scene) -> None:
    scene.options["concurrency_limit"] = scene.bad


@place
def key_of_a_limit(scene: Scene) -> None:
    scene.options["concurrency_key"] = scene.bad


@place
def key_of_equals(scene: Scene) -> None:
    scene.options |= {"deduplicate": "until_and_while_executing", "deduplicate_key": lambda *_: scene.turn() or "key"}


@place
def delay_of_a_retry(scene: Scene) -> None:
    scene.options["retry_in"] = scene.bad
    scene.body = fail


@place
def end_of_retries(scene: Scene) -> None:
    scene.options |= {"retries_exhausted": scene.bad, "retry": 0}
    scene.body = fail


@place
def instance(scene: Scene) -> None:
    class First(Job, name="First", **scene.options):
        def __init__(self) -> None:
            scene.bad()

        def perform(self, number: int) -> None: ...

    scene.declare = lambda: First  # type: ignore[method-assign]


@place
def argument(scene: Scene) -> None:
    @dataclasses.dataclass
    class Number:
        number: int = 1

        def __post_init__(self) -> None:
            scene.turn()

    def declare() -> Any:
        def first(number: Any) -> None: ...

        first.__annotations__["number"] = Number
        return job(name="First", **scene.options)(first)

    scene.declare, scene.arguments = declare, ({"number": 1},)  # type: ignore[method-assign]


@place
def typed_value(scene: Scene) -> None:
    def declare() -> Any:
        def first(number: int) -> Any:
            return lying(set, scene.bad)([1])

        first.__annotations__["return"] = set[int]
        return job(name="First", **scene.options)(first)

    scene.declare = declare  # type: ignore[method-assign]


@place
def class_that_is_looked_up(scene: Scene) -> None:
    scene.registry.resolve = lambda _name: (scene.bad(), None)[1]
    declare = scene.declare

    def forget() -> Any:
        found = declare()
        definition, found.definition = found.definition, found.definition
        scene.body = fail
        scene.options["forget"] = definition.name
        return found

    scene.declare = forget  # type: ignore[method-assign]


# Around the job, by integrations


@place
def library_of_an_integration(scene: Scene) -> None:
    def around(_run: Run, proceed: Callable[[], Any]) -> Any:
        outcome = proceed()
        with SuppressErrors("library"):
            scene.bad()
        return outcome

    scene.setup.server_middleware.add(around)


# Other kinds of jobs


@place
def coroutine(scene: Scene) -> None:
    def declare() -> Any:
        @job(name="First", **scene.options)
        async def first(number: int) -> Any:
            return scene.bad()

        return first

    scene.declare, scene.is_async = declare, True  # type: ignore[method-assign]


@place
def middleware_of_a_coroutine(scene: Scene) -> None:
    class Around:
        def __call__(self, run: Run, proceed: Callable[[], Any]) -> Any:
            return proceed()

        async def acall(self, run: Run, proceed: Callable[[], Any]) -> Any:
            return scene.bad()

    scene.setup.server_middleware.add(Around())
    PLACES["coroutine"](scene)


def iterable(scene: Scene, **methods: Any) -> None:
    parts = {
        "build_enumerator": lambda _self, _number, cursor: iter([(1, 1), (2, 2)]),
        "each_iteration": lambda _self, _item, _number: None,
    }

    def declare() -> Any:
        return type("First", (IterableJob,), {**parts, **methods}, name="First", **scene.options)

    def build(self: Any, number: int, cursor: Any) -> Any:
        return parts["build_enumerator"](self, number, cursor)

    def each(self: Any, item: Any, number: int) -> Any:
        return parts["each_iteration"](self, item, number)

    methods = {"build_enumerator": build, "each_iteration": each, **methods}
    scene.declare = declare  # type: ignore[method-assign]


@place
def items(scene: Scene) -> None:
    def build(self: Any, number: int, cursor: Any) -> Any:
        return scene.bad()

    iterable(scene, build_enumerator=build)


@place
def next_item(scene: Scene) -> None:
    def build(self: Any, number: int, cursor: Any) -> Iterator[Any]:
        yield 1, 1
        yield scene.bad()

    def enumerator(self: Any, number: int, cursor: Any) -> Any:
        return build(self, number, cursor)

    iterable(scene, build_enumerator=enumerator)


@place
def cursor(scene: Scene) -> None:
    def build(self: Any, number: int, cursor: Any) -> Any:
        return iter([(1, lying(dict, scene.bad)(key=1)), (2, 2)])

    iterable(scene, build_enumerator=build)


@place
def end_of_items(scene: Scene) -> None:
    iterable(scene, on_complete=lambda _self: scene.bad())


@pytest.fixture
def scene(setup: Setup, registry: Registry, request: pytest.FixtureRequest) -> Iterator[Scene]:
    before = LOGGER.handlers[:], type(LOGGER)
    LOGGER.__class__ = OwnLogger  # as in a worker
    options = {"result_ttl": 60, "deduplicate": "until_executed", "concurrency_limit": 1, "retry": 3}
    yield Scene(setup, registry, KINDS[request.param], options)
    LOGGER.handlers[:], LOGGER.__class__ = before


def push(scene: Scene, store: Store) -> tuple[Any, Batch, str]:
    """Push the job within a batch, with another job after it, and a history; return it with its batch and its id."""
    forgotten: str = ""
    first = scene.declare()
    forgotten = scene.options.pop("forget", "")
    batch = Batch.create("import", first, [scene.arguments])
    raw = store.call("RPOP", "queue:default")
    following = {"class": "Second", "args": [None], "jid": NEXT_JID, "queue": "next", "retry": True}
    changes = {"kiq_then": [{**following, "kiq_result_ttl": 60}], HISTORY: 60}
    store.call("LPUSH", "queue:default", patch(raw, changes))
    if forgotten:
        del scene.registry._definitions[forgotten]
    scene.is_bad = True
    return first, batch, decode(raw)["jid"]


def run_all(scene: Scene, store: Store, worker: Worker) -> None:
    if scene.is_async:  # on the event loop of a worker: what asyncio does with an error or a value is for others to say
        with ThreadedWorker(store, scene.setup, scene.registry) as threads:
            threads.run_all()
        assert threads.crashes == []
    while units := worker.take_any():
        assert worker.settle(units[0], worker.execute(units[0])) == 1


def plainly(call: Callable[..., None], *arguments: Any) -> None:
    """Call our own code; what gets past it fails the test in words: pytest looks at errors, and these may lie."""
    try:
        return call(*arguments)
    except BaseException as error:
        frames = traceback.extract_tb(vars(BaseException)["__traceback__"].__get__(error))
        where = [f"{frame.filename}:{frame.lineno}" for frame in frames]
    pytest.fail(f"an error of the application got to {where}")


def found_at(store: Store, jid: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the places of a job, with its payload."""
    found = []
    for key in ("queue:default", "queue:next"):
        found += [(key, decode(raw)) for raw in store.call("LRANGE", key, 0, -1)]
    for key in ("schedule", "retry", "dead", "kiq:dropped"):
        found += [(key, decode(raw)) for raw in store.call("ZRANGE", key, 0, -1)]
    for key in store.call("KEYS", "kiq:slots:*:parked"):
        entries = store.call("ZRANGE", key, 0, -1)
        found += [("parked", decode(raw.rpartition(b"\0")[2])) for raw in entries]
    return [(key, payload) for key, payload in found if payload["jid"] == jid]


def account(store: Store, first: Any, batch: Batch, jid: str) -> None:
    """Check that everything that belongs to a job says the same of it."""
    places = found_at(store, jid)
    assert len(places) <= 1
    waits = bool(places) and places[0][0] not in ("dead", "kiq:dropped")

    # It holds nothing any more.
    assert [key for key in store.call("KEYS", "kiq:inflight:*") if store.call("HLEN", key)] == []
    assert [key for key in store.call("KEYS", "kiq:slots:*") if store.call("TYPE", key) == b"set"] == []
    assert store.call("KEYS", "kiq:held:*") == []
    locks = [store.call("GET", key) for key in store.call("KEYS", "kiq:lock:*")]
    assert locks == ([jid.encode()] if waits else [])

    # Its batch and its history know, and so does who waits for it.
    (batch_job,) = batch.jobs()
    assert batch_job.status in (("enqueue",) if waits else ("finish", "failed", "error"))
    events = [each["event"] for each in read_history(store, jid)]
    assert ("ended" in events) is not waits
    assert (Handle(jid, first.definition, store).status().state == "pending") is waits

    # The next job of its chain waits with it, is pushed or buried, or whoever waits for that one is told.
    following = found_at(store, NEXT_JID)
    told = Handle(NEXT_JID, first.definition, store).status().state
    if waits:
        assert (following, told) == ([], "pending")
        assert places[0][1]["kiq_then"][0]["jid"] == NEXT_JID
    elif following:
        assert batch_job.status == "finish"
        assert (following[0][0], told) in (("queue:next", "pending"), ("dead", "failed"))
    else:
        assert told in ("failed", "dropped")


@pytest.mark.parametrize(("prepare", "scene"), cases(PLACES), indirect=["scene"])
def test_wherever_code_of_the_application_fails_nothing_is_lost_held_or_waited_for(
    scene: Scene, store: Store, prepare: Callable[[Scene], None]
) -> None:
    worker = Worker(store, scene.setup, scene.registry)
    prepare(scene)
    first, batch, jid = push(scene, store)

    plainly(run_all, scene, store, worker)

    account(store, first, batch, jid)


# A push: its caller has the error


PUSHES: dict[str, Callable[[Scene], Callable[[Any], object]]] = {}


def pushed_by(prepare: Callable[[Scene], Callable[[Any], object]]) -> None:
    PUSHES[prepare.__name__] = prepare


@pushed_by
def middleware_of_a_push(scene: Scene) -> Callable[[Any], object]:
    scene.setup.client_middleware.add(lambda _push, proceed: (proceed(), scene.bad()))
    return lambda first: first.perform_async(1)


@pushed_by
def key_of_a_push(scene: Scene) -> Callable[[Any], object]:
    scene.options["deduplicate_key"] = scene.bad
    return lambda first: first.perform_async(1)


@pushed_by
def argument_of_a_push(scene: Scene) -> Callable[[Any], object]:
    return lambda first: first.perform_async(lying(dict, scene.bad)(key=1))


@pushed_by
def argument_of_one_of_many(scene: Scene) -> Callable[[Any], object]:
    return lambda first: first.perform_bulk([[1], [lying(dict, scene.bad)(key=1)]])


@pytest.mark.parametrize(("prepare", "scene"), cases(PUSHES), indirect=["scene"])
def test_a_push_whose_code_fails_raises_that_and_writes_nothing(
    scene: Scene, store: Store, prepare: Callable[[Scene], Callable[[Any], object]]
) -> None:
    push = prepare(scene)
    first = scene.declare()
    raised: type[BaseException] | None = None

    try:
        push(first)
    except BaseException as error:  # it may be any
        raised = type(error)

    assert raised is not None
    assert store.call("KEYS", "*") == []


# Threads of a worker that push: the call of one job holds up no other


Move = Callable[[], object]
MOVES: dict[str, Callable[[Scene, Runtime], Move]] = {}


def moved_by(prepare: Callable[[Scene, Runtime], Move]) -> None:
    MOVES[prepare.__name__] = prepare


def fail_for_one(scene: Scene) -> None:
    scene.setup.client_middleware.add(
        lambda push, proceed: scene.bad() if push.payload["class"] == "Bad" else proceed()
    )


@moved_by
def middleware_when_a_job_comes_due(scene: Scene, runtime: Runtime) -> Move:
    fail_for_one(scene)
    for name in ("Bad", "Fine"):
        raw = encode({"class": name, "args": [], "jid": name, "queue": "default"})
        runtime.store.call("ZADD", "schedule", 1, raw)
    return Poller(runtime, Engine(runtime.store, LIMITS), lambda *_: None).poll


@moved_by
def middleware_at_a_cron_tick(scene: Scene, runtime: Runtime) -> Move:
    fail_for_one(scene)
    for name in ("Bad", "Fine"):
        job(name=name)(lambda: None)
        put(runtime.store, {"job": name, "queue": "default"}, runtime.clock.now() // 60 * 60, name)
    return lambda: CronTicks(runtime, scene.registry, JobMetrics(1, list)).move(runtime.clock.now())


@moved_by
def source_outside_of_redis(scene: Scene, runtime: Runtime) -> Move:
    class Source:
        name, interval = "rows", 1.0

        def move(self) -> Any:
            if not told:
                return scene.bad()
            Client(runtime.store, scene.setup).push({"class": "Fine", "args": []})
            return False

    told: list[Exception] = []
    scene.setup.error_handler(lambda error, context: told.append(error))
    mover = SourceMover(Source(), runtime, lambda *_: None)
    return lambda: (mover.look(), mover.look())


@pytest.mark.parametrize(("prepare", "scene"), cases(MOVES), indirect=["scene"])
def test_a_thread_whose_call_fails_reports_that_and_moves_all_other_jobs(
    scene: Scene, store: Store, prepare: Callable[[Scene, Runtime], Move]
) -> None:
    told: list[Exception] = []
    scene.setup.error_handler(lambda error, context: told.append(error))
    move = prepare(scene, Runtime(Config(), store, scene.setup, Events()))

    plainly(move)

    assert [decode(raw)["class"] for raw in store.call("LRANGE", "queue:default", 0, -1)] == ["Fine"]
    assert len(told) == 1
    assert store.call("ZCARD", "dead") == 0
    if prepare is not MOVES["source_outside_of_redis"]:
        assert store.call("ZCARD", "schedule") + store.call("ZCARD", store.keys.cron_ticks) >= 1
