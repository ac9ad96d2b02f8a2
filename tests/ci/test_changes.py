"""Changes: where a submission begins, what it changes, and which tests that can break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.ci import changes

DAY = 24 * 3_600
NOW = 1_795_168_740


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit of the day before yesterday, and two of today."""
    monkeypatch.delenv(changes.VARIABLE, raising=False)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for number, at in enumerate((NOW - 2 * DAY, NOW - 60, NOW)):
        commit(tmp_path, f"{number}.py", at, monkeypatch)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.setenv(variable, f"{at} +0000")
    (folder / name).touch()
    git(folder, "add", name)
    git(folder, "commit", "--quiet", "-m", name)


def test_on_the_main_branch_a_submission_is_what_was_committed_within_a_day(repository: Path) -> None:
    (repository / "new.py").touch()

    assert changes.base(repository) == git(repository, "rev-parse", "HEAD~2")
    assert changes.changed_files(repository) == {"1.py", "2.py", "new.py"}


def test_on_a_branch_it_is_all_since_the_main_branch(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "switch", "--quiet", "-c", "feature")
    commit(repository, "3.py", NOW + 1, monkeypatch)

    assert changes.changed_files(repository) == {"3.py"}


def test_a_commit_that_is_named_goes_before(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(changes.VARIABLE, "HEAD~1")

    assert changes.changed_files(repository) == {"2.py"}


def test_a_checkout_of_one_commit_does_not_say(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shallow = tmp_path_factory.mktemp("shallow")
    git(shallow, "clone", "--quiet", "--depth=1", f"file://{repository}", "checkout")

    assert changes.changed_files(shallow / "checkout") is None


def test_no_repository_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(changes.VARIABLE, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert changes.changed_files(tmp_path) is None


def test_tests_that_import_a_changed_module_come_first() -> None:
    affected = changes.affected_tests(["kiqcluster/supervisor/cluster/quiet_lease.py"])

    assert affected["tests/unit/supervisor/cluster/test_quiet_lease.py"] == 1
    assert affected["tests/process/test_quiet_lease.py"] == 1, "it has the name of the module"
    assert affected["tests/unit/supervisor/http/test_status.py"] > 1
    assert "tests/unit/client/test_router.py" not in affected
    assert list(affected.values()) == sorted(affected.values())


def test_what_a_package_passes_on_is_where_it_comes_from() -> None:
    assert "tests/unit/test_job.py" in changes.affected_tests(["kiqcluster/job.py"])


def test_a_changed_test_runs_and_one_that_names_a_changed_file() -> None:
    affected = changes.affected_tests(["tests/unit/test_job.py", "docs/web.md"])

    assert affected["tests/unit/test_job.py"] == affected["tests/docs/test_web.py"] == 0
