"""The application: what -r imports, under which name, and what is said of one that cannot be used."""

from __future__ import annotations

import importlib
import queue
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiqcluster.application import loading
from kiqcluster.application.registry import Registry
from kiqcluster.errors import ApplicationError

JOB = "from kiqcluster import job\n@job()\ndef hello(): pass\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, registry: Registry) -> Iterator[Write]:
    """Write a file of an application; what it imports is forgotten afterwards."""
    path, modules = sys.path[:], set(sys.modules)

    def write_file(name: str, source: str = JOB) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    yield write_file
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def refusal(requirement: str, directory: Path) -> str:
    with pytest.raises(ApplicationError) as caught:
        loading.load([requirement], directory)
    return str(caught.value)


class TestFiles:
    @pytest.mark.parametrize(
        ("file", "packages", "name"),
        [
            ("kiq_jobs.py", [], "kiq_jobs"),
            ("kiq_app/jobs.py", [], "kiq_app.jobs"),
            ("kiq_app/jobs.py", ["kiq_app"], "kiq_app.jobs"),
            ("kiq_app/mail/jobs.py", ["kiq_app", "kiq_app/mail"], "kiq_app.mail.jobs"),
            ("kiq_app/__init__.py", [], "kiq_app"),
            ("kiq-app/kiq_jobs.py", [], "kiq_jobs"),
        ],
    )
    def test_a_file_has_the_name_that_importing_it_gives_it(
        self, write: Write, tmp_path: Path, file: str, packages: list[str], name: str
    ) -> None:
        write(file)
        for package in packages:
            write(f"{package}/__init__.py", "")

        loading.load([file], tmp_path)

        assert Path(str(sys.modules[name].__file__)) == tmp_path / file
        assert [job["name"] for job in loading.describe([file])] == ["hello"]

    def test_one_that_the_application_imports_too_is_there_once(self, write: Write, tmp_path: Path) -> None:
        write("kiq_app/jobs.py")
        write("kiq_app/start.py", "import kiq_app.jobs\n")

        loading.load(["kiq_app.start", "kiq_app/jobs.py", "./kiq_app/start.py"], tmp_path)

        assert len(loading.describe([])) == 1

    def test_one_of_another_directory_goes_by_its_own_name(self, write: Write, tmp_path: Path) -> None:
        file = write("elsewhere/kiq_jobs.py")
        (tmp_path / "here").mkdir()

        loading.load([str(file)], tmp_path / "here")

        assert sys.modules["kiq_jobs"].__file__ == str(file)

    def test_one_in_a_folder_that_an_installed_package_hides_does_too(self, write: Write, tmp_path: Path) -> None:
        write("prometheus_client/kiq_jobs.py")
        importlib.import_module("prometheus_client")

        loading.load(["prometheus_client/kiq_jobs.py"], tmp_path)

        assert "kiq_jobs" in sys.modules

    @pytest.mark.parametrize("file", ["queue.py", "queue/jobs.py", "elsewhere/../queue.py"])
    def test_a_name_of_the_standard_library_is_refused(self, write: Write, tmp_path: Path, file: str) -> None:
        write("elsewhere/x.py")
        write(file)

        assert "queue is a module of Python's own" in refusal(file, tmp_path)
        assert sys.modules["queue"] is queue

    def test_a_name_of_another_module_is_refused(self, write: Write, tmp_path: Path) -> None:
        taken = importlib.import_module("prometheus_client")
        file = write("prometheus_client.py")
        (tmp_path / "here").mkdir()

        for directory in (tmp_path, tmp_path / "here"):
            assert "rename yours" in refusal(str(file), directory)
        assert sys.modules["prometheus_client"] is taken

    def test_what_a_file_does_not_find_is_told_as_it_is(self, write: Write, tmp_path: Path) -> None:
        write("kiq_app/jobs.py", "import no_such_library\n")

        message = refusal("kiq_app/jobs.py", tmp_path)

        assert "No module named 'no_such_library'" in message
        assert 'jobs.py", line 1' in message


class TestModules:
    def test_one_that_is_not_found_is_told_with_the_directory_that_was_searched(
        self, write: Write, tmp_path: Path
    ) -> None:
        message = refusal("no_such_module", tmp_path)

        assert "No module named 'no_such_module'" in message
        assert str(tmp_path) in message

    def test_a_function_is_called(self, write: Write, tmp_path: Path) -> None:
        write("kiq_app.py", "from kiqcluster import job\ndef set_up(name='made'): job(name=name)(lambda: None)\n")

        loading.load(["kiq_app:set_up"], tmp_path)

        assert [job["name"] for job in loading.describe([])] == ["made"]

    def test_one_that_needs_arguments_is_told_apart(self, write: Write, tmp_path: Path) -> None:
        write("kiq_app.py", "def set_up(database, *, debug): pass\n")

        assert "missing a required argument: 'database'" in refusal("kiq_app:set_up", tmp_path)

    def test_a_type_error_within_it_is_its_own(self, write: Write, tmp_path: Path) -> None:
        write("kiq_app.py", "def set_up(): len(5)\n")

        assert "in set_up" in refusal("kiq_app:set_up", tmp_path)


class TestNoJob:
    def test_an_application_that_registers_none_is_asked_whether_it_is_the_right_one(
        self, write: Write, tmp_path: Path
    ) -> None:
        write("kiq_empty.py", "")
        loading.load(["kiq_empty"], tmp_path)

        with pytest.raises(ApplicationError, match="-r kiq_empty registered no job"):
            loading.describe(["kiq_empty"])

    def test_a_folder_that_is_no_package_is_told(self, write: Write, tmp_path: Path) -> None:
        write("kiq_folder/jobs.py")
        loading.load(["kiq_folder"], tmp_path)

        with pytest.raises(ApplicationError, match=r"kiq_folder is a folder without __init__\.py"):
            loading.describe(["kiq_folder"])


def test_what_a_link_led_to_is_imported_wherever_it_leads_by_now(write: Write, tmp_path: Path) -> None:
    old, new, link = tmp_path / "1", tmp_path / "2", tmp_path / "current"
    for place in (old, new):
        write(f"{place.name}/kiq_start.py", f"import kiq_library\n{JOB}")
        write(f"{place.name}/venv/kiq_library.py", "")
    link.symlink_to(new)
    sys.path.append(str(link / "venv"))

    loading.load([str(link / "kiq_start.py")], old, link)

    assert [str(sys.modules[name].__file__) for name in ("kiq_start", "kiq_library")] == [
        str(old / "kiq_start.py"),
        str(old / "venv" / "kiq_library.py"),
    ]


def test_what_only_the_link_has_now_is_still_found_by_it(write: Write, tmp_path: Path) -> None:
    write("2/venv/kiq_library.py", "")
    write("1/kiq_start.py", f"import kiq_library\n{JOB}")
    (tmp_path / "current").symlink_to(tmp_path / "2")
    sys.path.append(str(tmp_path / "current" / "venv"))

    loading.load(["kiq_start"], tmp_path / "1", tmp_path / "current")

    assert "kiq_library" in sys.modules
