"""Who is gone: only a process that certainly is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from kiqcluster.worker.identity import Birth, is_gone
from tests.kit import wait_until


def birth_of(pid: int) -> Birth:
    """Return the birth that a process of ours would have noted itself."""
    source = "from kiqcluster.worker.identity import Birth, _created; import sys; print(_created(int(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", source, str(pid)], capture_output=True, text=True, check=True)
    return replace(Birth.of_this_process(), pid=pid, created=done.stdout.strip())


def test_a_living_process_is_not_gone_and_a_dead_one_is() -> None:
    mine = Birth.of_this_process()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = birth_of(process.pid)

    assert not is_gone(birth, mine)
    assert is_gone(replace(birth, created="1"), mine)  # its pid was used again
    process.kill()
    wait_until(lambda: is_gone(birth, mine), "the zombie to count as gone")
    process.communicate()
    assert is_gone(birth, mine)


def test_nothing_is_said_of_other_hosts_and_namespaces() -> None:
    mine = Birth.of_this_process()
    dead = replace(mine, pid=2**22 - 1, created="1")

    assert is_gone(dead, mine)
    assert not is_gone(replace(dead, boot_id="another host"), mine)
    assert not is_gone(replace(dead, namespace="pid:[1]"), mine)
    assert not is_gone(mine, mine)


def test_a_birth_survives_its_record_and_a_strange_record_is_none() -> None:
    mine = Birth.of_this_process()

    assert Birth.parse(str(mine)) == mine
    assert mine.pid == os.getpid()
    for record in ("", "a b c", "boot ns x 1", "boot ns 1 2 3"):
        assert Birth.parse(record) is None
