"""deploy/docker: syntax, deadlines, and the image's entry point as process 1.  There is no Docker daemon here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kiqcluster.process.config import STOP_GRACE_SECONDS
from kiqcluster.process.config_sources import load
from tests import forkserver
from tests.deploy.stage import need
from tests.kit import ROOT, free_port, http_get, is_alive, require, unavailable, wait_until
from tests.proc import children
from tests.stage import Stage

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "docker" / "compose.yaml"
OURS = ("kiqcluster", "kiqctl")


class Image:
    """What the last stage of a Dockerfile says: name → words."""

    def __init__(self, path: Path) -> None:
        commands = need("dockerfile").parse_file(str(path))
        last = max(number for number, each in enumerate(commands) if each.cmd == "FROM")
        self.commands = [(each.cmd, list(each.value), each.json) for each in commands[last:]]

    def values(self, name: str) -> list[str]:
        (words,) = [words for each, words, _ in self.commands if each == name]
        return words

    def is_without_shell(self, name: str) -> bool:
        (as_list,) = [as_list for each, _, as_list in self.commands if each == name]
        return bool(as_list)

    def environ(self) -> dict[str, str]:
        words = self.values("ENV")
        return dict(zip(words[::2], words[1::2], strict=True))


@pytest.fixture
def image() -> Image:
    return Image(DOCKERFILE)


@pytest.fixture
def services() -> dict[str, Any]:
    services: dict[str, Any] = need("yaml").safe_load(COMPOSE.read_text())["services"]
    return services


class TestImage:
    def test_kiqcluster_is_process_1_and_no_shell_stands_before_it(self, image: Image) -> None:
        assert image.values("ENTRYPOINT") == ["kiqcluster"]
        assert image.is_without_shell("ENTRYPOINT")
        assert image.is_without_shell("CMD")
        assert image.values("STOPSIGNAL") == ["SIGTERM"]

    def test_it_runs_as_nobody_special(self, image: Image) -> None:
        assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", image.values("USER")[0])

    def test_its_settings_are_settings(self, image: Image) -> None:
        config, origins = load({"groups": image.values("CMD")}, environ=image.environ(), directory=Path("/nonexistent"))

        known = {name for name, origin in origins.items() if origin.startswith("environment")}
        assert known == {name[4:].lower() for name in image.environ() if name.startswith("KIQ_")}
        assert config.listen.rpartition(":")[2] == image.values("EXPOSE")[0]

    def test_its_check_needs_no_shell_and_no_curl(self, image: Image) -> None:
        assert image.values("HEALTHCHECK") == ["CMD", "kiqcluster", "--check"]
        assert image.is_without_shell("HEALTHCHECK")

    def test_what_it_copies_is_there_and_not_ignored(self) -> None:
        ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
        copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)

        for source in " ".join(copied).split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored


class TestCompose:
    def test_the_file_follows_the_compose_specification(self) -> None:
        need("check_jsonschema")
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]

        done = subprocess.run(command, capture_output=True, text=True)

        assert done.returncode == 0, done.stdout + done.stderr

    def test_docker_kills_after_the_stop_is_over(self, image: Image, services: dict[str, Any]) -> None:
        environ = image.environ() | services["worker"]["environment"]
        config, _ = load({}, environ=environ, directory=Path("/nonexistent"))

        grace = int(services["worker"]["stop_grace_period"].removesuffix("s"))

        assert grace == config.stop_platform_timeout
        assert grace > config.stop_timeout + STOP_GRACE_SECONDS

    def test_nothing_is_put_before_process_1(self, services: dict[str, Any]) -> None:
        assert "init" not in services["worker"]
        assert "entrypoint" not in services["worker"]

    def test_what_prometheus_scrapes_are_services(self, services: dict[str, Any], image: Image) -> None:
        jobs = need("yaml").safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
        targets = [target for job in jobs for each in job["static_configs"] for target in each["targets"]]

        exporter = services["exporter"]["entrypoint"][-1].rpartition(":")[2]
        assert targets == [f"worker:{image.values('EXPOSE')[0]}", f"exporter:{exporter}"]

    def test_the_files_that_it_names_are_there(self, services: dict[str, Any]) -> None:
        build = services["worker"]["build"]
        context = COMPOSE.parent / build["context"]

        assert context.resolve() == ROOT
        assert (context / build["dockerfile"]).samefile(DOCKERFILE)
        assert (COMPOSE.parent / "../prometheus/prometheus.yml").exists()


# process 1


def isolated() -> list[str]:
    """Return the command that makes a program process 1 of its own world; skip where the kernel does not let us."""
    unshare = require("unshare", "util-linux")
    words = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    commands = [[unshare, *words], [unshare, "--map-root-user", *words]]
    able = (each for each in commands if subprocess.run([*each, "true"], capture_output=True).returncode == 0)
    command = next(able, None)
    if command is None:
        unavailable("unshare may not make namespaces here (neither as root nor for a user)")
    return command


class Container:
    """The image's entry point as process 1.  pid: its number outside."""

    def __init__(self, process: subprocess.Popen[bytes], environ: dict[str, str], port: int) -> None:
        self.process = process
        self.environ = environ
        self.port = port
        self.pid = wait_until(lambda: children(process.pid), "process 1 to start")[0]

    def is_ready(self) -> bool:
        try:
            return http_get(self.port, "/readiness")[0] == 200
        except OSError:
            return False

    def restarts(self) -> float:
        text = http_get(self.port, "/metrics")[2].decode()
        samples = re.findall(r"^kiqcluster_child_restarts_total\{.*\} (\S+)$", text, re.MULTILINE)
        return sum(map(float, samples))

    def states(self) -> list[str]:
        """Return the state of each child of process 1: its workers, and what it has adopted."""
        states = []
        for pid in children(self.pid):
            try:
                states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
            except OSError:
                continue
        return states


@pytest.fixture
def container(image: Image, stage: Stage, tmp_path: Path) -> Iterator[Container]:
    """The image's entry point, ready, with an application of the tests."""
    port = free_port()
    environ = {
        **{name: value for name, value in image.environ().items() if name.startswith("KIQ_")},
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "REDIS_URL": stage.redis.url,
        "KIQ_REQUIRE": "tests.apps.orphans",
        "KIQ_LISTEN": f"127.0.0.1:{port}",
        "KIQ_CONTROL": str(tmp_path / "control.sock"),
    }
    words = [*program(*image.values("ENTRYPOINT")), *image.values("CMD")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*isolated(), *words], env=environ, cwd=ROOT, stdout=log, stderr=log)
    try:
        container = Container(process, environ, port)
        wait_until(container.is_ready, "the cluster to be ready")
        yield container
    finally:
        inside = (
            [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
            if process.poll() is None
            else []
        )
        process.kill()  # --kill-child takes process 1 along, and the kernel all that is left in there, a moment later
        process.wait()
        wait_until(
            lambda: not any(map(is_alive, inside)), "all of it to be gone, or it writes to the next test's Redis"
        )


def program(name: str, *words: str) -> list[str]:
    """Return a command of ours as the image finds it on its PATH."""
    assert name in OURS
    return [sys.executable, "-m", {"kiqcluster": "kiqcluster", "kiqctl": "kiqcluster.ctl"}[name], *words]


class TestD11:
    """Process 1 of a container."""

    COUNT = 20

    def test_it_reaps_what_jobs_leave_behind_and_counts_none_as_a_worker(
        self, container: Container, stage: Stage, tmp_path: Path
    ) -> None:
        workers = len(children(container.pid))

        stage.push("leave_behind", str(tmp_path), self.COUNT)
        wait_until(lambda: len(children(container.pid)) == workers + self.COUNT, "orphans to be adopted")
        (tmp_path / "go").touch()
        wait_until(lambda: len(children(container.pid)) == workers, "orphans to be reaped")

        assert (tmp_path / "parents").read_text().split() == ["1"] * self.COUNT
        assert "Z" not in container.states()
        assert container.is_ready()
        assert container.restarts() == 0

    def test_term_ends_it_with_0_and_nothing_is_left(self, container: Container, stage: Stage, tmp_path: Path) -> None:
        stage.push("leave_behind", str(tmp_path), 1)
        wait_until(lambda: len(children(container.pid)) == 3, "an orphan to be adopted")  # two groups, two workers
        inside = [container.pid, *children(container.pid)]

        subprocess.run(["kill", "-TERM", str(container.pid)], check=True)

        assert container.process.wait(30) == 0
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), "all of it to be gone")

    def test_its_check_and_its_control_socket_answer(self, container: Container, image: Image) -> None:
        _, *check = image.values("HEALTHCHECK")
        socket = container.environ["KIQ_CONTROL"]

        for words in (program(*check), program("kiqctl", "quiet", "--socket", socket), program(*check)):
            done = forkserver.run(words, env=container.environ, cwd=ROOT)
            assert done.returncode == 0, done.stdout + done.stderr
        assert not container.is_ready()

    def test_its_check_fails_when_nobody_is_there(self, image: Image) -> None:
        _, *check = image.values("HEALTHCHECK")
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "KIQ_LISTEN": f"127.0.0.1:{free_port()}"}

        done = forkserver.run(program(*check), env=environ, cwd=ROOT)

        assert done.returncode == 1
