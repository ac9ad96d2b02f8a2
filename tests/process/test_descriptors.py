"""Descriptors of a worker that its jobs close."""

from __future__ import annotations

from kiqcluster.errors import ExitCode
from tests.kit import wait_until
from tests.proc import wait_exited
from tests.stage import Stage


def test_a_worker_whose_sockets_a_job_has_closed_is_replaced_and_no_job_with_it(stage: Stage) -> None:
    app = stage.write_application("""
        import os, socket
        from tests.apps.basic import stubborn
        from kiqcluster import job

        @job()
        def close_all():
            for word in os.listdir("/proc/self/fd"):
                number = int(word)
                try:
                    with socket.socket(fileno=os.dup(number)) as found:
                        if found.family == socket.AF_UNIX:
                            os.close(number)
                except OSError:
                    continue
    """)
    cluster = stage.run_cluster("default", "-c", "3", app=app)
    before = cluster.wait_ready()[0]
    stage.push("stubborn", "a")
    stage.wait_noted("began a")

    stage.push("close_all")
    cluster.wait_for("descriptors_lost", pid=before)
    stage.push("record", "b")
    stage.release()

    cluster.wait_for("child_ready", count=2)
    stage.wait_noted("ended a", "ran b")
    stage.wait_settled()
    assert stage.notes().count("began a") == 1
    wait_exited(before)
    assert stage.dead() == []
    assert cluster.stop() == 0


def test_a_worker_that_its_supervisor_cannot_tell_to_stop_hears_of_it_by_a_signal(stage: Stage) -> None:
    app = stage.write_application("""
        import os, socket
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def close_line():
            note("closing")
            for word in os.listdir("/proc/self/fd"):
                try:
                    with socket.socket(fileno=os.dup(int(word))) as found:
                        made_by = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
                        if found.family == socket.AF_UNIX and int.from_bytes(made_by, "little") == os.getppid():
                            os.close(int(word))
                except OSError:
                    continue
    """)
    cluster = stage.run_cluster("default", "-c", "1", "--timeout", "20", app=app)
    cluster.wait_ready()
    stage.push("close_line")
    stage.wait_noted("closing")
    stage.wait_settled()

    code = cluster.stop()

    assert code == ExitCode.UNEXPECTED  # nobody could tell the supervisor that nothing is left behind
    assert cluster.seen("stop_overdue") == []
    assert stage.holders() == stage.members() == set()


def test_a_connection_never_gets_the_number_of_a_standard_stream_that_a_job_has_closed(stage: Stage) -> None:
    """All that is printed and logged later would be sent to Redis as commands."""
    app = stage.write_application("""
        import os, stat
        from kiqcluster import job
        from kiqcluster.process.runtime import current_setup

        @job()
        def close_streams(path):
            for number in (0, 1, 2):
                os.close(number)
            store = current_setup().current_store()
            store.close()
            store.call("PING")
            kinds = ("socket" if stat.S_ISSOCK(os.fstat(number).st_mode) else "none" for number in (0, 1, 2))
            with open(path, "w") as notes:
                notes.write(" ".join(kinds))
    """)
    cluster = stage.run_cluster("default", app=app)
    cluster.wait_ready()
    notes = stage.folder / "notes of streams"

    stage.push("close_streams", str(notes))

    wait_until(lambda: notes.exists() and notes.read_text(), "the job to note what it has")
    assert notes.read_text() == "none none none"
