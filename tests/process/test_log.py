"""The log of a real cluster: a line for each job, in its place, whoever reads it."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kiqcluster import application_context
from kiqcluster.store import Store
from tests.kit import TIMEOUT_SECONDS, wait_until
from tests.process.unread import unread_cluster
from tests.stage import Stage

MANY_JOBS = 13_000  # more lines than a pipe and the job log hold
MAX_OTHER_LINES = 20  # that a worker writes while it runs these, at most
TALKER = """
    import logging
    from kiqcluster import job

    @job()
    def talk(word):
        logging.getLogger("app").info("at work: %s", word)

    @job()
    def nothing():
        pass
"""


def processed(store: Store) -> int:
    return int(store.call("GET", "stat:processed") or 0)


def done_jids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["ctx"]["jid"] for line in lines if line.get("event") == "job_done"]


def test_every_job_that_is_done_has_its_line_when_a_worker_has_left(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", app=stage.write_application(TALKER))
    cluster.wait_ready(2)

    jids = stage.push_many("nothing", [[]] * 2_000)
    wait_until(lambda: processed(stage.store) == len(jids), "the jobs to be done")
    assert cluster.stop() == 0
    cluster.close()

    assert sorted(done_jids(cluster.events)) == sorted(jids)
    last = {
        pid: [each["event"] for each in cluster.events if each["pid"] == pid][-1] for pid in cluster.pids().values()
    }
    assert set(last.values()) == {"worker_left"}


def test_lines_come_out_while_the_worker_is_idle_and_a_jobs_own_stand_before_its_last(stage: Stage) -> None:
    cluster = stage.run_cluster("default", app=stage.write_application(TALKER))
    cluster.wait_ready()

    jids = stage.push_many("talk", [[f"w{number}"] for number in range(50)])
    cluster.wait_for("job_done", count=len(jids))

    lines = [json.loads(line) for line in cluster.lines]
    for jid in jids:
        own = [line.get("event", line["msg"]) for line in lines if line.get("ctx", {}).get("jid") == jid]
        assert len(own) == 2
        assert own[0].startswith("at work")
        assert own[1] == "job_done"


def test_a_worker_whose_main_thread_fails_still_writes_what_its_jobs_have_done(stage: Stage) -> None:
    source = """
        import os, signal, threading
        from kiqcluster import job, on
        from kiqcluster.process.runtime import current_setup

        @job()
        def nothing():
            pass

        @job()
        def end_the_worker():
            if current_setup().current_store().call("INCR", "runs") == 1:
                os.kill(os.getpid(), signal.SIGALRM)
                threading.Event().wait(100)

        def fail(*_):
            raise SystemExit(3)

        @on("startup")
        def handle():
            signal.signal(signal.SIGALRM, fail)
    """
    jids = stage.push_many("nothing", [[]] * 20)
    stage.push("end_the_worker")

    cluster = stage.run_cluster("default", "-c", "1", app=stage.write_application(source))
    pid = cluster.wait_for("child_died", slot=0)["child"]

    assert done_jids([each for each in cluster.events if each["pid"] == pid]) == jids


SILENCING = """
    import io, logging, logging.config, os, warnings
    from kiqcluster import current_job, job

    ROOT = {"handlers": ["c"]}
    NONE = "[handlers]\\nkeys=\\n[formatters]\\nkeys=\\n"
    INI = f"[loggers]\\nkeys=root\\n{NONE}[logger_root]\\nlevel=ERROR\\nhandlers=\\n"

    def by_dict():
        handlers = {"c": {"class": "logging.StreamHandler"}}
        logging.config.dictConfig({"version": 1, "handlers": handlers, "root": ROOT})

    def by_file():
        logging.config.fileConfig(io.StringIO(INI))

    def by_level():
        logging.disable(logging.CRITICAL)

    def by_handlers():
        logging.getLogger().handlers.clear()

    def by_warnings():
        warnings.simplefilter("error")

    WAYS = {each.__name__: each for each in (by_dict, by_file, by_level, by_handlers, by_warnings)}
    for each in WAYS.values():
        each()

    class Unspeakable:
        def __str__(self):
            raise SystemExit

        __repr__ = __str__

    @job(retry=0)
    def move(path):
        os.chdir(path)

    @job(retry=0)
    def fail(way):
        WAYS[way]()
        current_job().log_extra_metadata_on_done("value", Unspeakable())
        raise ValueError(way)
"""


def test_no_setting_of_logging_by_the_application_hides_that_a_job_has_failed(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=stage.write_application(SILENCING))
    ways = ["by_dict", "by_file", "by_level", "by_handlers", "by_warnings"]

    stage.push_many("fail", [[way] for way in ways])

    wait_until(lambda: len(cluster.seen("job_failed")) == len(ways), "each failure to be in the log")
    failed = cluster.seen("job_failed")
    assert sorted(each["error"] for each in failed) == sorted(f"ValueError: {way}" for way in ways)
    assert {each["extra.fail.value"] for each in failed} == {"(its text cannot be shown: SystemExit)"}


def test_a_job_that_changes_what_all_jobs_share_is_in_the_log(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=stage.write_application(SILENCING))

    stage.push("move", str(tmp_path))

    said = cluster.wait_for("process_changed")
    assert (said["what"], said["now"]) == ("working directory", str(tmp_path))


@pytest.mark.durable_redis
def test_a_log_that_nobody_reads_stops_no_job_and_what_is_dropped_is_counted(stage: Stage) -> None:
    arguments = (
        "-r",
        stage.write_application(TALKER),
        "--redis",
        stage.redis.url,
        "--log-format",
        "json",
        "default",
    )
    output: list[bytes] = []
    with unread_cluster(*arguments) as (process, _):
        jids = stage.push_many("nothing", [[]] * MANY_JOBS)
        wait_until(lambda: processed(stage.store) == MANY_JOBS, "the jobs to be done although nobody reads", 60)

        reader = threading.Thread(target=lambda: output.extend(process.stdout or []), daemon=True)
        reader.start()
        wait_until(lambda: any(b"lines_dropped" in line for line in output), "the drop to be told")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
        reader.join(10)

    lines = [json.loads(line[line.index(b"{") :]) for line in output if b"{" in line]
    written, dropped = done_jids(lines), sum(line.get("lines", 0) for line in lines)
    assert set(written) <= set(jids)
    assert len(set(written)) == len(written)
    assert dropped > 0
    # Of the few other lines that the worker writes meanwhile some may be dropped, and counted, as well.
    assert MANY_JOBS <= len(written) + dropped <= MANY_JOBS + MAX_OTHER_LINES


@pytest.mark.parametrize("prints", ["nothing", "a word"])
def test_a_worker_whose_output_nobody_reads_runs_its_exit_handlers_and_ends(stage: Stage, prints: str) -> None:
    """The handlers that the application has registered before Python's logging has its own come last."""
    source = f"""
        import atexit, logging, os, sys
        from pathlib import Path
        from kiqcluster import on
        HERE = Path(__file__).parent

        atexit.unregister(logging.shutdown)  # in the order of a launcher that comes before logging
        atexit.register((HERE / "handled").touch)
        atexit.register(logging.shutdown)
        on("exit")((HERE / "left").touch)
        if {prints!r} != "nothing":
            on("exit")(lambda: sys.stdout.write({prints!r}))  # stays in its buffer
    """
    arguments = ("-r", stage.write_application(source), "--redis", stage.redis.url, "--log-format", "json", "default")
    with unread_cluster(*arguments, "--timeout", "3") as (process, _):
        stage.push_many("record", [[f"{n}"] for n in range(100)])
        wait_until(lambda: processed(stage.store) == 100, "the jobs to be done although nobody reads")
        process.send_signal(signal.SIGTERM)

        assert process.wait(TIMEOUT_SECONDS) == 0  # 9 if the worker had to be killed
    assert (stage.folder / "left").exists()
    assert (stage.folder / "handled").exists()


def test_full_lines_have_gitlabs_fields_and_a_job_logger_sees_every_run(stage: Stage) -> None:
    source = """
        import logging
        from kiqcluster import current_job, job, job_logger

        @job(loggable_arguments=["path"], retry=0)
        def resize(path, width, token):
            current_job().log_extra_metadata_on_done("pixels", width * width)
            if not width:
                raise ValueError("no width")

        @job_logger
        class Lines:
            def prepare(self, item, proceed):
                proceed()

            def call(self, item, queue, proceed):
                try:
                    proceed()
                finally:
                    logging.getLogger("app").info("%s of %s", item["class"], queue)
    """
    cluster = stage.run_cluster("default", "-c", "1", app=stage.write_application(source), KIQ_LOG_JOBS="full")
    cluster.wait_ready()

    with application_context(correlation_id="r-1", user="ann"):
        done = stage.push("resize", "a.png", 20, "secret")
    failed = stage.push("resize", "b.png", 0, "secret")
    cluster.wait_for("job_failed", jid=failed)

    lines = [json.loads(line) for line in cluster.lines]
    of_done, of_failed = ([line for line in lines if line.get("ctx", {}).get("jid") == jid] for jid in (done, failed))
    assert [line.get("job_status", line["msg"]) for line in of_done] == ["start", "resize of default", "done"]
    assert [line.get("job_status", line["msg"]) for line in of_failed] == ["start", "resize of default", "fail"]
    first, _, last = of_done
    expected = {
        "event": "job_done",
        "args": ["a.png", 20, "[FILTERED]"],
        "retry": 25,
        "correlation_id": "r-1",
        "meta.user": "ann",
        "worker_id": "sidekiq_0",
        "extra.resize.pixels": 400,
        "enqueued_at": first["enqueued_at"],
    }
    assert {key: last.get(key) for key in expected} == expected
    assert 0 <= last["scheduling_latency_s"] < TIMEOUT_SECONDS
    assert of_failed[2]["error_class"] == "ValueError"
    assert "secret" not in "".join(cluster.lines)
