"""A user of Redis who lacks one command: kiqctl and the pages name it, and never show an answer without it.

For every command of kiqctl and every page, each Redis command that it uses is refused in turn, also inside of scripts.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kiqcluster.control.control_messages import Message
from kiqcluster.ctl.command import command
from kiqcluster.ctl.exporter.exporter import Exporter
from kiqcluster.errors import ExitCode
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl
from tests.redis.refusals import USER, Refusals
from tests.redis.web import fleet
from tests.redis.web.features import BATCH
from tests.redis.web.site import Site, entry_keys
from tests.redis.web.test_broken_records import MOST_PAGES, STARTS, fill

# A call of each command of kiqctl.
CALLS: dict[str, str] = {
    "busy": "",
    "cancel": "j1",
    "cron disable": "nightly",
    "cron enable": "nightly",
    "cron enqueue": "nightly",
    "cron import": "",
    "cron list": "",
    "cron next": "nightly",
    "cron remove": "Beta",
    "cron show": "nightly",
    "dead delete": "j1",
    "dead list": "",
    "dead retry": "j1",
    "dead show": "j1",
    "deploy abort": "--owner ada@host:1",
    "deploy begin": "--owner ada@host:1 --label v2",
    "deploy commit": "--owner ada@host:1",
    "deploy status": "",
    "dropped add-to-queue": "j1",
    "dropped delete": "j1",
    "dropped list": "",
    "dropped show": "j1",
    "dump": "",
    "enqueue": "Job 1 --queue default",
    "jobs": "default",
    "kill": "j1",
    "limits jobs": "Beta",
    "limits list": "",
    "limits reset": "Beta",
    "limits set": "Beta 3",
    "locks list": "",
    "locks release": "Beta --yes",
    "migrate": "--class Job --from default --to low --yes",
    "monitor": "",
    "ps": "",
    "queues clear": "default --yes",
    "queues latency": "default",
    "queues list": "",
    "queues pause": "default",
    "queues resume": "mailers",
    "quiet": "--wait",
    "reload": "",
    "resume": "",
    "retries delete": "j1",
    "retries kill": "j1",
    "retries list": "",
    "retries reschedule": "j1 --in 5m",
    "retries retry": "j1",
    "retries show": "j1",
    "roll": "",
    "routes": "-r tests.apps.basic",
    "scheduled add-to-queue": "j1",
    "scheduled delete": "j1",
    "scheduled kill": "j1",
    "scheduled list": "",
    "scheduled reschedule": "j1 --in 5m",
    "scheduled show": "j1",
    "signal": "TTIN --all",
    "stats": "--history 3",
    "strike add": "Job --drop",
    "strike list": "",
    "strike remove": "x",
    "batches cancel": f"{BATCH} --yes",
    "batches close": BATCH,
    "batches list": "",
    "batches mark": f"{BATCH} j1 --as finish --yes",
    "batches show": BATCH,
    "top": "--once --interval 0.1s",
}
WITHOUT_REDIS = {"completion", "web", "exporter"}  # a script for a shell; servers, whose pages are asked below
ORDERS = {
    "deploy abort",
    "deploy begin",
    "deploy commit",
    "dump",
    "kill",
    "quiet",
    "reload",
    "resume",
    "roll",
    "signal",
}

# What is written beside an answer, by a call that does its work without it; and who makes up for it.
BESIDE: dict[str, set[str]] = {
    "cancel": {"expire", "rpush"},  # who waits for the result: learns it at the end of that wait
    "cron enqueue": {"sadd", "zrem"},  # the list of queues, which workers have by their names; an old mark
    "dead retry": {"sadd"},
    "dropped add-to-queue": {"sadd"},
    "limits reset": {"hkeys", "hlen", "hmget", "hset", "rpush", "scard", "smismember", "zadd", "zcard", "zcount"}
    | {"zrange", "zrangebyscore"},  # parked jobs that go on: workers look at their lines each minute
    "limits set": {"hkeys", "hlen", "hmget", "rpush", "scard", "smismember", "zadd", "zcount", "zrange"}
    | {"zrangebyscore"},
    "migrate": {"sadd"},
    "queues pause": {"client|kill", "client|list"},  # waits that are armed: they end within 20 seconds
    "retries retry": {"sadd"},
    "scheduled add-to-queue": {"sadd"},
    "batches cancel": {"expire", "rpush", "zremrangebyrank", "zremrangebyscore"},  # who waits; marks that have ended
}
FLEET = ("app:101:y", "app:102:z", "ruby:7:q")  # of `fill`: nobody answers there
OPTIONAL_OF_PAGES = {"info"}  # the dashboard shows the refusal in its place
BESIDE_OF_PAGES = {"set"}  # a new secret, where Redis has one
IDS = re.compile(r"[0-9a-f]{16,}|[0-9.,]+ ?(?:s|ms|m|h|MB|kB|MiB|KiB)\b|\d+")


class Obedient(FakeSupervisor):
    """A supervisor whose rolls end at once; one of its workers runs the job j1."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        fleet.running(store, self.workers[0], 1)

    def _obey(self, message: Message) -> None:
        super()._obey(message)
        if message.action == "roll":
            self.state["roll"] |= {"state": "done", "done": 2}


def servers() -> list[object]:
    """Return the servers to try: Redis 7.0 of Debian, whose words name no command of a script, and the newest."""
    old = shutil.which("redis-server")
    return [pytest.param(old, id="redis"), pytest.param(None, id="newest", marks=pytest.mark.full)] if old else [None]


@pytest.fixture(scope="module", params=servers())
def refusals(request: pytest.FixtureRequest) -> Iterator[Refusals]:
    with RedisServer(program=request.param) as server:
        yield Refusals(server, lay)


def lay(store: Store) -> None:
    """Have something of each kind, and no bulk action that a page would go on with."""
    fill(store)
    entry_keys(store)  # makes the secret by which pages name jobs
    for key in store.call("KEYS", "kiq:bulk:*"):
        store.call("HSET", key, "state", "done")


def leaves(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all commands."""
    if not isinstance(group, click.Group):
        yield " ".join(path)
        return
    for name, each in group.commands.items():
        yield from leaves(each, (*path, name))


def test_each_command_of_kiqctl_is_called_below() -> None:
    assert set(leaves(command)) == CALLS.keys() | WITHOUT_REDIS


def run(refusals: Refusals, call: str, *forbidden: str) -> tuple[int, str, str]:
    """Run a command of kiqctl; return its exit code, what it prints without ids and times, and what it complains of."""
    refusals.begin(*forbidden)
    return run_at(refusals, call, refusals.url)


def run_at(refusals: Refusals, call: str, url: str) -> tuple[int, str, str]:
    with ExitStack() as stack:
        if call in ORDERS:
            refusals.admin.pipeline([("UNLINK", *FLEET), ("SREM", "processes", *FLEET)])
            stack.callback(Obedient(refusals.admin).close)
        refusals.admin.pipeline([("ACL", "LOG", "RESET"), ("CONFIG", "RESETSTAT")])
        result = Kiqctl(url)(*call.split(), *CALLS[call].split())
    return result.exit_code, IDS.sub("#", result.stdout), result.stderr


SLOW = ORDERS - {"quiet", "deploy commit"}  # they wait for answers; all go one way


EACH_CALL = [pytest.param(each, marks=[pytest.mark.full] * (each in SLOW)) for each in CALLS]


@pytest.mark.parametrize("call", EACH_CALL)
def test_a_command_has_all_rights_that_it_needs_as_the_user_of_the_guide(refusals: Refusals, call: str) -> None:
    code, _, complaint = run(refusals, call)

    complaint = complaint.replace(f"//{USER}:", "//kiqctl:")  # an address that it names
    assert run_at(refusals, call, refusals.begin_as("kiqctl"))[::2] == (code, complaint)
    assert not refusals.was_refused()


# One of three commands of each call in the short form, others of the next one; all in the long one.
THIRDS = [0, *(pytest.param(third, marks=pytest.mark.full) for third in (1, 2))]


@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.parametrize("call", EACH_CALL)
def test_a_command_names_what_redis_forbids_it(refusals: Refusals, call: str, third: int) -> None:
    code, shown, _ = run(refusals, call)
    beside = set[str]()

    for name in sorted(refusals.used())[(third + list(CALLS).index(call)) % 3 :: 3]:
        found, told, complaint = run(refusals, call, name)
        if not refusals.was_refused():  # of the test, or of another way through the command
            continue
        if (found, told) == (code, shown) and name in BESIDE.get(call, ()):
            beside.add(name)
            continue
        assert found == ExitCode.REDIS_REFUSED, f"without {name} it prints {told!r}, {complaint!r}"
        assert name.lower() in complaint.lower()

    assert beside <= BESIDE.get(call, set())


@pytest.fixture(scope="module")
def pages(refusals: Refusals) -> dict[str, str]:
    """Return a path of each page."""
    refusals.begin()
    site = Site(refusals.admin)
    adapter = site.app.routes.url_map.bind("localhost")
    found: dict[str, str] = {}
    for path, answer in site.crawl(STARTS, most=MOST_PAGES).items():
        assert answer.status_code == 200, path
        found.setdefault(adapter.match(path.partition("?")[0], method="GET")[0], path)
    return found


def test_the_pages_have_all_rights_that_they_need_as_the_user_of_the_guide(
    refusals: Refusals, pages: dict[str, str]
) -> None:
    for name, path in pages.items():
        assert ask(refusals.begin_as("pages"), path)[0] == 200, name
        assert not refusals.was_refused(), name


@pytest.mark.parametrize("third", THIRDS)
def test_a_page_names_what_redis_forbids_it(refusals: Refusals, pages: dict[str, str], third: int) -> None:
    for number, (name, path) in enumerate(pages.items()):
        refusals.begin()
        shown = ask(refusals.url, path)
        assert shown[0] == 200, name
        for forbidden in sorted(refusals.used())[(third + number) % 3 :: 3]:
            refusals.begin(forbidden)
            status, text = ask(refusals.url, path)
            if not refusals.was_refused() or (status == shown[0] and forbidden in BESIDE_OF_PAGES):
                continue
            assert forbidden.lower() in text.lower(), f"{name} without {forbidden}: {status}"
            assert status == 500 or forbidden in OPTIONAL_OF_PAGES, f"{name} without {forbidden}"


def test_pages_that_cannot_share_a_secret_say_which_setting_they_need(refusals: Refusals) -> None:
    refusals.begin("set")
    refusals.admin.call("UNLINK", refusals.admin.keys.web_secret)

    status, text = ask(refusals.url, "/scheduled")

    assert status == 500
    assert "set [web] secret" in text


def ask(url: str, path: str) -> tuple[int, str]:
    """Return the status and the text of a page, without ids and times."""
    answer = Site(Store(url)).get(path)
    return answer.status_code, IDS.sub("#", answer.text)


def test_the_exporter_is_not_up_without_what_it_reads(refusals: Refusals) -> None:
    refusals.begin()
    gauges(refusals)
    for forbidden in sorted(refusals.used()):
        refusals.begin(forbidden)
        told, text = gauges(refusals)
        if refusals.was_refused():
            assert "kiqcluster_exporter_up 0.0" in text
            assert forbidden.lower() in told.lower()


def gauges(refusals: Refusals) -> tuple[str, str]:
    """Return what the exporter tells its operator, and its page."""
    told: list[str] = []
    exporter = Exporter(Store(refusals.url), SystemClock(), 0.0, lambda outage: told.append(str(outage)))
    registry = CollectorRegistry()
    registry.register(exporter)
    return "\n".join(told), generate_latest(registry).decode()
