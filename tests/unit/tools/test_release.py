"""make release: which versions may follow, the changelog, and what the files of a release may hold."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.release import __main__ as release
from tools.release.bill import of_release
from tools.release.contents import faults_of_sdist, faults_of_wheel, names_in
from tools.release.rules import ENTRIES, KINDS, Refused, changelog_with, check_version, latest, section

ROOT = Path(__file__).resolve().parents[3]
TRACKED = ("kiqcluster/__init__.py", "kiqcluster/py.typed", "kiqcluster/store/lua/push.lua", "tests/kit.py")
INFO = "kiqcluster-1.0.0.dist-info"
WHEEL = (
    *(name for name in TRACKED if name.startswith("kiqcluster/")),
    *(f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")),
)


class TestVersions:
    @pytest.mark.parametrize(
        ("version", "tags"),
        [
            ("0.1.0", []),
            ("1.0.1", ["v1.0.0"]),
            ("1.1.0", ["v1.0.0", "v0.9.0", "nightly", "vnext"]),
            ("2.0.0", ["v1.10.3", "v1.9.9"]),
            ("1.1.0rc1", ["v1.0.0"]),
            ("1.1.0rc2", ["v1.0.0", "v1.1.0rc1"]),
            ("1.1.0", ["v1.1.0rc1"]),
        ],
    )
    def test_a_version_may_follow_the_last_one(self, version: str, tags: list[str]) -> None:
        check_version(version, tags)

    @pytest.mark.parametrize(
        ("version", "tags", "reason"),
        [
            ("1.0", [], "is no version"),
            ("01.0.0", [], "is no version"),
            ("1.0.0.dev1", [], "is no version"),
            ("1.0.0", ["v1.0.0"], "exists"),
            ("1.0.0", ["v1.0.0", "v1.1.0"], "exists"),
            ("1.0.2", ["v1.0.0"], "does not follow"),
            ("0.9.0", ["v1.0.0"], "does not follow"),
            ("1.0.0rc1", ["v1.0.0"], "does not follow"),
            ("1.2.0", ["v1.1.0rc1"], "does not follow"),
            ("1.1.0rc3", ["v1.1.0rc1"], "leaves out"),
            ("1.1.0rc2", ["v1.0.0"], "leaves out"),
        ],
    )
    def test_a_version_that_does_not_follow_is_refused(self, version: str, tags: list[str], reason: str) -> None:
        with pytest.raises(Refused, match=reason):
            check_version(version, tags)

    def test_the_latest_version_is_a_number_not_a_text(self) -> None:
        assert latest(["v0.9.0", "v0.10.0", "v0.10.0rc2", "other"]) == "0.10.0"
        assert latest(["other"]) is None


class TestChangelog:
    def test_fragments_become_a_section_by_kind_and_name(self) -> None:
        fragments = {"b.added.md": "B is there.\n", "a.added.md": "A is there,\nat last.\n", "c.fixed.md": "C works."}

        text = section("1.2.0", "2026-01-31", fragments)

        assert text == (
            "## 1.2.0 (2026-01-31)\n\n### Added\n\n- A is there,\n  at last.\n- B is there.\n"
            "\n### Fixed\n\n- C works.\n"
        )

    def test_a_fragment_of_no_known_kind_is_refused(self) -> None:
        with pytest.raises(Refused, match=r"a\.removed\.md"):
            section("1.2.0", "2026-01-31", {"a.removed.md": "A"})

    def test_a_section_comes_before_the_earlier_ones(self) -> None:
        once = changelog_with((ROOT / "CHANGELOG.md").read_text(), "## 0.2.0 (x)\n")

        twice = changelog_with(once, "## 0.3.0 (y)\n")

        assert twice.index("## 0.3.0") < twice.index("## 0.2.0")
        assert twice.startswith("# Changelog\n")

    def test_a_section_that_was_written_ahead_gets_the_date_and_the_entries(self) -> None:
        ahead = f"# Changelog\n\n{ENTRIES}\n\n## 0.2.0\n\nThe text.\n\n## 0.1.0 (x)\n"

        done = changelog_with(ahead, "## 0.2.0 (y)\n\n### Added\n\n- More.\n")

        assert done.endswith("\n\n## 0.2.0 (y)\n\nThe text.\n\n### Added\n\n- More.\n\n## 0.1.0 (x)\n")

    def test_a_section_that_was_written_ahead_stays_first_while_there_are_candidates(self) -> None:
        text = f"# Changelog\n\n{ENTRIES}\n\n## 0.2.0\n\nThe text.\n\n## 0.1.0 (x)\n"

        for version in ("0.2.0rc1 (a)", "0.2.0rc2 (b)", "0.2.0 (c)"):
            text = changelog_with(text, f"## {version}\n\n- Of {version}.\n")

        assert text.endswith(
            "\n\n## 0.2.0 (c)\n\nThe text.\n\n- Of 0.2.0 (c).\n\n## 0.2.0rc2 (b)\n\n- Of 0.2.0rc2 (b).\n"
            "\n## 0.2.0rc1 (a)\n\n- Of 0.2.0rc1 (a).\n\n## 0.1.0 (x)\n"
        )

    def test_a_changelog_without_its_head_is_refused(self) -> None:
        with pytest.raises(Refused, match="lacks the line"):
            changelog_with("# Changelog\n", "## 0.2.0 (x)\n")

    def test_every_fragment_of_the_repository_has_a_kind(self) -> None:
        paths = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]

        assert [path.name for path in paths if path.name.split(".")[-2:-1] not in [[kind] for kind in KINDS]] == []


class TestContents:
    def test_a_whole_wheel_and_sdist_have_no_faults(self) -> None:
        whole = ["pyproject.toml", "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", *TRACKED[:3]]

        assert faults_of_wheel(WHEEL, TRACKED) == []
        assert faults_of_sdist(whole, TRACKED) == []

    @pytest.mark.parametrize("name", WHEEL)
    def test_a_wheel_that_lacks_a_file_has_a_fault(self, name: str) -> None:
        assert faults_of_wheel([each for each in WHEEL if each != name], TRACKED) == [f"{name} is missing"]

    @pytest.mark.parametrize("name", ["tests/kit.py", "kiqcluster/__pycache__/x.pyc", "kiqcluster/notes.orig"])
    def test_junk_in_a_wheel_is_a_fault(self, name: str) -> None:
        assert f"{name} is junk" in faults_of_wheel([*WHEEL, name], TRACKED)

    def test_a_file_that_is_not_tracked_is_a_fault(self) -> None:
        assert faults_of_wheel([*WHEEL, "kiqcluster/mine.py"], TRACKED) == ["kiqcluster/mine.py is not tracked"]

    def test_names_are_read_from_wheels_and_sdists(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("")
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
            wheel.write(tmp_path / "a.py", "x/a.py")
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as sdist:
            sdist.add(tmp_path / "a.py", "x-1.0/x/a.py")

        assert names_in(tmp_path / "x.whl") == names_in(tmp_path / "x.tar.gz") == ["x/a.py"]


class TestBill:
    FOUND: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "metadata": {"timestamp": "2026-01-31T00:00:00+00:00"},
        "components": [
            {"bom-ref": "a", "name": "kiqcluster", "version": "1.0.0", "externalReferences": [
                {"type": "distribution", "url": "file:///srv/build/kiqcluster-1.0.0.whl", "hashes": ["x"]}]},
            {"bom-ref": "b", "name": "psutil", "version": "7"},
            {"bom-ref": "c", "name": "setuptools", "version": "65"},
            {"bom-ref": "d", "name": "pip", "version": "23"},
        ],
        "dependencies": [
            {"ref": "a", "dependsOn": ["b"]},
            {"ref": "b", "dependsOn": ["c"]},
            {"ref": "c", "dependsOn": ["d"]},
            {"ref": "d"},
        ],
    }  # fmt: skip

    def test_a_bill_is_of_the_package_and_of_what_it_brings(self) -> None:
        bill = of_release(self.FOUND, "kiqcluster-1.0.0.whl")

        subject = bill["metadata"]["component"]
        assert (subject["purl"], bill["metadata"]["timestamp"]) == (
            "pkg:pypi/kiqcluster@1.0.0",
            "2026-01-31T00:00:00+00:00",
        )
        assert [each["name"] for each in bill["components"]] == ["psutil"]
        assert bill["dependencies"] == [{"ref": "a", "dependsOn": ["b"]}, {"ref": "b"}]

    def test_a_bill_has_no_path_of_the_machine_that_made_it(self) -> None:
        bill = of_release(self.FOUND, "kiqcluster-1.0.0.whl")

        references = bill["metadata"]["component"]["externalReferences"]
        assert references == [{"type": "distribution", "url": "kiqcluster-1.0.0.whl", "hashes": ["x"]}]

    def test_a_bill_without_the_package_is_refused(self) -> None:
        with pytest.raises(Refused, match="0 times"):
            of_release(self.FOUND | {"components": self.FOUND["components"][1:]}, "kiqcluster-1.0.0.whl")


class TestRepository:
    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A small repository, which the tool takes for its own."""
        for name, text in {
            release.VERSION_FILE: '"""V."""\n\nVERSION = "0.1.0"\n__version__ = VERSION\n',
            "CHANGELOG.md": (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[0],
            "changelog.d/README.md": "One file per change.\n",
            "changelog.d/new.added.md": "Something new.\n",
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(release, "ROOT", tmp_path)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
            subprocess.run(
                ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *words], cwd=tmp_path, check=True
            )
        return tmp_path

    def test_a_release_is_exported_with_its_version_and_changelog(self, repository: Path, tmp_path: Path) -> None:
        planned = release.plan("0.2.0")

        source = release.export(planned, tmp_path / "build" / "source")

        assert 'VERSION = "0.2.0"\n' in (source / release.VERSION_FILE).read_text()
        assert f"## 0.2.0 ({planned.date})" in (source / "CHANGELOG.md").read_text()
        assert [path.name for path in (source / "changelog.d").iterdir()] == ["README.md"]
        assert (repository / "changelog.d/new.added.md").exists()  # the checkout changes at the end only

    def test_a_rehearsal_takes_the_version_that_is_there(self, repository: Path) -> None:
        (repository / "untracked").touch()

        planned = release.plan(None)

        assert (planned.version, planned.is_rehearsal) == ("0.1.0", True)

    def test_a_rehearsal_on_the_released_commit_has_the_time_of_the_release(self, repository: Path) -> None:
        released = release.plan("0.2.0")
        release.write_version(released, repository)
        changelog = repository / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace(released.date, "2026-01-31"))

        again = release.plan(None)

        assert (again.version, again.date, again.epoch) == ("0.2.0", "2026-01-31", 1_769_817_600)

    def test_changes_that_are_not_committed_are_refused(self, repository: Path) -> None:
        (repository / "untracked").touch()

        with pytest.raises(Refused, match="not committed"):
            release.plan("0.2.0")

    def test_an_existing_tag_is_refused(self, repository: Path) -> None:
        subprocess.run(["git", "tag", "v0.2.0"], cwd=repository, check=True)

        with pytest.raises(Refused, match="exists"):
            release.plan("0.2.0")

    def test_digests_are_recorded_as_sha256sum_reads_them(self, repository: Path, tmp_path: Path) -> None:
        paths = [tmp_path / "b.whl", tmp_path / "a.tar.gz"]
        for path in paths:
            path.write_text(path.name)

        release.record(paths, repository / "dist")

        checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=repository / "dist", check=False)
        assert checked.returncode == 0
