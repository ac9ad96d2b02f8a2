"""What Linux has and macOS lacks: on a system without /proc and prctl, something else stands in or nothing is told."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import psutil
import pytest

import kiqcluster
from kiqcluster.ipc import operating_system

# Modules that may ask which system this is, or read /proc (see the docstring of operating_system).
ASKS_FOR_THE_PLATFORM = {
    "ipc/forks.py",
    "ipc/operating_system.py",
    "process/boundary/process_state.py",
    "process/logs/handlers.py",
    "store/wire.py",
    "testing/server.py",
    "worker/orphan_alarm.py",
}


@pytest.fixture
def macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc, that says it is macOS, and whose C library has no prctl."""
    monkeypatch.setattr(operating_system, "PROC", tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(operating_system, "LIBC", object())


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux has")
class TestLinux:
    def test_memory_is_told(self) -> None:
        resident = operating_system.resident_bytes(os.getpid())
        proportional = operating_system.proportional_bytes()

        assert resident is not None
        assert proportional is not None
        assert 1_000_000 < proportional <= resident * 1.5

    def test_a_process_that_is_gone_uses_nothing(self) -> None:
        assert operating_system.resident_bytes(2**22 + 1) is None

    def test_a_process_is_told_from_others_by_its_start(self) -> None:
        assert operating_system.created(os.getpid()) != operating_system.created(1)
        assert operating_system.created(os.getpid()).isdigit()
        assert operating_system.pid_namespace().startswith("pid:[")
        assert len(operating_system.boot_id()) == 36

    def test_a_process_has_a_name(self) -> None:
        before = Path("/proc/self/comm").read_text().strip()
        try:
            operating_system.name_process("kiq with a long name")

            assert Path("/proc/self/comm").read_text() == "kiq with a long\n"
        finally:
            operating_system.name_process(before)


@pytest.mark.usefixtures("macos")
class TestMacos:
    def test_memory_is_not_told(self) -> None:
        assert operating_system.resident_bytes(os.getpid()) is None
        assert operating_system.proportional_bytes() is None

    def test_a_process_is_told_from_others_by_psutil(self) -> None:
        assert float(operating_system.created(os.getpid())) == pytest.approx(psutil.Process().create_time(), abs=0.01)
        assert operating_system.boot_id() == f"{psutil.boot_time():.0f}"
        assert operating_system.pid_namespace() == "-"

    def test_a_process_that_is_gone_is_an_error_of_psutil(self) -> None:
        with pytest.raises(psutil.NoSuchProcess):
            operating_system.created(2**22 + 1)

    def test_nothing_is_asked_of_the_kernel(self) -> None:
        operating_system.die_with_parent(15)
        operating_system.name_process("kiq")


def test_no_other_module_asks_which_system_this_is() -> None:
    package = Path(kiqcluster.__file__).parent
    asking = set()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str]
        reads = any(text.startswith("/proc/") for text in texts)
        names = {f"{node.value.id}.{node.attr}" for node in ast.walk(tree) if isinstance(node, ast.Attribute)
                 and isinstance(node.value, ast.Name)}  # fmt: skip
        if reads or names & {"sys.platform", "platform.system", "os.uname"} or path.name == "operating_system.py":
            asking.add(path.relative_to(package).as_posix())

    assert asking == ASKS_FOR_THE_PLATFORM
