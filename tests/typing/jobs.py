"""What mypy must see in an application: both forms of a job keep their signature.

Nothing here runs.  Each line with an ignore is a wrong call: with `warn_unused_ignores` it fails the check as
soon as it is no error any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from kiqcluster import (
    DISCARD,
    Client,
    Job,
    JobContext,
    Outcome,
    Push,
    Run,
    client_middleware,
    configure,
    current_job,
    death_handler,
    error_handler,
    job,
    on,
    server_middleware,
)
from kiqcluster.client.handle import Handle
from kiqcluster.iterable import IterableJob, sequence_enumerator
from kiqcluster.sidekiq.payload import Jid


class Thumbnail(Job, queue="images", retry=5):
    def perform(self, path: str, width: int, height: int | None = None) -> bytes:
        return b""

    def retry_in(self, count: int, error: Exception, payload: dict[str, Any]) -> object:
        return 60 if count < 3 else DISCARD


class Sweep(Job):
    @staticmethod
    def perform(days: int) -> None: ...


@job(queue="mailers", name="Acme::WelcomeMail")
def welcome(user_id: int, template: str = "hello") -> str:
    return template


@job()
def gather(*paths: str) -> None: ...


@job(name="RemindJob", active_job=True)
def remind(customer: int, *, after: timedelta = timedelta(0)) -> None: ...


class SampleJob(Job, active_job=True):
    def perform(self, when: datetime) -> str:
        return ""


@job
def bare(user_id: int) -> str:
    return ""


def class_form() -> None:
    assert_type(Thumbnail.perform_async("a.png", 80), Jid | None)
    assert_type(Thumbnail.perform_async("a.png", width=80, height=None), Jid | None)
    assert_type(Thumbnail.perform_in(60, "a.png", 80), Jid | None)
    assert_type(Thumbnail.perform_in(timedelta(hours=1), "a.png", 80), Jid | None)
    assert_type(Thumbnail.perform_at(datetime.now(UTC), "a.png", 80), Jid | None)
    assert_type(Thumbnail.perform_at(1_795_168_740.5, "a.png", 80), Jid | None)
    assert_type(Thumbnail.perform_bulk([["a.png", 80], ("b.png", 80)]), list[Jid | None])
    assert_type(Thumbnail.perform_inline("a.png", 80), bytes | None)
    assert_type(Thumbnail.set(queue="critical").perform_async("a.png", 80), Jid | None)
    assert_type(Thumbnail.set(queue="critical").set(retry=1).perform_inline("a.png", 80), bytes | None)
    assert_type(Thumbnail().perform("a.png", 80), bytes)
    assert_type(Thumbnail.queue, str)
    assert_type(Sweep.perform_async(30), Jid | None)


def wrong_calls_of_the_class_form() -> None:
    Thumbnail.perform_async("a.png")  # type: ignore[call-arg]
    Thumbnail.perform_async("a.png", 80, None, 1)  # type: ignore[call-arg]
    Thumbnail.perform_async("a.png", "80")  # type: ignore[arg-type]
    Thumbnail.perform_async("a.png", 80, depth=3)  # type: ignore[call-arg]
    Thumbnail.perform_in("soon", "a.png", 80)  # type: ignore[arg-type]
    Thumbnail.perform_in(60, 80, "a.png")  # type: ignore[arg-type]
    Thumbnail.perform_in(60, "a.png")  # type: ignore[call-arg]
    Thumbnail.perform_at(timedelta(1), "a.png", 80)  # type: ignore[arg-type]
    Thumbnail.perform_inline(80)  # type: ignore[call-arg, arg-type]
    Thumbnail.perform_bulk([1, 2])  # type: ignore[list-item]
    Thumbnail.set(queue="critical").perform_async(80, "a.png")  # type: ignore[arg-type]
    Sweep.perform_async("30")  # type: ignore[arg-type]


def function_form() -> None:
    assert_type(welcome(7), str)
    assert_type(welcome.perform_async(7), Jid | None)
    assert_type(welcome.perform_async(7, template="bye"), Jid | None)
    assert_type(welcome.perform_in(60, 7), Jid | None)
    assert_type(welcome.perform_at(datetime.now(UTC), 7, "bye"), Jid | None)
    assert_type(welcome.perform_bulk([[7], [8]]), list[Jid | None])
    assert_type(welcome.perform_inline(7), str | None)
    assert_type(welcome.set(tags=["vip"]).perform_async(7), Jid | None)
    assert_type(welcome.queue, str)
    assert_type(gather.perform_async("a", "b", "c"), Jid | None)
    assert_type(bare(7), str)
    assert_type(bare.perform_async(7), Jid | None)
    assert_type(bare.perform_inline(user_id=7), str | None)


def active_jobs() -> None:
    assert_type(remind.perform_async(7, after=timedelta(days=1)), Jid | None)
    assert_type(remind.perform_in(60, 7), Jid | None)
    assert_type(SampleJob.perform_inline(datetime.now(UTC)), str | None)
    remind.perform_async(7, timedelta(days=1))  # type: ignore[call-arg]
    remind.perform_async(7, after=1)  # type: ignore[arg-type]
    SampleJob.perform_async("2026-01-02")  # type: ignore[arg-type]


def wrong_calls_of_the_function_form() -> None:
    welcome()  # type: ignore[call-arg]
    welcome("7")  # type: ignore[arg-type]
    welcome.perform_async()  # type: ignore[call-arg]
    welcome.perform_async("7")  # type: ignore[arg-type]
    welcome.perform_async(7, 8)  # type: ignore[arg-type]
    welcome.perform_async(7, templat="bye")  # type: ignore[call-arg]
    welcome.perform_in(7)  # type: ignore[call-arg]
    welcome.perform_in(None, 7)  # type: ignore[arg-type]
    welcome.perform_inline(None)  # type: ignore[arg-type]
    welcome.set(queue="critical").perform_async()  # type: ignore[call-arg]
    welcome.delay(7)  # type: ignore[attr-defined]
    gather.perform_async(1)  # type: ignore[arg-type]
    bare.perform_async("7")  # type: ignore[arg-type]


def what_is_checked_at_run_time_only() -> None:
    """No ignore here: mypy sees no error in these, and docs/guides/write_jobs.md says so."""
    Thumbnail.perform_bulk([["a.png"], [80, "a.png"]])
    welcome.perform_bulk([["7"]])
    Client().push({"class": Thumbnail, "args": []})


def slips_in_options_of_a_push() -> None:
    Thumbnail.set(quue="critical")  # type: ignore[call-arg]
    Thumbnail.set(retry="often")  # type: ignore[arg-type]
    Thumbnail.set(log_level="warn")  # type: ignore[arg-type]
    welcome.set(retries=3)  # type: ignore[call-arg]
    welcome.set(tags="vip")  # type: ignore[arg-type]
    welcome.set(urgency="high")  # type: ignore[call-arg]
    Client().push({"class": Thumbnail, "args": []}, wait_replica=1)  # type: ignore[call-arg]


def slips_in_declarations() -> None:
    job("mailers")  # type: ignore[call-overload]

    class Misspelt(Job, quue="images"):  # type: ignore[call-arg]
        def perform(self) -> None: ...

    class Misfit(Job, retry="often"):  # type: ignore[arg-type]
        def perform(self) -> None: ...

    class Unknown(Job, urgency="hihg"):  # type: ignore[arg-type]
        def perform(self) -> None: ...

    class NoHook(Job, retry_in=60):  # type: ignore[arg-type]
        def perform(self) -> None: ...

    @job(quue="mailers")  # type: ignore[call-overload, untyped-decorator]
    def misspelt() -> None: ...

    @job(dead="no")  # type: ignore[call-overload, untyped-decorator]
    def misfit() -> None: ...

    class NoJob(Job):
        """It lacks `perform`, so it has nothing to enqueue."""

    NoJob.perform_async()  # type: ignore[misc]


def the_running_job() -> None:
    running = current_job()
    assert_type(running, JobContext | None)
    running.jid  # type: ignore[union-attr]  # noqa: B018
    if running is not None:
        assert_type(running.jid, str)
        assert_type(running.stopping, bool)
        running.stopping = True  # type: ignore[misc]


def clients() -> None:
    client = Client()
    assert_type(client.push({"class": Thumbnail, "args": ["a.png", 80]}), Jid | None)
    assert_type(client.push_bulk({"class": "Acme::Mail", "args": [[1], [2]]}), list[Jid | None])
    client.push({"class": Thumbnail, "args": ["a.png", 80]}, wait_replicas=1)
    client.push("Acme::Mail")  # type: ignore[arg-type]


def slips_in_the_set_up() -> None:
    configure(max_retry=3)  # type: ignore[call-arg]
    configure(strict_args="warm")  # type: ignore[arg-type]
    configure(dead={"timeout": object()})  # type: ignore[typeddict-item]
    configure(concurrency=5)  # type: ignore[call-arg]
    on("strtup")  # type: ignore[arg-type]


def set_up() -> None:
    configure(max_retries=3)

    @client_middleware.add
    def on_push(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        return proceed()

    @server_middleware.add
    def on_run(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        return proceed()

    @server_middleware.add  # type: ignore[arg-type]
    def wrong_way_round(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        return proceed()

    @error_handler
    def tell(error: Exception, context: dict[str, Any]) -> None: ...

    @death_handler
    def on_death(payload: dict[str, Any], error: Exception) -> None: ...

    @death_handler  # type: ignore[type-var]
    def too_few(payload: dict[str, Any]) -> None: ...

    @on("startup")
    def connect() -> None: ...

    @on("startup")  # type: ignore[type-var]
    def expects_something(server: str) -> None: ...

    assert_type(connect(), None)
    tell(ValueError(), {})
    on_death({}, ValueError())


class Renew(IterableJob, queue="long", max_iteration_runtime=60):
    def build_enumerator(self, shop: int, *, cursor: int | None) -> Iterator[tuple[str, int]]:
        return sequence_enumerator(["ann", "bob"], cursor=cursor)

    def each_iteration(self, member: str, shop: int) -> None: ...


class RenewLater(Renew):
    async def each_iteration(self, member: str, shop: int) -> None: ...  # type: ignore[override]


def iterable_jobs() -> None:
    assert_type(Renew.perform_async(7), Jid | None)
    assert_type(Renew.enqueue(shop=7), Handle[None] | None)
    assert_type(RenewLater.set(queue="low").perform_in(60, 7), Jid | None)
    Renew.perform_async("7")  # type: ignore[arg-type]
    Renew.perform_async()  # type: ignore[call-arg]
    RenewLater.set(queue="low").perform_in(60, "7")  # type: ignore[arg-type]


@job
def download(url: str) -> bytes:
    return b""


@job
async def adownload(url: str) -> bytes:
    return b""


@job
def resize(data: bytes, width: int, height: int = 80) -> str:
    return ""


@job
def measure(text: str) -> int:
    return 1


class Lookup(Job):
    async def perform(self, url: str) -> bytes:
        return b""


class Scale(Job):
    async def perform(self, data: bytes, width: int) -> str:
        return ""


@job(result_ttl=3600)
async def ascale(data: bytes, width: int) -> str:
    return ""


class Publish(Job):
    def perform(self, name: str, times: int = 1) -> None: ...


class Fetch(Job):
    def perform(self, url: str) -> bytes:
        return b""


def chains() -> None:
    assert_type(download.then(resize, 80).enqueue("a.png"), Handle[str] | None)
    assert_type(download.then(resize, 80, height=90).then(Publish).enqueue("a.png"), Handle[None] | None)
    assert_type(Fetch.then(resize, 80).then(Publish.set(queue="low"), times=2).enqueue("a.png"), Handle[None] | None)
    assert_type(adownload.then(resize, 80).perform_inline("a.png"), str | None)
    assert_type(download.set(queue="low").then(resize, 80).then(measure).perform_inline("a.png"), int | None)
    assert_type(download.then(resize, 80).perform_in(60, url="a.png"), Jid | None)
    assert_type(download.then({"class": "Acme::Mail", "queue": "mailers"}, 7).perform_async("a.png"), Jid | None)


def wrong_chains() -> None:
    download.then(resize)  # type: ignore[call-overload]
    download.then(resize, "80")  # type: ignore[call-overload]
    download.then(measure)  # type: ignore[call-overload]
    adownload.then(measure)  # type: ignore[call-overload]
    Fetch.then(Publish)  # type: ignore[call-overload]
    download.then(resize, 80).then(download.set(queue="low")).enqueue(1)  # type: ignore[arg-type]
    download.then(resize, 80).enqueue(b"a.png")  # type: ignore[arg-type]


async def async_jobs() -> None:
    """Both forms have the result that awaiting gives; a call of the function is a coroutine still."""
    assert_type(await adownload("a.png"), bytes)
    assert_type(await ascale(b"", 80), str)
    assert_type(adownload.enqueue("a.png"), Handle[bytes] | None)
    assert_type(await adownload.aenqueue("a.png"), Handle[bytes] | None)
    assert_type(ascale.set(queue="low").enqueue(b"", width=80), Handle[str] | None)
    assert_type(adownload.perform_inline("a.png"), bytes | None)
    assert_type(Lookup.enqueue("a.png"), Handle[bytes] | None)
    assert_type(await Lookup.aenqueue("a.png"), Handle[bytes] | None)
    assert_type(Lookup.perform_inline("a.png"), bytes | None)
    assert_type(Lookup.set(queue="low").enqueue("a.png"), Handle[bytes] | None)
    assert_type(RenewLater.enqueue(shop=7), Handle[None] | None)
    handle = Lookup.enqueue("a.png")
    if handle is not None:
        assert_type(handle.result(3), bytes)
        assert_type(await handle.aresult(3), bytes)
    Lookup.enqueue(7)  # type: ignore[call-overload]
    adownload.enqueue(7)  # type: ignore[arg-type]


def async_chains() -> None:
    assert_type(Lookup.then(Scale, 80).enqueue("a.png"), Handle[str] | None)
    assert_type(Lookup.then(resize, 80).then(measure).enqueue("a.png"), Handle[int] | None)
    assert_type(Fetch.then(Scale, width=80).enqueue("a.png"), Handle[str] | None)
    assert_type(Fetch.then(ascale, 80).enqueue("a.png"), Handle[str] | None)
    assert_type(adownload.then(ascale, 80).then(Publish).enqueue("a.png"), Handle[None] | None)
    assert_type(download.then(Scale, 80).then(measure).perform_inline("a.png"), int | None)
    Lookup.then(measure)  # type: ignore[call-overload]
    adownload.then(Scale, "80")  # type: ignore[call-overload]
