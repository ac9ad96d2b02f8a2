"""kiqctl ps, busy and monitor: what they show of processes and running jobs, ours and Ruby's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

OURS, RUBY = "app-1:5:aaaaaaaaaaaa", "rails-1:7:cccccccccccc"
NOW = 1_795_168_740.5
ACTIVE_JOB = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"


def run_job(store: Store, key: str, tid: str, name: str = "SendInvoice", queue: str = "mailers", **fields: Any) -> None:
    """Have a job run, by what its process says."""
    payload = ruby_json.encode({"class": name, "args": [7, "EUR"], "jid": f"{tid}-jid", "queue": queue, **fields})
    running_job = {"queue": queue, "payload": payload.decode(), "run_at": int(NOW)}
    store.call("HSET", key, tid, ruby_json.encode(running_job))


@pytest.fixture
def fake_supervisor(store: Store) -> Iterator[FakeSupervisor]:
    here = FakeSupervisor(store, workers=2)
    yield here
    here.close()


class TestPs:
    def test_it_says_how_long_processes_have_run_and_what_version_they_are(self, kiqctl: Kiqctl, store: Store) -> None:
        here = FakeSupervisor(store, workers=1)
        publish(store, RUBY, labels=[], version="6.4.1", started_at=NOW - 3 * 86_400, beat=NOW)
        try:
            shown, plain = json.loads(kiqctl("ps", "--json").stdout), kiqctl("ps").stdout
        finally:
            here.close()

        (worker,) = shown["clusters"][0]["workers"]
        (stranger,) = shown["others"]
        assert (worker["version"], stranger["version"]) == ("0.1.0", "6.4.1")
        assert 40 <= worker["uptime"] < 60  # the fake's heartbeat says so
        assert 0 <= stranger["uptime"] - 3 * 86_400 < 60
        for words in ("UP", "VERSION", "3d", "6.4.1", RUBY):
            assert words in plain

    def test_in_a_pipe_nothing_is_cut(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, RUBY, labels=[], queues=[f"queue-{number}" for number in range(200)])

        assert "queue-0, queue-1, " in kiqctl("ps").stdout
        assert "queue-199\n" in kiqctl("ps").stdout

    def test_names_of_queues_cannot_command_the_terminal(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, RUBY, labels=[], queues=["a\x1b[2Jb"])

        assert r"a\x1b[2Jb" in kiqctl("ps").stdout


class TestBusy:
    def test_running_jobs_are_shown_of_ours_and_of_rubys(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, OURS)
        publish(store, RUBY, labels=[])
        run_job(store, f"{OURS}:work", "one")
        run_job(store, f"{RUBY}:workers", "two", "Reports::Yearly", "reports")

        done, shown = kiqctl("busy"), json.loads(kiqctl("busy", "--json").stdout)

        assert done.returncode == 0
        for words in (
            OURS,
            RUBY,
            "one",
            "two-jid",
            "SendInvoice",
            "Reports::Yearly",
            '7, "EUR"',
            "2 jobs in 2 processes",
        ):
            assert words in done.stdout
        assert shown["busy"] == 2
        first = next(each for each in shown["jobs"] if each["tid"] == "one")
        assert (first["identity"], first["queue"], first["jid"], first["run_at"]) == (
            OURS,
            "mailers",
            "one-jid",
            int(NOW),
        )
        assert (first["class"], first["args"]) == ("SendInvoice", [7, "EUR"])

    @pytest.mark.parametrize(
        ("words", "tids"),
        [
            (["--queue", "mailers"], ["one", "three"]),
            (["--class", "Reports::Yearly"], ["two"]),
            (["--class", "Greet"], ["three"]),
            (["--class", ACTIVE_JOB], ["three"]),
            (["--queue", "reports", "--class", "SendInvoice"], []),
        ],
    )
    def test_a_queue_and_a_class_narrow_it(
        self, kiqctl: Kiqctl, store: Store, words: list[str], tids: list[str]
    ) -> None:
        publish(store, OURS)
        run_job(store, f"{OURS}:work", "one")
        run_job(store, f"{OURS}:work", "two", "Reports::Yearly", "reports")
        run_job(store, f"{OURS}:work", "three", ACTIVE_JOB, wrapped="Greet", args=[{"arguments": ["x"]}])

        shown = json.loads(kiqctl("busy", *words, "--json").stdout)

        assert sorted(each["tid"] for each in shown["jobs"]) == tids

    def test_that_nothing_runs_is_no_error(self, kiqctl: Kiqctl) -> None:
        done = kiqctl("busy")

        assert (done.returncode, done.stdout) == (0, "no jobs are running\n")

    def test_a_job_of_a_real_cluster_shows(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        pid = stage.occupy(cluster)[0]
        stage.ask_for_beats()

        def shown() -> list[Any]:
            jobs: list[Any] = json.loads(kiqctl("busy", "--json").stdout)["jobs"]
            return jobs

        (job,) = wait_until(shown, "the job to show")

        assert (job["class"], job["args"], job["queue"]) == ("stubborn", ["a"], "default")
        assert f":{pid}:" in job["identity"]
        stage.release()
        assert cluster.wait_done(job["jid"])["tid"] == job["tid"]


class TestMonitor:
    def test_it_has_the_sections_of_sidekiqmon(self, kiqctl: Kiqctl, store: Store) -> None:
        store.pipeline([("SET", "stat:processed", 1_234_567), ("SET", "stat:failed", 12), ("ZADD", "dead", 1, "x")])
        store.pipeline([("SADD", "queues", "mailers"), ("LPUSH", "queue:mailers", "{}")])
        publish(
            store,
            RUBY,
            labels=["reliable"],
            busy=2,
            queues=["low", "default"],
            quiet="true",
            tag="shop",
            version="0.0.9",
        )

        text = kiqctl("monitor").stdout

        assert text.startswith(f"kiqcluster {VERSION}\n")
        assert "---- Overview ----\n  Processed: 1,234,567\n     Failed: 12\n       Busy: 2\n   Enqueued: 1\n" in text
        assert f"---- Processes (1) ----\n{RUBY} [shop] [reliable] [quiet]\n" in text
        assert "  Threads: 5 (2 busy)\n   Queues: default; low\n  Version: 0.0.9\n" in text
        assert "---- Queues (1) ----\nNAME       SIZE  LATENCY\nmailers       1     0.00\n" in text

    @pytest.mark.parametrize(
        ("running_job", "shown"),
        [
            ({"queues": ["b", "a"]}, "a; b"),
            ({"queues": ["b", "a"], "weights": [{"b": 2, "a": 0}]}, "b: 2, a"),
            ({"weights": [{"b": 1}, {"a": 3}]}, "b: 1; a: 3"),
            ({"capsules": {"x": {"weights": {"b": 2, "a": 1}}, "y": {"weights": {"c": 0}}}}, "b, a; c"),
            ({"capsules": {"x": {"weights": {"a" * 70: 1}}}}, f"\n           {'a' * 70}"),
        ],
    )
    def test_queues_are_shown_as_in_sidekiqmon_of_8_1(
        self, kiqctl: Kiqctl, store: Store, running_job: dict[str, object], shown: str
    ) -> None:
        publish(store, RUBY)
        store.call("HSET", RUBY, "info", json.dumps({"version": VERSION, "concurrency": 5, **running_job}))

        text = kiqctl("monitor", "processes").stdout

        assert text.endswith(f"   Queues: {shown}\n"), text

    def test_sections_may_be_chosen(self, kiqctl: Kiqctl, store: Store) -> None:
        text = kiqctl("monitor", "queues", "overview").stdout
        shown = json.loads(kiqctl("monitor", "overview", "--json").stdout)

        assert text.index("Queues") < text.index("Overview")
        assert "Processes" not in text
        assert shown == {
            "overview": dict.fromkeys(("processed", "failed", "busy", "enqueued", "retries", "scheduled", "dead"), 0)
        }

    def test_a_section_that_there_is_not_is_exit_2(self, kiqctl: Kiqctl) -> None:
        assert kiqctl("monitor", "everything").returncode == 2


class TestEncodings:
    """What a terminal of another time lacks costs a character, never the command."""

    def test_lines_have_escapes(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, RUBY, labels=[], queues=["キュー"], version="")

        done = kiqctl("ps", PYTHONIOENCODING="latin-1")

        assert "Traceback" not in done.stderr
        assert r"\u30ad\u30e5\u30fc" in done.stdout

    @pytest.mark.parametrize(
        "encoding", ["ascii", *(pytest.param(one, marks=pytest.mark.full) for one in ("utf-8", "latin-1"))]
    )
    def test_documents_are_json_all_the_same(self, kiqctl: Kiqctl, store: Store, encoding: str) -> None:
        publish(store, OURS)
        run_job(store, f"{OURS}:work", "one", args=["é 🚀"])
        broken = ruby_json.encode({"queue": "low", "payload": '{"class":"A","args":["\\ud800"]}', "run_at": 1})
        store.call("HSET", f"{OURS}:work", "two", broken)

        done = kiqctl("busy", "--json", PYTHONIOENCODING=encoding)

        shown = {each["tid"]: each["args"] for each in json.loads(done.stdout)["jobs"]}
        assert shown == {"one": ["é 🚀"], "two": ["\ud800"]}


class TestTopOnce:
    def test_it_prints_what_the_screen_would_show(
        self, stage: Stage, kiqctl: Kiqctl, fake_supervisor: FakeSupervisor
    ) -> None:
        fake_supervisor.run_jobs(2, 1)
        stage.store.call("ZADD", "dead", NOW, "{}")
        stage.push("SendInvoice", 7, queue="mailers")

        done = kiqctl("top", "--once", "--interval", "0.1s")

        assert done.returncode == 0, done.stderr
        for words in ("0.0/s processed", "3 of 10 threads in 2 processes", "1 in 1 queue", "1 dead", "mailers"):
            assert words in done.stdout
        assert fake_supervisor.name in done.stdout

    def test_the_document_has_rates_sizes_and_processes(
        self, stage: Stage, kiqctl: Kiqctl, fake_supervisor: FakeSupervisor
    ) -> None:
        stage.store.pipeline([("SET", "stat:processed", 10), ("SET", "stat:failed", 1)])
        stage.store.call("ZADD", "retry", NOW, "{}")
        stage.push("SendInvoice", 7, queue="mailers")
        publish(stage.store, RUBY, labels=[], queues=["mailers"])

        shown = json.loads(kiqctl("top", "--json", "--interval", "0.1s").stdout)

        assert (shown["processed"], shown["failed"], shown["processed_per_second"]) == (10, 1, 0.0)
        assert (shown["retries"], shown["scheduled"], shown["dead"], shown["enqueued"]) == (1, 0, 0, 1)
        (queue,) = shown["queues"]
        assert (queue["name"], queue["size"], queue["processes"], queue["is_paused"]) == ("mailers", 1, 1, False)
        assert [each["identity"] for each in shown["processes"]] == sorted([*fake_supervisor.workers, RUBY])
        assert [each["is_ours"] for each in shown["processes"]] == [True, True, False]
