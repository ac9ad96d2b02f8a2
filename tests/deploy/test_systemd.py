"""deploy/systemd: what systemd-analyze says of the unit, and that its numbers and paths fit kiqcluster's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.process.config import STOP_GRACE_SECONDS, Config
from kiqcluster.process.config_sources import load
from kiqcluster.supervisor.systemd import EXTENSION_SECONDS
from tests.deploy.stage import Unit
from tests.kit import ROOT, require, unavailable

UNIT = ROOT / "deploy" / "systemd" / "kiqcluster@.service"
INSTANCES = ("shop", "mail")
OK = "49"  # of 100; beyond it systemd says MEDIUM


@pytest.fixture
def unit() -> Unit:
    return Unit(UNIT)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root folder with systemd's own units, our unit, and what two instances of it name."""
    require("systemd-analyze", "systemd")
    own = next((path for path in map(Path, ("/usr/lib/systemd/system", "/lib/systemd/system")) if path.is_dir()), None)
    if own is None:
        unavailable("systemd's own units are not installed (Debian: apt-get install systemd)")
    shutil.copytree(own, tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    shutil.copy(UNIT, tmp_path / "etc/systemd/system")
    for program in ("bin/kill", *(f"srv/{instance}/current/.venv/bin/kiqcluster" for instance in INSTANCES)):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(mode=0o755)
    return tmp_path


def verify(host: Path, *instances: str) -> str:
    """Return what systemd-analyze has to say: it ends with 0 whatever it finds."""
    units = [f"kiqcluster@{instance}.service" for instance in instances]
    done = subprocess.run(["systemd-analyze", "verify", f"--root={host}", *units], capture_output=True, text=True)
    return done.stdout + done.stderr


class TestVerify:
    def test_two_instances_on_one_host_are_clean(self, host: Path) -> None:
        assert verify(host, *INSTANCES) == ""

    @pytest.mark.parametrize(
        ("line", "slip"),
        [
            ("KillMode=mixed", "KillMode=mixd"),
            ("TimeoutStopSec=45", "TimeoutStopSec=45parsecs"),
            ("ProtectClock=true", "ProtectClok=true"),
            ("bin/kiqcluster --directory", "bin/kiqclustre --directory"),
        ],
    )
    def test_a_slip_would_be_told(self, line: str, slip: str, host: Path) -> None:
        path = host / "etc/systemd/system" / UNIT.name
        assert line in path.read_text()
        path.write_text(path.read_text().replace(line, slip))

        assert verify(host, "shop") != ""

    def test_the_exposure_is_one_that_systemd_calls_ok(self) -> None:
        require("systemd-analyze", "systemd")

        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={OK}", str(UNIT)]
        done = subprocess.run(command, capture_output=True, text=True)

        assert done.returncode == 0, done.stdout[-200:] + done.stderr


class TestDeadlines:
    def test_systemd_kills_after_the_stop_is_over(self, unit: Unit) -> None:
        assert unit.seconds("TimeoutStopSec") > Config.stop_timeout + STOP_GRACE_SECONDS

    def test_kiqcluster_is_told_the_same_number(self, unit: Unit) -> None:
        config, _ = load({}, environ=unit.environ("shop"), directory=Path("/nonexistent"))

        assert config.stop_platform_timeout == unit.seconds("TimeoutStopSec")

    def test_a_hanging_loop_is_found_before_a_stop_would_be_over(self, unit: Unit) -> None:
        assert EXTENSION_SECONDS <= unit.seconds("WatchdogSec") < unit.seconds("TimeoutStopSec")

    def test_what_no_restart_can_mend_is_not_tried_again(self, unit: Unit) -> None:
        codes = {int(code) for code in unit.value("RestartPreventExitStatus").split()}

        assert codes == {ExitCode.USAGE, ExitCode.PIDFILE_HELD, ExitCode.ADDRESS_IN_USE}


class TestInstances:
    def test_each_has_files_of_its_own_in_a_folder_of_its_own(self, unit: Unit) -> None:
        shop, mail = (unit.environ(instance) for instance in INSTANCES)
        paths = [name for name, value in shop.items() if "/" in value]

        assert sorted(paths) == ["KIQ_CONTROL", "KIQ_LISTEN", "KIQ_PIDFILE"]
        for name in paths:
            assert shop[name].removeprefix("unix:").startswith("/run/kiqcluster/shop/")
            assert mail[name].removeprefix("unix:").startswith("/run/kiqcluster/mail/")
        assert unit.value("RuntimeDirectory") == "kiqcluster/%i"

    def test_the_environment_file_has_the_last_word(self, unit: Unit) -> None:
        assert unit.values("EnvironmentFile") == ["/etc/kiqcluster/%i.env"]

    def test_the_example_in_its_comments_can_be_loaded(self, unit: Unit) -> None:
        environ = unit.environ("shop") | unit.example()

        config, _ = load({}, environ=environ, directory=Path("/nonexistent"))

        assert config.groups == ("cronjob:*", "default,mailers", "critical=5,default")
        assert config.require == ("shop.jobs",)
        assert config.listen == "127.0.0.1:8082"


def test_the_drop_in_for_newer_systemd_says_nothing_that_the_unit_does_not_know() -> None:
    # systemd 252, of Debian 12, knows no notify-reload: the words of the drop-in are not verified where it runs.
    lines = Unit(ROOT / "deploy" / "systemd" / "notify-reload.conf").lines

    assert lines == [("Type", "notify-reload"), ("ReloadSignal", "SIGHUP"), ("ExecReload", "")]
