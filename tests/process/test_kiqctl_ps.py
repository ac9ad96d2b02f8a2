"""kiqctl ps: what it says of clusters in trouble, or half-way somewhere, fake ones and real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.fake_supervisor import FakeControlSocket, FakeSupervisor, fake_control_socket
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.process.releases import Releases
from tests.stage import Stage

TRACEBACK = "slot 1: pid 9 exited with 3\nTraceback (most recent call last):\n  File x\nRuntimeError: no database"


@pytest.fixture
def here(store: Store) -> Iterator[FakeSupervisor]:
    """A supervisor with the workers 101 and 102."""
    supervisor = FakeSupervisor(store)
    yield supervisor
    supervisor.close()


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[FakeControlSocket]:
    """A supervisor with the same workers behind a control socket."""
    with fake_control_socket(tmp_path / "control.sock") as supervisor:
        yield supervisor


def child(slot: int, pid: int | None, state: str = "ready", **other: Any) -> dict[str, Any]:
    """Return a row of what a supervisor tells of its processes."""
    about = {"release": "/srv/releases/5", "generation": 0, "backoff": 0.0, "waits_for": "", "redis": True}
    return {"slot": slot, "pid": pid, "state": state, **about, **other}


def head(text: str) -> list[str]:
    """Return the lines above the table."""
    lines = text.splitlines()
    return lines[: next(at for at, line in enumerate(lines) if line.split()[:1] == ["PID"])]


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the table, each by the names of its columns; two spaces or more are between cells."""
    titles, *rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()[len(head(text)) :]]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def steady(line: str) -> str:
    """Return a line whose durations have no seconds: some pass meanwhile."""
    return re.sub(r"(\dm) \d+s", r"\1", line)


# restarts


def test_a_slot_whose_worker_has_died_shows_how_often_and_how_long_ago(
    kiqctl: Kiqctl, here: FakeSupervisor, behind: FakeControlSocket
) -> None:
    died_at = here.beat - 180
    here.change(children=[child(0, 101, restarts=3, died_at=died_at), child(1, 102, restarts=0), child(2, None)])

    shown = table(kiqctl("ps").stdout)

    assert [re.sub(r" \d+s", "", row["RESTARTS"]) for row in shown] == ["3 (3m ago)", "0", "–"]


def test_restarts_on_purpose_do_not_count_and_others_do_by_redis_and_by_socket(
    stage: Stage, kiqctl: Kiqctl, tmp_path: Path
) -> None:
    socket = str(tmp_path / "control.sock")
    cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=socket)
    cluster.wait_ready()
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    os.kill(cluster.pids()[0], signal.SIGKILL)
    cluster.wait_for("child_ready", count=3)

    for words in (["ps"], ["ps", "--socket", socket]):
        wait_until(
            lambda words=words: [row["RESTARTS"].partition(" (")[0] for row in table(kiqctl(*words).stdout)] == ["1"],
            "the one restart that nobody wanted",
        )
    assert (cluster.restarts("rolling"), cluster.restarts("killed")) == (1, 1)


# the latest roll


def test_a_failed_roll_is_one_line_with_its_time_and_the_way_to_the_whole(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    report = {"id": "1", "state": "failed", "done": 1, "of": 3, "error": TRACEBACK, "ended_at": here.beat - 180}
    here.change(roll=report)

    done = kiqctl("ps")

    first, failed, whole = head(done.stdout)
    assert "roll" not in first
    assert steady(failed) == "  the last roll failed 3m ago with 1 of 3 replaced: slot 1: pid 9 exited with 3"
    assert "kiqctl ps --json" in whole
    assert [row["PID"] for row in table(done.stdout)] == ["101", "102"]
    assert json.loads(kiqctl("ps", "--json").stdout)["clusters"][0]["roll"]["error"] == TRACEBACK


def test_a_roll_that_is_done_is_told_until_the_next(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(roll={"id": "1", "state": "done", "done": 2, "of": 2, "error": "", "ended_at": here.beat - 60})

    assert [steady(line) for line in head(kiqctl("ps").stdout)[1:]] == ["  rolled 2 of 2, 1m ago"]


def test_one_of_which_nobody_told_the_time_is_told_without(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(roll={"id": "1", "state": "done", "done": 2, "of": 2, "error": ""})

    assert head(kiqctl("ps").stdout)[1:] == ["  rolled 2 of 2"]


@pytest.mark.parametrize(
    "nonsense", ["x\x1b[2J", [1], -1, *(pytest.param(each, marks=pytest.mark.full) for each in (None, {}, 1e300))]
)
def test_a_supervisor_that_tells_nonsense_hides_no_other_and_can_be_told(
    kiqctl: Kiqctl, here: FakeSupervisor, nonsense: Any
) -> None:
    fields = ("slots", "lease_remaining", "quiet_by", "roll", "reload", "at", "children", "version", "restart_needed")
    here.change(**dict.fromkeys(fields, nonsense))

    for words in (["ps"], ["ps", "--json"], ["top", "--once", "--interval", "0.1s"], ["resume"]):
        done = kiqctl(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout


def test_orders_that_are_no_rolls_say_nothing_of_the_latest_one(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(roll={"id": "1", "state": "failed", "done": 1, "of": 3, "error": TRACEBACK})

    for order in ("quiet", "resume"):
        done = kiqctl(order)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
        assert "database" not in done.stdout
        assert "failed" not in done.stdout


def test_a_failed_reload_is_told_likewise(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(reload={"id": "1", "state": "failed", "error": "no TOML", "ended_at": here.beat - 60})

    assert [steady(line) for line in head(kiqctl("ps").stdout)[1:]] == ["  the last reload failed 1m ago: no TOML"]


# how each process stands


STATES = {
    "serves": child(0, 101),
    "quiet": child(0, 101, "quiet"),
    "booting": child(0, 101, "booting"),
    "booting: Redis is loading": child(0, 101, "booting", waits_for="Redis is loading"),
    "stopping": child(0, 101, "stopping"),
    "no Redis": child(0, 101, redis=False),
}


@pytest.mark.parametrize("words", STATES)
def test_a_process_says_how_it_stands(kiqctl: Kiqctl, here: FakeSupervisor, words: str) -> None:
    if words == "quiet":
        here.quiet_alone = {here.workers[0]}
    here.change(children=[STATES[words], child(1, 102)])

    assert [row["STATE"] for row in table(kiqctl("ps").stdout)] == [words, "serves"]


@pytest.mark.parametrize("words", STATES)
def test_and_so_it_does_by_the_control_socket(kiqctl: Kiqctl, behind: FakeControlSocket, words: str) -> None:
    slot = {name: STATES[words][name] for name in ("state", "redis", "waits_for")}
    behind.document["slots"][0] |= {**slot, "quiet": words == "quiet"}

    done = kiqctl("ps", "--socket", str(behind.path))

    assert [row["STATE"] for row in table(done.stdout)] == [words, "serves"]


def test_a_worker_that_is_not_in_redis_yet_and_an_empty_slot_are_rows(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    rows = [child(0, 101), child(1, 102), child(2, 103, "booting"), child(3, None, "backoff", backoff=30.0)]
    here.change(children=rows, slots=4)

    shown = table(kiqctl("ps").stdout)

    assert [(row["PID"], row["STATE"]) for row in shown[:3]] == [
        ("101", "serves"),
        ("102", "serves"),
        ("103", "booting"),
    ]
    assert shown[3]["PID"] == "–"
    assert shown[3]["STATE"].startswith("backoff, ")
    assert len(json.loads(kiqctl("ps", "--json").stdout)["clusters"][0]["children"]) == 4


def test_successors_and_those_that_leave_are_rows_by_the_socket_too(kiqctl: Kiqctl, behind: FakeControlSocket) -> None:
    slot = behind.document["slots"][0]
    slot["successor"] = {**slot, "pid": 201, "state": "booting"}
    slot["leaving"] = [{**slot, "pid": 301, "state": "stopping", "successor": None}]
    behind.document["slots"][1] |= {"pid": None, "state": "backoff", "backoff": 12.0}

    shown = table(kiqctl("ps", "--socket", str(behind.path)).stdout)

    assert [(row["PID"], row["STATE"]) for row in shown] == [
        ("101", "serves"),
        ("201", "booting"),
        ("301", "stopping"),
        ("–", "backoff, 12s"),
    ]


def test_workers_of_which_their_supervisor_does_not_tell_are_rows(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    """It tells of at most 64; and news may be older than a worker."""
    here.change(children=[child(1, 102)])

    assert sorted(row["PID"] for row in table(kiqctl("ps").stdout)) == ["101", "102"]


@pytest.mark.parametrize("slots", ["nonsense", [1, None, {"slot": "x"}, {"slot": 0}], {"slot": 0}, 7])
def test_what_is_no_news_breaks_nothing(kiqctl: Kiqctl, here: FakeSupervisor, slots: Any) -> None:
    here.change(children=slots, roll="x", reload=[1], at="soon", lease_remaining=None)

    done = kiqctl("ps")

    assert done.returncode == 0, done.stderr
    assert {"101", "102"} <= {row["PID"] for row in table(done.stdout)}


# which code runs


def test_releases_are_shown_while_not_all_run_the_same(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(children=[child(0, 101), child(1, 102), child(2, None, "backoff", release="")])
    assert "RELEASE" not in kiqctl("ps").stdout

    here.change(children=[child(0, 101), child(1, 102, release="/srv/releases/6", generation=1)])
    shown = table(kiqctl("ps").stdout)

    assert [row["RELEASE"] for row in shown] == ["5", "6"]
    assert "GENERATION" not in shown[0]


def test_releases_of_one_name_are_shown_by_their_paths(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(children=[child(0, 101, release="/srv/5/shop"), child(1, 102, release="/srv/6/shop")])

    assert [row["RELEASE"] for row in table(kiqctl("ps").stdout)] == ["/srv/5/shop", "/srv/6/shop"]


def test_code_that_was_changed_in_place_is_told_apart_by_its_generation(kiqctl: Kiqctl, here: FakeSupervisor) -> None:
    here.change(children=[child(0, 101, generation=3), child(1, 102, generation=2)])

    shown = table(kiqctl("ps").stdout)

    assert [row["GENERATION"] for row in shown] == ["3", "2"]
    assert "RELEASE" not in shown[0]


# what waits, and what is old


def test_what_waits_is_said(kiqctl: Kiqctl, here: FakeSupervisor, behind: FakeControlSocket) -> None:
    needs = {"reload_needed": "groups", "roll_needed": "max_retries", "restart_needed": "0.2 is installed\nmore"}
    here.change(**needs)
    behind.document |= needs

    for words in ([], ["--socket", str(behind.path)]):
        (first,) = head(kiqctl("ps", *words).stdout)
        for need in ("reload needed: groups", "roll needed: max_retries", "restart needed: 0.2 is installed"):
            assert need in first


@pytest.mark.parametrize(("lag", "is_said"), [(10.0, False), (60.0, True)])
def test_a_supervisor_that_says_nothing_while_its_workers_beat_is_told(
    kiqctl: Kiqctl, here: FakeSupervisor, lag: float, is_said: bool
) -> None:
    here.change(at=here.beat - lag, quiet_by="kiqctl@x", lease_remaining=900.0)

    shown = kiqctl("ps")

    assert ("may be stuck" in shown.stdout) == is_said
    (cluster,) = json.loads(kiqctl("ps", "--json").stdout)["clusters"]
    assert cluster["silent_for"] == lag
    assert 890 - lag < cluster["lease_remaining"] <= 900 - lag  # its time runs from when that was said


def test_a_fleet_of_ruby_alone_is_shown_and_no_failure(kiqctl: Kiqctl, store: Store) -> None:
    info = {"hostname": "rails", "pid": 7, "concurrency": 5, "queues": ["default"], "version": "7.3.10", "labels": []}
    store.call("SADD", "processes", "rails:7:x")
    store.call("HSET", "rails:7:x", "info", json.dumps(info), "busy", 0, "beat", time.time(), "quiet", "false")
    store.call("EXPIRE", "rails:7:x", 60)

    done = kiqctl("ps")

    assert done.returncode == 0
    assert "rails:7:x" in done.stdout


# real clusters


def test_half_a_release_shows_which_worker_runs_what(stage: Stage, kiqctl: Kiqctl, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    cluster.wait_ready(2)
    releases.deploy("2", "assert os.environ.get('KIQ_SLOT') != '1', 'not in slot 1'")

    done = kiqctl("roll", "--wait")
    assert done.returncode == 1
    assert "not in slot 1" in done.stderr
    stage.wait_roll("failed")
    path = str(cluster.slots()[0]["release"])

    shown = kiqctl("ps").stdout

    assert [row["RELEASE"] for row in table(shown)] == [Path(path).name, "1"]
    assert "with 1 of 2 replaced: slot 1: " in shown


def test_a_slot_that_crashes_again_and_again_is_in_backoff(
    stage: Stage, kiqctl: Kiqctl, releases: Releases, tmp_path: Path
) -> None:
    releases.deploy("1", f"assert not pathlib.Path({str(tmp_path / 'broken')!r}).exists()")
    path = tmp_path / "control.sock"
    cluster = releases.run(stage, "default", "other", "-c", "1", KIQ_CONTROL=str(path))
    pids = cluster.wait_ready(2)
    (tmp_path / "broken").touch()

    os.kill(pids[1], signal.SIGKILL)

    for words in ([], ["--socket", str(path)]):
        shown = wait_until(
            lambda words=words: next(
                (row for row in table(kiqctl("ps", *words).stdout) if row["STATE"].startswith("backoff")), None
            ),
            f"ps {words} to show the slot",
        )
        assert shown["PID"] == "–"


@pytest.mark.own_redis
def test_an_outage_of_redis_shows_by_the_socket(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(path))
    cluster.wait_ready()
    kiqctl = Kiqctl(stage.redis.url)

    stage.redis.kill()

    wait_until(
        lambda: [row["STATE"] for row in table(kiqctl("ps", "--socket", str(path)).stdout)] == ["no Redis"],
        "ps to show the outage",
    )
