"""--drain: end when there is nothing left to do, and not before."""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.store import Store
from tests.kit import Cluster
from tests.process.stage import ledger, push, push_many, queued

Run = Callable[..., Cluster]


def test_a_draining_cluster_ends_when_its_queues_are_empty_and_nothing_runs(run_cluster: Run, store: Store) -> None:
    push(store, "nap", "long", 1.5)
    push_many(store, "record", [[str(number)] for number in range(200)], queue="other")

    cluster = run_cluster("default", "other", "-c", "2", "--drain")

    assert cluster.wait() == 0
    assert len(ledger(store)) == 202
    assert "ended long" in ledger(store)
    assert queued(store) == queued(store, "other") == []


def test_what_its_last_job_pushes_is_run_as_well(
    run_cluster: Run, store: Store, application: Callable[[str], str]
) -> None:
    path = application(
        """
        import time
        from kiqcluster import job
        from tests.apps.basic import note

        @job(queue="other")
        def chain(number):
            time.sleep(0.5)
            note("link", number)
            if number:
                chain.perform_async(number - 1)
        """
    )
    push(store, "chain", 4, queue="other")

    cluster = run_cluster("default", "other", "-c", "1", "--drain", app=path)

    assert cluster.wait() == 0
    assert ledger(store) == [f"link {number}" for number in (4, 3, 2, 1, 0)]
