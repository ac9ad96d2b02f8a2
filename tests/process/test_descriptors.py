"""Descriptors of a worker that its jobs close."""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from tests.kit import Cluster
from tests.process.stage import dead, holders, identities, ledger, push, release, wait_gone, wait_noted, wait_settled

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]


def test_a_worker_whose_sockets_a_job_has_closed_is_replaced_and_no_job_with_it(
    run_cluster: RunCluster, store: Store, application: Application
) -> None:
    app = application("""
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
    cluster = run_cluster("default", "-c", "3", app=app)
    before = cluster.wait_ready()[0]
    push(store, "stubborn", "a")
    wait_noted(store, "began a")

    push(store, "close_all")
    cluster.wait_for("descriptors_lost", pid=before)
    push(store, "record", "b")
    release(store)

    cluster.wait_for("child_ready", count=2)
    wait_noted(store, "ended a", "ran b")
    wait_settled(store)
    assert ledger(store).count("began a") == 1
    wait_gone(before)
    assert dead(store) == []
    assert cluster.stop() == 0


def test_a_worker_that_its_supervisor_cannot_tell_to_stop_hears_of_it_by_a_signal(
    run_cluster: RunCluster, store: Store, application: Application
) -> None:
    app = application("""
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
    cluster = run_cluster("default", "-c", "1", "--timeout", "20", app=app)
    cluster.wait_ready()
    push(store, "close_line")
    wait_noted(store, "closing")
    wait_settled(store)

    code = cluster.stop()

    assert code == ExitCode.UNEXPECTED  # nobody could tell the supervisor that nothing is left behind
    assert cluster.seen("stop_overdue") == []
    assert holders(store) == identities(store) == set()
