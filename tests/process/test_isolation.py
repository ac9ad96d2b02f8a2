"""What children inherit: nothing that is the supervisor's or a sibling's.  And what the supervisor never has."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.kit import wait_until
from tests.proc import children, sockets
from tests.stage import Stage, pid_of


def output_pipes(pid: int) -> set[str]:
    """Return what a process writes its log to: shared on purpose."""
    return {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (1, 2)}


def watched(pid: int) -> set[str]:
    """Return the sockets that the epoll instances of a process watch."""
    inodes = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            inodes |= set(re.findall(r"tfd:.* ino:([0-9a-f]+)", info.read_text()))
        except FileNotFoundError:
            continue
    return {f"socket:[{int(inode, 16)}]" for inode in inodes}


def test_children_hold_nothing_of_the_supervisor_or_of_each_other(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    cluster.wait_ready(2)
    with socket.create_connection(("127.0.0.1", cluster.port)):  # a scraper in the middle of a request
        wait_until(lambda: len(watched(cluster.pid)) >= 5, "the supervisor to have accepted it")
        os.kill(cluster.pids()[0], signal.SIGKILL)
        cluster.wait_for("child_ready", slot=0, count=2)  # forked while all of that was open

        first, second = cluster.pids().values()
        supervisors = sockets(cluster.pid) - output_pipes(cluster.pid)
        shared = sockets(first) & sockets(second) - output_pipes(cluster.pid)

        assert len(supervisors) >= 6  # listener, connection, wakeup pair, a socket for each child
        for pid in (first, second):
            assert not sockets(pid) & supervisors
            assert not watched(pid) & supervisors
        assert shared == set()


def test_each_child_leads_a_process_group_and_reads_dev_null(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")

    for pid in cluster.wait_ready(2).values():
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(cluster.pid)
        assert str(Path(f"/proc/{pid}/fd/0").readlink()) == os.devnull


def test_the_supervisor_has_one_thread_and_no_connection_to_redis(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2")
    pids = cluster.wait_ready(2)
    stage.push("record", "a")
    stage.wait_noted("ran a")

    assert len(list(Path(f"/proc/{cluster.pid}/task").iterdir())) == 1
    assert connections(cluster.pid, stage.redis.port) == 0
    assert all(connections(pid, stage.redis.port) > 0 for pid in pids.values())


def connections(pid: int, port: int) -> int:
    """Return how many TCP connections to a local port a process holds."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    remote = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}")}
    return len(sockets(pid) & remote)


def test_the_supervisor_never_imports_the_application(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os
        with open("importers", "a") as file:
            file.write(f"{os.getpid()}\\n")
    """)
    cluster = stage.run_cluster("default", "--directory", str(tmp_path), app=app)
    child = cluster.wait_ready()[0]

    importers = [int(word) for word in (tmp_path / "importers").read_text().split()]
    assert len(importers) == 2  # the catalogue child, and the worker
    assert child in importers
    assert cluster.pid not in importers


def test_each_process_has_an_identity_and_a_slot_of_its_own(stage: Stage) -> None:
    app = stage.write_application("""
        import os, random
        from kiqcluster import job
        from tests.apps.basic import note

        DRAWN = random.random()

        @job()
        def tell(round):
            note(round, os.environ["KIQ_SLOT"], os.environ["SIDEKIQ_WORKER_ID"], DRAWN, os.getpid())
    """)
    cluster = stage.run_cluster("a", "b", "-c", "1", app=app)
    pids = cluster.wait_ready(2)
    assert {pid_of(name) for name in stage.members()} == set(pids.values())

    def ask_both(round_: str) -> dict[int, list[str]]:
        for queue in ("a", "b"):
            stage.push("tell", round_, queue=queue)
        lines = wait_until(
            lambda: two if len(two := [x.split() for x in stage.notes() if x.startswith(round_)]) == 2 else None,
            "both to tell",
        )
        return {int(line[4]): line[1:4] for line in lines}

    first = ask_both("first")
    os.kill(pids[1], signal.SIGKILL)
    replacement = cluster.wait_for("child_ready", slot=1, count=2)["child"]
    second = ask_both("second")

    assert [first[pids[slot]][:2] for slot in (0, 1)] == [["0", "0"], ["1", "1"]]
    assert second[replacement][:2] == ["1", "1"]
    assert len({line[2] for line in (*first.values(), *second.values())}) == 3  # randomness is each process' own
    wait_until(lambda: len(stage.members()) == 2, "the dead identity to leave")


def test_no_signal_is_blocked_in_a_worker_or_in_what_a_job_starts(stage: Stage) -> None:
    app = stage.write_application("""
        import subprocess
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def look():
            status = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, text=True).stdout
            note(status.split()[1])
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    stage.push("look")

    wait_until(lambda: stage.notes(), "the job to look")

    assert stage.notes() == ["0" * 16]
    pid = cluster.wait_ready()[0]
    # A thread that is being made has signals blocked for a moment.
    wait_until(lambda: blocked(cluster.pid) | blocked(pid) == {"0" * 16}, "no thread to block signals")


def blocked(pid: int) -> set[str]:
    """Return the signal masks of a process' threads."""
    masks = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            masks |= set(re.findall(r"SigBlk:\s+(\w+)", (task / "status").read_text()))
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
    return masks


def test_signals_that_the_starter_had_blocked_reach_the_supervisor(stage: Stage) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGTSTP})
    try:
        cluster = stage.run_cluster("default", "-c", "1")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    pid = cluster.wait_ready()[0]

    os.kill(pid, signal.SIGKILL)
    cluster.wait_for("child_ready", count=2)

    assert cluster.stop() == 0


def test_a_board_tells_what_ran_when_a_process_died(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "3")
    jid = stage.push("stubborn", "a")
    stage.push("record", "b")
    stage.wait_noted("began a", "ran b")
    pid = cluster.wait_ready()[0]
    wait_until(lambda: len(stage.holders()) == 1, "the job to be in flight")
    (holder,) = stage.holders()
    wait_until(lambda: len(stage.held(holder)) == 1, "one unit to be in flight")

    os.kill(pid, signal.SIGKILL)

    assert [each["jid"] for each in cluster.wait_for("child_died")["running"]] == [jid]
    stage.release()
    stage.wait_noted("ended a")


def held(pid: int) -> dict[tuple[int, int], str]:
    """Return the open files of a process beside its standard streams: what tells a file from others → its kind.

    A folder that the process lists at the moment is not among them: it is closed soon.
    """
    found: dict[tuple[int, int], str] = {}

    def lists_no_folder() -> bool:
        nonlocal found
        found = opened(pid)
        return not any(Path(kind).is_dir() for kind in found.values())

    wait_until(lists_no_folder, "the process to hold no folder", 60)
    return found


def opened(pid: int) -> dict[tuple[int, int], str]:
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if int(entry.name) > 2:
            with suppress(FileNotFoundError):  # closed since it was listed
                status = entry.stat()
                found[status.st_dev, status.st_ino] = re.sub(r":\[\d+\]| \(deleted\)", "", str(entry.readlink()))
    return found


def test_each_kind_of_child_holds_what_it_is_given_and_nothing_else(stage: Stage) -> None:
    app = stage.write_application("""
        import pathlib, select
        here = pathlib.Path(__file__).parent
        if (here / "wait").exists():
            (here / "waits").touch()
            select.select([], [], [])
    """)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a short path: a unix socket's may not be long
        arguments = ("a", "b", "-c", "1", "--watch", f"--embedded={folder}", "--pidfile", str(stage.folder / "pid"))
        cluster = stage.run_cluster(*arguments, app=app)
        workers = cluster.wait_ready(2)
        (stage.folder / "wait").touch()
        cluster.signal(signal.SIGUSR2)
        wait_until((stage.folder / "waits").exists, "the catalogue child to import the application")

        pids = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in children(cluster.pid)}
        files = {name: held(pid) for name, pid in {**pids, "supervisor": cluster.pid}.items()}
        cluster.stop()

    def shared(name: str) -> list[str]:
        others = [key for each, found in files.items() if each not in (name, "kiq guardian") for key in found]
        return sorted(kind for key, kind in files[name].items() if key in others and "anon_inode" not in kind)

    assert sorted(files["kiq watch"].values()) == ["socket"]  # to the supervisor
    assert sorted(files["kiq guardian"].values()) == [f"{folder}/lock", "pipe"]
    assert sorted(files["kiq catalogue"].values()) == ["/memfd:kiq-stacks", "socket"]
    assert shared("kiq catalogue") == ["/memfd:kiq-stacks"]  # for the supervisor to read
    for slot in workers:
        # The write end of the pipe to the guardian, whose server lives as long as somebody has it.
        assert shared(f"kiq slot {slot}") == ["/memfd:kiq-stacks", "pipe"]
