"""Launchers: programs that start threads before the command runs, in its process: agents, debuggers, others."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode
from tests.kit import Cluster, free_port, require_module, wait_until
from tests.stage import Stage

# As opentelemetry-instrument and others do: a folder in front of PYTHONPATH, whose threads run before any program.
AGENT = """
import os, sys, threading
threading.Thread(target=threading.Event().wait, name="agent", daemon=True).start()
if {hides!r} == "in sys.path":
    sys.path.remove(os.path.dirname(__file__))
elif {hides!r} == "in the environment":
    del os.environ["PYTHONPATH"]
"""
APP = """
    import os, sys, threading
    from kiqcluster import job

    IMPORTED_IN = os.getpid()

    @job()
    def look():
        names = sorted(each.name for each in threading.enumerate() if not each.name.startswith("kiq."))
        note(*names, IMPORTED_IN == os.getpid(), os.environ.get("PYTHONPATH") == os.environ.get("EXPECTED"))
    from tests.apps.basic import note
"""
# A program that runs another one within its own process, and a thread.
IN_PROCESS = """
import runpy, sys, threading

def wait_for_ever():
    threading.Event().wait()

threading.Thread(target=wait_for_ever, name="sampler", daemon=True).start()
sys.argv = ["kiqcluster", *sys.argv[3:]]
runpy.run_module("kiqcluster", run_name="__main__", alter_sys=True)
"""


def agent_in(folder: Path, hides: str = "nothing") -> str:
    """Write a sitecustomize that starts a thread; return the folder to put into PYTHONPATH."""
    agents = folder / "agents"
    agents.mkdir()
    (agents / "sitecustomize.py").write_text(AGENT.format(hides=hides))
    return str(agents)


def in_place_of_python(*words: str) -> tuple[str, ...]:
    """Return a program that runs these words, and then the arguments of the command, in place of Python alone."""
    return ("sh", "-c", f'shift; exec {shlex.join([sys.executable, *words])} "$@"', "sh")


def threads_of(cluster: Cluster) -> int:
    return len(list(Path(f"/proc/{cluster.pid}/task").iterdir()))


@pytest.mark.parametrize(
    ("flags", "optimize"),
    [
        pytest.param((), "", id="plain", marks=pytest.mark.full),
        pytest.param(("--preload",), "1", id="preload, without assertions"),
    ],
)
def test_threads_of_an_agent_run_in_the_workers_and_not_in_the_supervisor(
    stage: Stage, flags: tuple[str, ...], optimize: str
) -> None:
    agents = agent_in(stage.folder)
    app = stage.write_application(APP)
    cluster = stage.run_cluster(
        "default", "-c", "1", *flags, app=app, PYTHONPATH=agents, EXPECTED=agents, PYTHONOPTIMIZE=optimize
    )
    cluster.wait_ready()
    stage.push("look")

    stage.wait_noted(f"MainThread agent {not flags} True")
    assert threads_of(cluster) == 1
    assert cluster.stop() == 0
    assert cluster.seen("forked_with_threads") == []


def test_an_agent_that_takes_modules_away_leaves_the_application_those_of_the_worker(stage: Stage) -> None:
    """ddtrace does so where gevent is installed; a job's own `threading` would not know the thread that it runs in."""
    agents = agent_in(stage.folder)
    with Path(agents, "sitecustomize.py").open("a") as file:
        file.write(
            'import concurrent.futures\nfor name in ("threading", "concurrent.futures"): del sys.modules[name]\n'
        )
    app = stage.write_application("""
        import concurrent.futures, threading
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def look():
            thread = threading.current_thread()
            note(thread.name, concurrent.futures.wait is __import__("sys").modules["concurrent.futures"].wait)
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app, PYTHONPATH=agents, PYTHONOPTIMIZE="")
    cluster.wait_ready()
    stage.push("look")

    stage.wait_noted("kiq.processor/0 True")


@pytest.mark.parametrize("hides", [pytest.param("in sys.path", marks=pytest.mark.full), "in the environment"])
def test_an_agent_that_takes_its_folder_away_is_found_again(stage: Stage, hides: str) -> None:
    cluster = stage.run_cluster(
        "default",
        "-c",
        "1",
        app=stage.write_application(APP),
        PYTHONPATH=agent_in(stage.folder, hides),
        PYTHONOPTIMIZE="",  # so that it is started as a user starts it
    )
    cluster.wait_ready()
    stage.push("look")

    wait_until(lambda: [note for note in stage.notes() if note.startswith("MainThread agent True")], "the job to run")
    assert threads_of(cluster) == 1


def test_a_thread_of_a_program_that_runs_the_command_is_refused_by_name(stage: Stage) -> None:
    """To start that program again would be to guess what it does."""
    program = stage.folder / "launcher.py"
    program.write_text(IN_PROCESS)

    cluster = stage.run_cluster("default", through=in_place_of_python("-O", str(program)))

    assert cluster.wait() == ExitCode.USAGE
    said = "".join(cluster.lines)
    assert f"sampler (wait_for_ever in {program})" in said
    assert "Traceback" not in said


def test_a_thread_that_appears_later_is_told_and_keeps_no_slot_empty(stage: Stage) -> None:
    """As a profiler starts one that is attached to the supervisor; here preloaded code does, at the first fork."""
    app = stage.write_application("""
        import os, threading
        thread = threading.Thread(target=threading.Event().wait, name="late", daemon=True)
        os.register_at_fork(after_in_parent=lambda: thread.ident or thread.start())
    """)

    cluster = stage.run_cluster("default", "other", "-c", "1", "--preload", app=app)

    cluster.wait_ready(2)
    assert "late" in cluster.wait_for("forked_with_threads", slot=1)["threads"]


def test_jobs_run_under_a_debugger(stage: Stage) -> None:
    """As VS Code starts it.  It replaces the function that starts a thread, which is still a real one."""
    require_module("debugpy")
    through = in_place_of_python("-m", "debugpy", "--listen", f"127.0.0.1:{free_port()}")

    cluster = stage.run_cluster("default", "-c", "1", through=through, PYDEVD_DISABLE_FILE_VALIDATION="1")
    cluster.wait_ready()
    stage.push("record", "a")

    stage.wait_noted("ran a")
    cluster.signal(signal.SIGTERM)
    assert cluster.wait() == 0


@pytest.mark.parametrize(
    ("library", "module"), [("gevent", "monkey.is_module_patched"), ("eventlet", "patcher.is_monkey_patched")]
)
def test_green_threads_are_refused_with_the_name_of_the_library(stage: Stage, library: str, module: str) -> None:
    """The libraries need not be installed: the question is theirs, and the answer is asked of them."""
    name, function = module.split(".")
    (stage.folder / library).mkdir()
    (stage.folder / library / "__init__.py").touch()
    (stage.folder / library / f"{name}.py").write_text(f"def {function}(name): return name in ('thread', '_thread')\n")
    app = stage.write_application(f"import {library}.{name}")

    cluster = stage.run_cluster("default", "--directory", str(stage.folder), app=app)

    assert cluster.wait() == ExitCode.APPLICATION
    wait_until(lambda: f"{library} has replaced Python's threads" in "".join(cluster.lines), "the sentence")
