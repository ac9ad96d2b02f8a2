"""Who is gone: only a process that certainly is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from kiqcluster.worker.identity import ProcessFingerprint, has_exited
from tests.kit import wait_until


def birth_of(pid: int) -> ProcessFingerprint:
    """Return the fingerprint that a process of ours would have noted itself."""
    source = "from kiqcluster.ipc.operating_system import created; import sys; print(created(int(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", source, str(pid)], capture_output=True, text=True, check=True)
    return replace(ProcessFingerprint.of_this_process(), pid=pid, created=done.stdout.strip())


def test_a_living_process_is_not_gone_and_a_dead_one_is() -> None:
    mine = ProcessFingerprint.of_this_process()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = birth_of(process.pid)

    assert not has_exited(birth, mine)
    assert has_exited(replace(birth, created="1"), mine)  # its pid was used again
    process.kill()
    wait_until(lambda: has_exited(birth, mine), "the zombie to count as gone")
    process.communicate()
    assert has_exited(birth, mine)


def test_nothing_is_said_of_other_hosts_and_namespaces() -> None:
    mine = ProcessFingerprint.of_this_process()
    dead = replace(mine, pid=2**22 - 1, created="1")

    assert has_exited(dead, mine)
    assert not has_exited(replace(dead, boot_id="another host"), mine)
    assert not has_exited(replace(dead, namespace="pid:[1]"), mine)
    assert not has_exited(mine, mine)


def test_a_birth_survives_its_record_and_a_strange_record_is_none() -> None:
    mine = ProcessFingerprint.of_this_process()

    assert ProcessFingerprint.parse(str(mine)) == mine
    assert mine.pid == os.getpid()
    for record in ("", "a b c", "boot ns x 1", "boot ns 1 2 3"):
        assert ProcessFingerprint.parse(record) is None
