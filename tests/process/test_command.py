"""The command line: what is refused and with which code, the commands that start nothing, and the pidfile."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kiqcluster.process.version import VERSION
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, free_port, wait_until
from tests.proc import open_files, sockets
from tests.stage import Stage

APP = ("-r", "tests.apps.basic")
NOWHERE = "redis://127.0.0.1:1/0"


def kiqcluster(
    *arguments: str, cwd: Path = ROOT, program: tuple[str, ...] = (sys.executable, "-m", "kiqcluster"), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; no Redis, no free port and no application unless the arguments say so."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS_"))}
    known = {**clean, "PYTHONPATH": str(ROOT), "REDIS_URL": NOWHERE, **environ}
    return forkserver.run([*program, *arguments], cwd=cwd, env=known, stdin=subprocess.DEVNULL)


# usage


REFUSED = [
    (),
    ("default",),  # no application
    APP,  # no group
    (*APP, ""),
    (*APP, "a,,b"),
    (*APP, " a"),
    (*APP, "default mailers"),
    (*APP, "-q", "default mailers"),
    (*APP, "a\nb"),
    (*APP, "a=0"),
    (*APP, "a=x"),
    (*APP, "a=1001"),
    (*APP, "a=²"),
    (*APP, "a*"),
    (*APP, "-q", "a,x"),
    (*APP, "-q", ""),
    (*APP, "--strict", "a=2,b"),
    (*APP, "--strict", "a,b,a"),
    (*APP, "--strict", "-q", "a,2"),
    (*APP, "--preload", "--watch", "default"),
    (*APP, "--quiet-lease", "15 minutes", "default"),
    (*APP, "--negate", "*"),
    (*APP, "--negate", "--dryrun", "*"),
    (*APP, "--queue-selector"),
    (*APP, "--queue-selector", "default"),
    (*APP, "--queue-selector", "tags=no-job-has-it"),
    (*APP, "--queue-selector", "--strict", "*"),
    (*APP, "--queue-selector", "-q", "default"),
    (*APP, "--dryrun", "--list-queues", "default"),
    (*APP, "--json", "default"),
    (*APP, "--no-such-option", "default"),
    (*APP, "-c", "many", "default"),
    (*APP, "-c", "0", "default"),
    (*APP, "--max-concurrency", "-1", "default"),
    (*APP, "-t", "soon", "default"),
    (*APP, "-t", "0", "default"),
    (*APP, "-t", "inf", "default"),
    (*APP, "-t", "nan", "default"),
    (*APP, "--redis", "http://127.0.0.1", "default"),
    (*APP, "--redis", "redis://127.0.0.1:port/0", "default"),
    (*APP, "--listen", "8082", "default"),
    (*APP, "--listen", "127.0.0.1:high", "default"),
    (*APP, "--listen", "127.0.0.1:70000", "default"),
    (*APP, "--listen", "8082", "--dryrun", "default"),
    (*APP, "--listen", "no-such-host.invalid:8082", "default"),
    (*APP, "--listen", "unix:/no/such/directory/http.sock", "default"),
    (*APP, "--redis", "redis://127.0.0.1:6379/0x", "default"),
    (*APP, "--log-level", "loud", "default"),
    (*APP, "-C", "no/such/file.toml", "default"),
    (*APP, "--directory", "no/such/directory", "default"),
    (*APP, "--pidfile", "no/such/directory/pid", "default"),
    (*APP, f"--embedded=/tmp/{'x' * 120}", "default"),
    (*APP, "--embedded=/proc/zz", "default"),
    (*APP, "--embedded=/dev/null", "default"),
]


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda words: " ".join(words[2:] or words).strip() or "(nothing)")
def test_a_command_that_cannot_work_is_exit_2_and_starts_nothing(arguments: tuple[str, ...]) -> None:
    done = kiqcluster(*arguments, KIQ_LISTEN="127.0.0.1:0") if "--listen" not in arguments else kiqcluster(*arguments)

    assert done.returncode == 2, done.stderr
    assert done.stderr.strip() or "catalogue_failed" in done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert "child_started" not in done.stdout


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KIQ_CONCURRENCY", "many"),
        ("KIQ_HEALTH_SILENCE_TIMEOUT", "60"),
        ("KIQ_HEALTH_SILENCE_TIMEOUT", "-1"),
        ("KIQ_HEALTH_BOOT_TIMEOUT", "0"),
        ("KIQ_HEALTH_BOOT_TIMEOUT", "inf"),
        ("KIQ_STOP_PLATFORM_TIMEOUT", "35"),  # as long as timeout + grace
        ("KIQ_HEALTH_RESPAWN_BURST", "0"),
        ("KIQ_STRICT", "perhaps"),
        ("KIQ_DEAD_MAX_JOBS", "0"),
        ("REDIS_URL", "nonsense"),
        ("KIQ_CONCURENCY", "5"),
        ("KIQ_GROUPS", '["default"]'),
    ],
)
def test_a_variable_that_cannot_work_is_exit_2(variable: str, value: str) -> None:
    done = kiqcluster(*APP, "default", **{variable: value})

    assert done.returncode == 2, done.stdout
    assert "child_started" not in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        'concurency = 5\nrequire = ["app"]',  # the nearest valid name is told
        "concurrency = 'five'",
        "concurrency = true",
        "groups = 5",
        "[env.production]\nno_such_setting = 1",
        "not toml at all",
    ],
)
def test_a_configuration_file_that_cannot_work_is_exit_2(tmp_path: Path, text: str) -> None:
    (tmp_path / "kiqcluster.toml").write_text(text)

    done = kiqcluster(*APP, "-e", "production", "default", cwd=tmp_path)

    assert done.returncode == 2, done.stdout
    assert "kiqcluster.toml" in done.stderr
    assert "concurency" not in text or "'concurrency'" in done.stderr


def test_arguments_that_are_the_files_of_the_directory_are_refused(tmp_path: Path) -> None:
    for name in ("Beta", "alpha", "gamma", ".hidden"):
        (tmp_path / name).touch()

    by_locale = kiqcluster(*APP, "alpha", "Beta", "gamma", "--dryrun", cwd=tmp_path)
    by_bytes = kiqcluster(*APP, "Beta", "alpha", "gamma", "--dryrun", cwd=tmp_path)
    fewer = kiqcluster(*APP, "alpha", "gamma", "--dryrun", cwd=tmp_path)

    assert (by_locale.returncode, by_bytes.returncode, fewer.returncode) == (2, 2, 0)


# commands that start nothing


def test_dryrun_shows_the_slots_as_json_without_redis_port_or_pidfile(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ("--dryrun", "--json", "--listen", listen, "--pidfile", str(pidfile), "--redis", NOWHERE)

        done = kiqcluster(*APP, *flags, "default,mailers", "critical=5,default", "cronjob:*", "cronjob")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        {"slot": 0, "queues": {"default": 1, "mailers": 1}, "mode": "random", "concurrency": 5},
        {"slot": 1, "queues": {"critical": 5, "default": 1}, "mode": "weighted", "concurrency": 5},
        {"slot": 2, "queues": {"cronjob:nightly": 1}, "mode": "random", "concurrency": 5},
        {"slot": 3, "queues": {"cronjob": 1, "cronjob:nightly": 1}, "mode": "random", "concurrency": 5},
    ]
    assert not pidfile.exists()


@pytest.mark.parametrize(
    ("arguments", "queues", "mode"),
    [
        (("a,b,a",), {"a": 2, "b": 1}, "weighted"),
        (("-q", "a,2", "-q", "b"), {"a": 2, "b": 1}, "weighted"),
        (("-q", "q,3"), {"q": 3}, "random"),
        (("--strict", "b,a"), {"b": 1, "a": 1}, "strict"),
        (("*",), {"cronjob:nightly": 1, "default": 1}, "random"),
        (("default=3,*",), {"default": 3, "cronjob:nightly": 1}, "weighted"),
        (("cronjob:*=4,default",), {"cronjob:nightly": 4, "default": 1}, "weighted"),
        (("--negate", "cronjob"), {"default": 1}, "random"),
        (("nothing:*",), {}, "random"),
    ],
)
def test_groups_are_expanded_by_the_catalogue(arguments: tuple[str, ...], queues: dict[str, int], mode: str) -> None:
    done = kiqcluster(*APP, "--dryrun", "--json", *arguments)

    (slot,) = json.loads(done.stdout)
    assert list(slot["queues"].items()) == list(queues.items()) or mode != "strict"
    assert (slot["queues"], slot["mode"]) == (queues, mode)


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ((), 5),
        (("--min-concurrency", "0"), 4),
        (("-c", "7"), 7),
        (("--max-concurrency", "2"), 2),
        (("--min-concurrency", "9"), 9),
        (("--min-concurrency", "9", "--max-concurrency", "5"), 5),
        (("--max-concurrency", "0"), 5),
        (("-c", "7", "--max-concurrency", "2"), 7),
    ],
)
def test_threads_follow_the_number_of_queues_unless_told(flags: tuple[str, ...], threads: int) -> None:
    done = kiqcluster(*APP, "--dryrun", "--json", *flags, "a,b,c")

    assert json.loads(done.stdout)[0]["concurrency"] == threads


def test_list_queues_prints_the_sorted_union() -> None:
    done = kiqcluster(*APP, "--list-queues", "mailers,cronjob:*", "default,mailers")

    assert (done.returncode, done.stdout) == (0, "cronjob:nightly\ndefault\nmailers\n")


def test_a_name_that_no_job_goes_to_is_noted_beside_the_slots() -> None:
    shown = kiqcluster(*APP, "--dryrun", "defualt,cronjob", "default")
    as_json = kiqcluster(*APP, "--dryrun", "--json", "defualt")
    known = kiqcluster(*APP, "--dryrun", "default", "other", KIQ_QUEUES="other")

    assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 2)
    assert "defualt" in shown.stderr
    assert "cronjob" not in shown.stderr
    assert as_json.stderr == known.stderr == ""
    assert list(json.loads(as_json.stdout)[0]) == ["slot", "queues", "mode", "concurrency"]


def test_numbers_that_do_not_go_together_are_noted_beside_the_slots() -> None:
    done = kiqcluster(
        *APP, "--dryrun", "--min-concurrency", "9", "--max-concurrency", "5", "default", KIQ_HEALTH_READY_QUORUM="3"
    )

    assert done.returncode == 0
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["min_concurrency", "health.ready_quorum"]


def test_an_environment_that_the_file_has_no_section_for_is_noted(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text("[env.production]\nstop.timeout = 8\n")

    slip = kiqcluster("--print-config", "-e", "prodution", cwd=tmp_path)
    right = kiqcluster("--print-config", "-e", "production", cwd=tmp_path)

    assert (slip.returncode, right.returncode) == (0, 0)
    assert "[env.prodution]" in slip.stderr
    assert right.stderr == ""


def test_dryrun_of_an_application_that_does_not_load_is_exit_3(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no database')")

    done = kiqcluster("-r", "broken.py", "--dryrun", "default", cwd=tmp_path)

    assert done.returncode == 3
    assert "no database" in done.stderr


def test_print_config_shows_every_origin_and_no_password(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text("max_retries = 3\n[env.production]\nstop.timeout = 8\nconcurrency = 4\n")

    done = kiqcluster(
        "--print-config", "-e", "production", "-c", "9", cwd=tmp_path,
        REDIS_URL="redis://user:hunter2@redis.example:6379/1", KIQ_HEALTH_BOOT_TIMEOUT="30",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    shown = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert shown["concurrency"].split(maxsplit=2)[1:] == ["9", "flag"]
    assert shown["health.boot_timeout"].split(maxsplit=2)[1:] == ["30.0", "environment (KIQ_HEALTH_BOOT_TIMEOUT)"]
    assert shown["stop.timeout"].split(maxsplit=1)[1].startswith("8.0")
    assert "[env.production]" in shown["stop.timeout"]
    assert "kiqcluster.toml" in shown["max_retries"]
    assert shown["strict"].endswith("default")
    assert "hunter2" not in done.stdout
    assert "redis.example" in shown["redis"]


def test_seconds_may_be_written_as_durations_wherever_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text('health.recover_after = "2m"')

    done = kiqcluster("--print-config", "--quiet-lease", "15m", cwd=tmp_path, KIQ_STOP_TIMEOUT="1m30s")

    shown = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 2}
    assert [shown[name] for name in ("quiet_lease", "stop.timeout", "health.recover_after")] == [
        "900.0",
        "90.0",
        "120.0",
    ]


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "unix:/nowhere/http.sock"])
def test_a_check_of_a_cluster_that_is_not_there_names_the_place_and_what_to_look_at(listen: str) -> None:
    done = kiqcluster("--check", KIQ_LISTEN=listen)

    assert done.returncode == 1
    assert f"no answer from {listen.removeprefix('unix:')} (" in done.stderr
    assert "--print-config" in done.stderr


def test_version_and_both_ways_to_call() -> None:
    script = str(Path(sys.executable).with_name("kiqcluster"))

    outputs = {kiqcluster("--version").stdout, kiqcluster("--version", program=(script,)).stdout}

    assert outputs == {f"kiqcluster {VERSION}\n"}


def test_help_names_every_exit_relevant_flag() -> None:
    done = kiqcluster("--help")

    assert done.returncode == 0
    for flag in ("--require", "--concurrency", "--timeout", "--strict", "--negate", "--pidfile", "--listen", "--redis"):
        assert flag in done.stdout


# places


def test_a_stale_pwd_does_not_lead_to_another_directory(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("import tests.apps.basic")

    done = kiqcluster("-r", "here", "--list-queues", "default", cwd=tmp_path, PWD=str(ROOT))

    assert (done.returncode, done.stdout) == (0, "default\n")


def test_the_directory_flag_may_be_relative(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "app.py").write_text("from tests.apps.basic import record\n")
    path = os.path.relpath(tmp_path / "release", ROOT)

    cluster = stage.run_cluster("default", "--directory", path, app="app", PYTHONPATH=str(ROOT))

    cluster.wait_ready()
    stage.push("record", "a")
    stage.wait_noted("ran a")
    os.kill(cluster.pids()[0], signal.SIGKILL)
    cluster.wait_for("child_ready", count=2)
    assert cluster.seen("child_backoff") == []


def test_a_respawned_child_gets_the_release_of_the_start_and_a_roll_follows_the_logical_path(
    stage: Stage, tmp_path: Path
) -> None:
    for release in ("1", "2"):
        (tmp_path / release).mkdir()
        source = (
            f"from tests.apps.basic import note\nfrom kiqcluster import job\n@job()\ndef which(): note({release!r})\n"
        )
        (tmp_path / release / "app.py").write_text(source)
    current = tmp_path / "current"
    current.symlink_to("1")
    cluster = stage.run_cluster("default", "--directory", str(current), app="app.py", PYTHONPATH=str(ROOT))
    stage.push("which")
    stage.wait_noted("1")
    stage.wait_settled()

    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(current)
    os.kill(cluster.wait_ready()[0], signal.SIGKILL)
    cluster.wait_for("child_ready", count=2)
    stage.push("which")
    wait_until(lambda: stage.notes() == ["1", "1"], "the release of the start to run the second job")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    stage.push("which")
    stage.wait_noted("2")
    assert stage.notes() == ["1", "1", "2"]


# pidfile and address


def test_the_pidfile_holds_the_pid_is_locked_and_goes_with_the_supervisor(stage: Stage, tmp_path: Path) -> None:
    pidfile = tmp_path / "kiq.pid"
    cluster = stage.run_cluster("default", "--pidfile", str(pidfile))
    child = cluster.wait_ready()[0]

    assert pidfile.read_text() == f"{cluster.pid}\n"
    with pidfile.open() as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert str(pidfile) not in open_files(child)

    assert cluster.stop() == 0
    assert not pidfile.exists()


def test_a_held_pidfile_is_exit_6_and_stays(stage: Stage, tmp_path: Path) -> None:
    pidfile = tmp_path / "kiq.pid"
    first = stage.run_cluster("default", "--pidfile", str(pidfile))
    first.wait_ready()

    second = stage.run_cluster("default", "--pidfile", str(pidfile))

    assert second.wait() == 6
    assert second.seen("child_started") == []
    assert pidfile.read_text() == f"{first.pid}\n"
    assert first.stop() == 0


def test_a_stale_pidfile_does_not_stand_in_the_way(stage: Stage, tmp_path: Path) -> None:
    pidfile = tmp_path / "kiq.pid"
    first = stage.run_cluster("default", "--pidfile", str(pidfile))
    first.wait_ready()
    first.process.kill()
    first.process.wait()
    assert pidfile.exists()

    second = stage.run_cluster("default", "--pidfile", str(pidfile))

    second.wait_ready()
    assert pidfile.read_text() == f"{second.pid}\n"


def test_a_relative_pidfile_is_removed_from_where_it_was_written(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    current = tmp_path / "current"
    current.symlink_to("1")
    cluster = stage.run_cluster("default", "--directory", str(current), "--pidfile", "kiq.pid", PYTHONPATH=str(ROOT))
    pid = cluster.wait_ready()[0]
    assert (tmp_path / "1" / "kiq.pid").exists()

    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(current)
    os.kill(pid, signal.SIGKILL)  # the next child is started from the new directory
    cluster.wait_for("child_ready", count=2)

    assert cluster.stop() == 0
    assert list(tmp_path.glob("*/kiq.pid")) == []


def test_an_address_in_use_is_exit_7_and_leaves_no_pidfile(stage: Stage, tmp_path: Path) -> None:
    pidfile = tmp_path / "kiq.pid"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        cluster = stage.run_cluster("default", f"--listen=127.0.0.1:{port}", "--pidfile", str(pidfile))

        assert cluster.wait() == 7
    assert cluster.seen("child_started") == []
    assert not pidfile.exists()


def test_a_unix_address_in_use_is_exit_7_and_a_stale_one_is_taken_over(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    first = stage.run_cluster("default", f"--listen=unix:{path}")
    first.wait_ready()

    assert stage.run_cluster("default", f"--listen=unix:{path}").wait() == 7

    assert path.exists()
    first.process.kill()
    first.process.wait()
    third = stage.run_cluster("default", f"--listen=unix:{path}")
    third.wait_ready()
    assert third.stop() == 0
    assert not path.exists()


def test_listen_off_opens_no_listener(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "--listen=off")
    cluster.wait_ready()

    inodes = {target[8:-1] for target in sockets(cluster.pid)}
    listening = {
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{cluster.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    assert not inodes & listening
    assert cluster.stop() == 0


def test_the_configuration_file_alone_is_enough(stage: Stage, tmp_path: Path) -> None:
    address, listen = stage.redis.url, f"127.0.0.1:{free_port()}"
    text = f'groups = ["default"]\nrequire = ["tests.apps.basic"]\nredis = "{address}"\nlisten = "{listen}"\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.kiqcluster]\n{text}")
    clean = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    stage.push("record", "a")

    with subprocess.Popen(
        [sys.executable, "-m", "kiqcluster"], cwd=tmp_path, env={**clean, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            stage.wait_noted("ran a")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
