"""Exit handlers: what the application has registered with atexit runs at the end of a worker, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode
from tests.stage import Stage


def written(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_they_run_once_in_each_worker_after_the_exit_event(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "exits"
    app = stage.write_application(f"""
        import atexit, os
        from kiqcluster import on

        def write(word):
            with open({str(path)!r}, "a") as file:
                file.write(f"{{word}} {{os.getpid()}}\\n")

        def fail():
            raise ValueError("in an exit handler")

        atexit.register(write, "first registered")
        atexit.register(fail)
        on("exit")(lambda: write("exit event"))
        if os.fork() == 0:
            pass  # a child of the import runs none of them
    """)
    cluster = stage.run_cluster("default", "other", app=app)
    pids = cluster.wait_ready(2).values()

    assert cluster.stop() == 0

    assert sorted(written(path)) == sorted(
        f"{word} {pid}" for pid in pids for word in ("exit event", "first registered")
    )
    for pid in pids:
        assert written(path).index(f"exit event {pid}") < written(path).index(f"first registered {pid}")
    assert cluster.seen("exit_handlers_overdue") == []


@pytest.mark.parametrize("ends", ["cleanly", "in its boot"])
def test_one_that_hangs_ends_with_its_deadline_and_changes_no_exit_code(
    stage: Stage, tmp_path: Path, ends: str
) -> None:
    path = tmp_path / "exits"
    app = stage.write_application(f"""
        import atexit, os, time
        from kiqcluster import on

        @atexit.register
        def hang():
            with open({str(path)!r}, "a") as file:
                file.write("hangs\\n")
            time.sleep(600)

        if {ends!r} == "in its boot" and "KIQ_SLOT" in os.environ:
            raise ValueError("a broken release")
    """)
    cluster = stage.run_cluster("default", app=app)

    if ends == "cleanly":
        cluster.wait_ready(1)
        assert cluster.stop() == 0
        assert len(cluster.seen("exit_handlers_overdue")) == 1
        assert cluster.seen("stop_overdue") == []
    else:
        assert cluster.wait() == ExitCode.APPLICATION
    assert set(written(path)) == {"hangs"}
