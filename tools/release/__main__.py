"""make release VERSION=X.Y.Z: builds, checks and tests the files of a release.  Uploads nothing.

1. rules      the tree is clean, the version follows, its tag does not exist
2. source     the tracked files, with the version and the changelog of the release, in build/release/source
3. build      sdist and wheel, twice: the same bytes
4. check      metadata, README, licence, files
5. try        the sdist and the wheel in fresh environments; commands, demonstration, tests of the wheel
6. record     SBOM and SHA256SUMS, in dist/<version>
7. write      version and changelog in the checkout, for the release commit

Without VERSION it is a rehearsal: the version stays, steps 1 and 7 change and refuse nothing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.release import contents, rules
from tools.release.environments import FOLDERS, Environment, extras, run, without_package
from tools.release.rules import Refused

ROOT = Path(__file__).resolve().parents[2]
VERSION_FILE = "kiqcluster/process/version.py"
VERSION_LINE = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)
TEST_TOOLS = "testing", "dev"  # an extra and a group: what the tests of the wheel need


@dataclass(frozen=True, slots=True)
class Release:
    """What is released.  date: of the commit, or what the changelog says of this version."""

    version: str
    date: str
    tracked: Sequence[str]
    is_rehearsal: bool

    @property
    def epoch(self) -> int:
        """Epoch seconds that the files get: a rehearsal on the tagged commit builds the bytes of the release."""
        return int(datetime.datetime.fromisoformat(f"{self.date}T00:00:00+00:00").timestamp())


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def plan(version: str | None) -> Release:
    """Return what is to be released from this checkout.  Raises Refused."""
    if version is not None:
        if git("status", "--porcelain"):
            raise Refused("the tree has changes that are not committed: commit or stash them first")
        rules.check_version(version, git("tag", "--list").split())
    found = VERSION_LINE.search((ROOT / VERSION_FILE).read_text())
    if found is None:
        raise Refused(f"{VERSION_FILE} has no line VERSION")
    tracked = git("ls-files").splitlines()
    new = version or found[1]
    dated = re.search(rf"^## {re.escape(new)} \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    committed = datetime.datetime.fromtimestamp(int(git("log", "-1", "--format=%ct")), datetime.UTC).date().isoformat()
    return Release(new, dated[1] if dated else committed, tracked, is_rehearsal=version is None)


def export(release: Release, target: Path) -> Path:
    """Write the tracked files of HEAD there, with the version and the changelog of the release."""
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")
    archive.unlink()
    if not release.is_rehearsal:
        write_version(release, target)
    return target


def write_version(release: Release, root: Path) -> None:
    """Set the version, move the fragments into CHANGELOG.md."""
    path = root / VERSION_FILE
    path.write_text(VERSION_LINE.sub(f'VERSION = "{release.version}"', path.read_text()))
    paths = [path for path in sorted((root / "changelog.d").glob("*.md")) if path.name != "README.md"]
    new = rules.section(release.version, release.date, {path.name: path.read_text() for path in paths})
    changelog = root / "CHANGELOG.md"
    changelog.write_text(rules.changelog_with(changelog.read_text(), new))
    for path in paths:
        path.unlink()


def build(source: Path, target: Path) -> list[Path]:
    """Build sdist and wheel (from the sdist) and return them."""
    constraints = str(source / "tools" / "release" / "build.txt")
    run([sys.executable, "-m", "build", "--outdir", target, source], source, PIP_CONSTRAINT=constraints)
    return sorted(target.iterdir())


def build_twice(source: Path, folder: Path) -> list[Path]:
    """Build in two places.  Raises Refused if a byte differs."""
    first = build(source, folder / "first")
    elsewhere = folder / "another-folder-of-another-length"
    shutil.copytree(source, elsewhere)
    second = build(elsewhere, folder / "second")
    for one, other in zip(first, second, strict=True):
        if one.name != other.name or digest(one) != digest(other):
            raise Refused(f"{one.name} has other bytes when it is built again: the build is not reproducible")
    return first


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(distributions: Sequence[Path], release: Release) -> None:
    """Check metadata and files.  Raises Refused."""
    run([sys.executable, "-m", "twine", "check", "--strict", *distributions], ROOT)
    tracked = [name for name in release.tracked if (ROOT / name).exists()]
    for path in distributions:
        names = contents.names_in(path)
        find = contents.faults_of_wheel if path.suffix == ".whl" else contents.faults_of_sdist
        if faults := find(names, tracked):
            raise Refused(f"{path.name}: " + "; ".join(faults[:20]))


def attempt(distributions: Sequence[Path], release: Release, source: Path, work: Path, tests: Sequence[str]) -> Path:
    """Install and try both; return the SBOM.  Raises Refused."""
    sdist, wheel = sorted(distributions, key=lambda path: path.suffix == ".whl")
    files = without_package(source, work / "files")
    from_sdist = Environment(work / "from-sdist")
    from_sdist.install(sdist)
    from_sdist.smoke(files, release.version)
    say("the sdist installs and its commands run")
    from_wheel = Environment(work / "from-wheel")
    from_wheel.install(f"{wheel}[{','.join(extras(source))}]")
    from_wheel.smoke(files, release.version)
    bill = work / f"kiqcluster-{release.version}.cdx.json"
    from_wheel.bill_of_materials(bill, wheel)
    from_wheel.demonstrate(files)
    say("the wheel installs with every extra, and the demonstration is done")
    if tests:
        extra, group = TEST_TOOLS
        from_wheel.install("--upgrade", "pip>=25.1")
        from_wheel.install(f"{wheel}[{extra}]", "--group", f"{source / 'pyproject.toml'}:{group}")
        for line in from_wheel.test(files, tests).splitlines():
            say(f"tests of the installed wheel: {line}")
    return bill


def record(paths: Sequence[Path], target: Path) -> None:
    """Put the files of the release there, with their digests."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in paths:
        shutil.copy2(path, target)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(paths, key=lambda path: path.name))
    (target / "SHA256SUMS").write_text(sums)


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Make the release; return 1 if it is refused."""
    parser = argparse.ArgumentParser(prog="make release", description="Build, check and test a release; upload nothing")
    parser.add_argument("version", nargs="?", help="X.Y.Z or X.Y.ZrcN; without it, a rehearsal")
    parser.add_argument("--tests", nargs="*", default=list(FOLDERS), help="tests of the installed wheel")
    options = parser.parse_args(arguments)
    work = ROOT / "build" / "release"
    try:
        release = plan(options.version)
        os.environ["SOURCE_DATE_EPOCH"] = str(release.epoch)
        say(f"{'rehearsal of ' if release.is_rehearsal else ''}{release.version}, {release.date}")
        shutil.rmtree(work, ignore_errors=True)
        source = export(release, work / "source")
        distributions = build_twice(source, work)
        say(f"{', '.join(path.name for path in distributions)}: built twice, the same bytes")
        check(distributions, release)
        say("metadata, README, licence and files are right")
        bill = attempt(distributions, release, source, work, options.tests)
        target = ROOT / "dist" / release.version
        record([*distributions, bill], target)
        if not release.is_rehearsal:
            write_version(release, ROOT)
    except Refused as refusal:
        print(f"release: refused: {refusal}", file=sys.stderr)
        return 1
    say(f"done; the files are in {target.relative_to(ROOT)}")
    if not release.is_rehearsal:
        say(f"next: git commit -a -m 'Release {release.version}' && git tag v{release.version} (CONTRIBUTING.md)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
