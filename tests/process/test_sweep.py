"""Workers that fall silent, on another host or cut off: any worker elsewhere gives their jobs back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kiqcluster.store import Store
from tests.kit import wait_until
from tests.proc import wait_exited
from tests.proxy import Proxy
from tests.stage import Stage

SOON = {"KIQ_HEALTH_RECOVER_AFTER": "3", "KIQ_HEALTH_SILENCE_TIMEOUT": "0"}


def move_to_another_host(store: Store, identity: str) -> None:
    """Make a member's record one of a machine that cannot be seen from here."""
    store.call("HSET", "kiq:members", identity, "00000001 another-boot another-namespace 1 0")


def test_the_jobs_of_a_host_that_is_gone_run_on_another(stage: Stage) -> None:
    lost = stage.run_cluster("default", "-c", "1", **SOON)
    survivor = stage.run_cluster("other", "-c", "1", **SOON)
    pids = lost.wait_ready()[0], survivor.wait_ready()[0]
    stage.push("stubborn", "a")
    stage.push("stubborn", "b")
    stage.wait_noted("began a")
    (old,) = stage.holders()
    move_to_another_host(stage.store, old)

    for pid in (lost.pid, pids[0]):
        os.kill(pid, signal.SIGKILL)
    wait_exited(pids[0])

    survivor.wait_for("recovered", identity=old, units=1)
    stage.wait_members(pids[1])
    assert stage.queued_args() == ["a", "b"]
    stage.release()
    stage.run_cluster("default", "-c", "1", **SOON)
    stage.wait_noted("ended a", "ended b")
    stage.wait_settled()
    assert stage.store.call("EXISTS", "kiq:suspects") == 0


def test_a_frozen_worker_is_swept_and_changes_nothing_when_it_wakes(stage: Stage) -> None:
    sleeper = stage.run_cluster("default", "-c", "1", **SOON)
    pid = sleeper.wait_ready()[0]
    stage.push("stubborn", "a", retry=3)
    stage.wait_noted("began a")
    (old,) = stage.members()

    os.kill(pid, signal.SIGSTOP)
    other = stage.run_cluster("default", "-c", "1", **SOON)
    other.wait_for("recovered", identity=old, units=1)
    wait_until(lambda: stage.notes().count("began a") == 2, "the job to run elsewhere")
    stage.release()
    wait_until(lambda: stage.store.call("GET", "stat:processed") == b"1", "its end there to be settled")
    os.kill(pid, signal.SIGCONT)

    sleeper.wait_for("worker_fenced", old=old)
    stage.wait_members(pid, other.wait_ready()[0])
    stage.wait_settled()
    assert stage.store.call("GET", "stat:processed") == b"1"
    assert stage.queued() == []
    assert stage.store.call("ZCARD", "retry") == 0


HEED = """
    import pathlib, time
    from kiqcluster import current_job, job

    def note(word):
        with open("notes", "a") as notes:  # no Redis: this worker is cut off
            notes.write(f"{word}\\n")

    @job()
    def heed():
        note("began")
        while not pathlib.Path("release").exists():
            if current_job().fenced:
                note("fenced, stopping" if current_job().stopping else "fenced")
                return
            time.sleep(0.01)
        note("ended")
"""


def test_a_job_of_a_worker_that_is_cut_off_can_tell_that_another_one_may_run_it(stage: Stage, tmp_path: Path) -> None:
    app, options = stage.write_application(HEED), ("-c", "1", "--directory", str(tmp_path))

    def noted() -> list[str]:
        notes = tmp_path / "notes"
        return notes.read_text().splitlines() if notes.exists() else []

    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        cut_off = stage.run_cluster("default", *options, f"--redis={proxy.url}", app=app, **SOON)
        cut_off.wait_ready()
        stage.push("heed")
        wait_until(lambda: noted() == ["began"], "the job to run")
        (old,) = stage.members()
        other = stage.run_cluster("default", *options, app=app, **SOON)
        other.wait_ready()

        with proxy.away():
            other.wait_for("recovered", identity=old, units=1)
            wait_until(lambda: len(noted()) == 3, "the job to run elsewhere, and to give way here")
            assert sorted(noted()) == ["began", "began", "fenced, stopping"]
            (tmp_path / "release").touch()
            wait_until(lambda: stage.store.call("GET", "stat:processed") == b"1", "its end to be settled")

        cut_off.wait_for("worker_fenced", old=old)
        stage.wait_settled()
        assert stage.store.call("GET", "stat:processed") == b"1"
        assert stage.queued() == []
