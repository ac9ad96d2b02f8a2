"""`python -m tests.ci [--beside COMMAND]… [--changed [DISTANCE]] [PATH…]`: the short form of every promise.

1. all tests but the quiet ones, in two pools of processes at once (pools); the commands beside them
2. the quiet tests, in one process, alone, once the commands have ended
3. where at most two tests failed: each of them once more, alone, in a fresh process with a Redis of its own (reruns)
4. the box, if a test failed first and passed then; exit code 0 only if everything passed at last

`--changed` runs the tests that the changes since `changes.base` can break; DISTANCE: those nearer only.
build/tests/ gets the output of the commands, and junit.xml and quiet.xml, which keep the first result of each test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ci import changes, flaky, pools, results
from tests.ci.reruns import refusal
from tests.ci.results import Failure, Results

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "tests"
SHORT = "not full"
NOTHING_RAN = 5  # exit code of pytest
FIRST_FAILURES = (0, 1)  # exit codes after which every test has run
PYTEST = [sys.executable, "-m", "pytest"]
POOLS = ["-p", "tests.ci.pools", "--dist", "loadfile"]
RESULTS = ["-p", "tests.ci.results", "--results"]
LINES_OF_A_COMMAND = 40  # of its output that a failure shows
SLOWEST = 15  # files that are shown


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    missing = [path for path in options.paths if not (ROOT / path.partition("::")[0]).exists()]
    if missing:
        print(f"no such test: {', '.join(missing)}; paths are from {ROOT}", file=sys.stderr)
        return 4
    paths = options.paths or ["tests"]
    if options.changed is not None:
        paths = _changed_paths(options.changed)
        if not paths:
            return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    beside = [Beside(command) for command in options.beside]
    codes = [run("junit", f"{SHORT} and not quiet", paths, [*POOLS, "-n", str(max(2, options.processes))])]
    first = results.read(OUTPUT / "junit.json")
    commands = [each.finish() for each in beside]
    if codes[0] in (*FIRST_FAILURES, NOTHING_RAN) and (quiet := _quiet_paths(paths)):
        codes.append(run("quiet", f"{SHORT} and quiet", quiet, []))
    second = results.read(OUTPUT / "quiet.json") if len(codes) > 1 else Results()
    show_slowest(first)
    if options.record:
        record(first)
    if set(codes) == {NOTHING_RAN}:
        print(f"no test has run: none is there, or all of {', '.join(paths)} are marked full", file=sys.stderr)
        return NOTHING_RAN
    failures = [*first.failures.values(), *second.failures.values()]
    worst = max(code for code in codes if code != NOTHING_RAN)
    if failures and worst in FIRST_FAILURES:
        worst = rerun(failures)
    return worst or max(commands, default=0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ci", description="Runs the short form of every promise.")
    parser.add_argument("paths", nargs="*", help="folders, files, file::test; all by default")
    parser.add_argument("--beside", action="append", default=[], help="a command that runs at the same time")
    parser.add_argument("--changed", nargs="?", type=int, const=sys.maxsize, help="what changes can break")
    parser.add_argument("--record", action="store_true", help="write durations.toml")
    parser.add_argument("--processes", type=int, default=pools.PROCESSES, help="of both pools; %(default)s by default")
    return parser.parse_args(arguments)


def _changed_paths(distance: int) -> list[str]:
    """Return the files that changes can break, and say which those are."""
    changed = changes.changed_files()
    if changed is None:
        print(f"it is not known what has changed: set {changes.VARIABLE} to the commit before", file=sys.stderr)
        return ["tests"]
    affected = changes.affected_tests(changed)
    print(f"{len(changed)} files differ from {changes.base()}; {len(affected)} test files can break by it")
    print(", ".join(f"{count} at distance {each}" for each, count in sorted(Counter(affected.values()).items())))
    print("of the tests that start programs, those that name a changed module; `make test` has them all", flush=True)
    return [path for path, each in affected.items() if each <= distance]


def _quiet_paths(paths: Sequence[str]) -> list[str]:
    """Return those of the paths whose files have quiet tests: the others need not be imported once more."""
    found: list[str] = []
    for path in paths:
        quiet = [
            each.relative_to(ROOT).as_posix() for each in pools.files_of([path]) if "mark.quiet" in each.read_text()
        ]
        test = path.partition("::")[2]
        found += [f"{each}::{test}" if test else each for each in quiet]
    return found


def run(name: str, marks: str, paths: Sequence[str], words: Sequence[str]) -> int:
    """Run tests with pytest; return its exit code.  name: of the files that it writes."""
    (OUTPUT / f"{name}.json").unlink(missing_ok=True)
    written = [*RESULTS, str(OUTPUT / f"{name}.json"), f"--junitxml={OUTPUT / name}.xml"]
    return subprocess.run([*PYTEST, "-m", marks, *words, *written, *paths], cwd=ROOT, check=False).returncode


# beside


class Beside:
    """A command that runs while the tests do; its output is shown if it fails."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._begin = time.monotonic()
        self._path = OUTPUT / f"{command.replace(' ', '-').replace('/', '-')}.log"
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                command, shell=True, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def finish(self) -> int:
        """Wait for its end; return its exit code."""
        code = self._process.wait()
        print(f"beside: {self._command}: exit {code}", flush=True)
        if code:
            print("\n".join(self._path.read_text(errors="replace").splitlines()[-LINES_OF_A_COMMAND:]))
        return code


# what is shown


def show_slowest(found: Results) -> None:
    """Print the files that took longest, and how long all waited."""
    longest = sorted(found.seconds_of_files().items(), key=lambda file: -file[1])[:SLOWEST]
    if len(longest) == SLOWEST:
        print("the files that took longest: " + ", ".join(f"{path} {seconds:.0f} s" for path, seconds in longest))


def record(found: Results) -> None:
    """Write the durations of files for the runs to come; the order of a run follows them."""
    lines = [
        f'"{path.removeprefix("tests/")}" = {seconds:.0f}'
        for path, seconds in sorted(found.seconds_of_files().items())
        if seconds >= pools.RECORDED_FROM_SECONDS
    ]
    head = "# Seconds that files of the short form took; `python -m tests.ci --record` writes this.\n"
    pools.DURATIONS.write_text(head + "\n".join(lines) + "\n")


@dataclass(frozen=True)
class Second:
    """The second run of a failed test."""

    failure: Failure
    seconds: float
    passed: bool
    message: str


def rerun(failures: Sequence[Failure]) -> int:
    """Run failed tests once more, if that is allowed; return the exit code of the whole run."""
    why_not = refusal(failures, changes.changed_files())
    if why_not:
        print(f"\nno failed test runs again: {why_not}")
        return 1
    seconds = [_again(failure) for failure in failures]
    print("\n".join(box(seconds)), flush=True)
    return 0 if all(each.passed for each in seconds) else 1


def _again(failure: Failure) -> Second:
    print(f"\nonce more, alone: {failure.test}", flush=True)
    path = OUTPUT / "again.json"
    path.unlink(missing_ok=True)
    words = ["-p", "no:xdist", *RESULTS, str(path), failure.test]
    code = subprocess.run([*PYTEST, *words], cwd=ROOT, check=False).returncode
    found = results.read(path)
    said = found.failures[failure.test].message if failure.test in found.failures else ""
    return Second(failure, sum(found.seconds.values()), code == 0, said)


def box(seconds: Sequence[Second]) -> Iterator[str]:
    """Yield the lines that say which tests failed first, and what came of their second run."""
    line = "#" * 100
    yield f"\n{line}"
    for each in seconds:
        failure = each.failure
        outcome = "passed" if each.passed else f"failed again: {each.message}"
        yield f"# FAILED FIRST  {failure.test}"
        yield f"#   it said     {failure.message}"
        yield f"#   first run   {failure.seconds:.1f} s, load {failure.load:.1f} on {os.cpu_count()} cores"
        yield f"#   second run  {each.seconds:.1f} s, alone: {outcome}"
    if all(each.passed for each in seconds):
        yield f"# Enter {'it' if len(seconds) == 1 else 'them'} in {flaky.FILE.relative_to(ROOT)} and mend that next."
    yield line


if __name__ == "__main__":
    sys.exit(main())
