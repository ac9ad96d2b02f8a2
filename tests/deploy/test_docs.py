"""The guides to deploy: what they show runs, and what they list is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.process.config import STOP_GRACE_SECONDS, Config
from tests import forkserver
from tests.deploy.stage import need
from tests.deploy.test_prometheus import CASES
from tests.kit import ROOT, Cluster, RedisServer, require
from tests.stage import Stage

PAGE = ROOT / "docs/guides/deploy.md"
ALERTS = ROOT / "docs/reference/alerts.md"
PLATFORMS = ("docs/guides/deploy_systemd.md", "docs/guides/deploy_docker.md", "docs/guides/deploy_kubernetes.md")
RELEASE = ROOT / "docs/guides/release.md"
# What changes a machine or asks a daemon: shown, never run here.
ELSEWHERE = {"cp", "useradd", "mkdir", "editor", "systemctl", "docker", "kubectl"}
# What the checks by hand need, and the Debian package or our extra that has it.
PACKAGES = {"promtool": "prometheus", "systemd-analyze": "systemd", "shellcheck": "shellcheck"}
RULE_CASES = ["promtool", "test", "rules"]
LIBRARIES = {"kubernetes-validate": "kubernetes_validate", "check-jsonschema": "check_jsonschema"}


def commands() -> list[list[str]]:
    """Return the commands of the guides, as words; tests/docs/test_operations.py runs the others of a release."""
    _, _, script = RELEASE.read_text().partition("## A plain script")
    text = "\n".join([PAGE.read_text(), *((ROOT / name).read_text() for name in PLATFORMS), script])
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]


def of(*programs: str) -> list[list[str]]:
    return [words for words in commands() if words[0] in programs]


def test_every_command_is_run_or_known_to_belong_elsewhere() -> None:
    known = ELSEWHERE | PACKAGES.keys() | LIBRARIES.keys() | {"kiqctl", "deploy/rolling-deploy"}

    assert {words[0] for words in commands()} == known


def test_the_cases_of_the_rules_are_those_that_test_prometheus_runs() -> None:
    (words,) = [words for words in of("promtool") if words[:3] == RULE_CASES]

    assert set(words[3:]) < {path.relative_to(ROOT).as_posix() for path in CASES}


@pytest.mark.parametrize(
    "words", [words for words in of(*PACKAGES, *LIBRARIES) if words[:3] != RULE_CASES], ids=" ".join
)
def test_the_checks_by_hand_find_no_fault(words: list[str]) -> None:
    name = words[0]
    if name in LIBRARIES:
        need(LIBRARIES[name])
        words = [sys.executable, "-m", LIBRARIES[name], *words[1:]]
    else:
        require(name, PACKAGES[name])

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", of("cp", "docker", "kubectl"), ids=" ".join)
def test_the_files_that_the_others_name_are_there(words: list[str]) -> None:
    for word in words:
        if word.startswith("deploy/"):
            assert (ROOT / word).exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="kiq-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(stage: Stage, folder: Path) -> Cluster:
    """A cluster that takes orders in that folder."""
    cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(folder / "control.sock"))
    cluster.wait_ready()
    return cluster


def test_kiqctl_does_what_the_page_says(cluster: Cluster, folder: Path) -> None:
    quiet = []
    for words in of("kiqctl"):
        there = [word.replace("/run/kiqcluster/shop", str(folder)) for word in words[1:]]
        assert str(folder) in " ".join(there)
        done = forkserver.run([sys.executable, "-m", "kiqcluster.ctl", *there], cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        quiet.append((words[1], cluster.metric("kiqcluster_quiet")))

    assert quiet == [("roll", 0), ("quiet", 1), ("resume", 0)]
    assert cluster.metric('kiqcluster_rolls_total{result="done"}') == 1


def test_the_script_is_called_as_the_page_says(cluster: Cluster, folder: Path, redis_server: RedisServer) -> None:
    require("bash", "bash")
    (folder / "release.sh").write_text('#!/bin/sh\nln -sfn "releases/$1" current\n')
    (folder / "release.sh").chmod(0o755)
    forkserver.install(folder / "kiqctl", "kiqcluster.ctl")
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "REDIS_URL": redis_server.url,
    }
    (words,) = of("deploy/rolling-deploy")

    done = subprocess.run([str(ROOT / words[0]), *words[1:]], cwd=folder, env=environ, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert str((folder / "current").readlink()) == "releases/42"
    assert cluster.metric('kiqcluster_rolls_total{result="done"}') == 1


def test_every_alert_is_in_the_table() -> None:
    listed = re.findall(r"`(Kiq\w+)`", ALERTS.read_text())
    text = (ROOT / "deploy/prometheus/alerts.yml").read_text()

    assert sorted(listed) == sorted(re.findall(r"- alert: (\w+)", text))


def test_the_deadlines_are_those_of_the_files() -> None:
    unit = re.search(r"TimeoutStopSec=(\d+)", (ROOT / "deploy/systemd/kiqcluster@.service").read_text())
    compose = re.search(r"stop_grace_period: (\d+)s", (ROOT / "deploy/docker/compose.yaml").read_text())
    pod = re.search(r"terminationGracePeriodSeconds: (\d+)", (ROOT / "deploy/kubernetes/worker.yaml").read_text())
    assert unit and compose and pod  # noqa: PT018

    rows = re.findall(
        r"^\| (?:systemd|Docker|Kubernetes) \| (\d+) s.*? \| (\d+) s \| (\d+) s \|", PAGE.read_text(), re.M
    )

    stop = f"{Config.stop_timeout + STOP_GRACE_SECONDS:.0f}"
    assert rows == [
        (f"{Config.stop_timeout:.0f}", stop, unit[1]),
        (f"{Config.stop_timeout:.0f}", stop, compose[1]),
        (f"{Config.stop_timeout:.0f}", f"{60 + Config.stop_timeout + STOP_GRACE_SECONDS:.0f}", pod[1]),
    ]
