"""Follows pages as a reader does: saves the files they show, types their commands, and compares what is printed.

A page says these things in plain sentences, and they are read from there:

    Save this as `shop/jobs.py`:              the next block becomes this file
    Add this to the end of `shop/jobs.py`:    the next block is appended to it
    in the second terminal                    where the next commands are typed; a terminal begins as a new login does
    The first terminal prints:                the next block of text has lines that appear there, in any order
    Press Ctrl-C in the first terminal        ends the program that runs there
    Open <http://…/retries>: … `import`       the page answers, and has this word

In what is shown, … stands for anything, and the id of a job for any id.  Comments `<!-- not run: … -->` leave the next
block out.  The pages' ports become free ones, so that walks do not meet.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.process.clock import SystemClock
from kiqcluster.testing.server import free_port
from tests.kit import PAUSE, wait_until

__all__ = ["COMMAND", "Desk", "files_of", "follow", "is_shown"]

PORTS = (8000, 8082, 8083, 9168)
LOOK_SECONDS = 0.2
SECONDS = 60.0  # for a line that is to appear
SAVE = "Save this as"
STEP = re.compile(
    r"(?P<not_run><!-- not run:)"
    rf"|(?P<how>{SAVE}|Add this to the end of) `(?P<file>[^`]+)`"
    r"|Press Ctrl-C in the (?P<stopped>first|second|third) terminal"
    r"|Open <(?P<url>http://[^>]+)>[^`]*?`(?P<word>[^`]+)`"
    r"|(?P<terminal>first|second|third) terminal"
    r"|^```(?P<language>\w*)\n(?P<block>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
# A command, and what the page shows of its output.
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# Programs that go on until Ctrl-C.
SERVER = re.compile(
    r"(?!.* --(?:check|print-config|version))"
    r"(?:kiqcluster|kiqctl (?:web|exporter)|uvicorn|flask .*\brun|python manage\.py (?:kiqcluster|runserver))\b"
)
# A reader looks again where the answer is not there yet: these commands change nothing.
LOOKS = re.compile(r"kiqctl (ps|queues|retries|dead|cron|stats)$|curl -s ")
ASKS_CODE = "echo $?"
JID = re.compile(r"\b[0-9a-f]{24}\b")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def pattern(shown: str) -> str:
    """Return the pattern of what a page shows; columns may be wider."""
    words = re.escape(" ".join(JID.sub("…", shown).split()))
    return words.replace("…", ".*")


class Terminal:
    """A shell, and the program that runs in it."""

    def __init__(self, folder: Path, environ: dict[str, str], logs: Path) -> None:
        self._logs = logs  # folder of the logs of programs
        self._log = logs
        self._read = 0  # lines of the log that earlier blocks have shown
        self._program: int | None = None
        self._mark = 0
        self._shell = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, bufsize=1,
        )  # fmt: skip
        self.run("set -m")  # a program gets Ctrl-C, as in a terminal

    def run(self, command: str) -> tuple[int, str]:
        """Type a command and wait for its end; return its exit code and what it printed."""
        assert self._program is None, f"`{command}` is typed where another program runs"
        self._mark += 1
        mark = f"end of command {self._mark}:"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\ncode=$?; printf '\\n%s %s\\n' '{mark}' $code; (exit $code)\n")
        lines = []
        for line in self._shell.stdout:
            if line.startswith(mark):
                return int(line.split()[-1]), "".join(lines)[:-1]
            lines.append(line)
        raise AssertionError(f"the shell has ended with `{command}`:\n{''.join(lines)}")

    def start(self, command: str) -> None:
        """Type a command that goes on."""
        self._log = self._logs / f"{self._mark}.log"  # one each: the shell opens it when it gets to that
        self._log.touch()
        code, pid = self.run(f"{{ {command} ; }} > '{self._log}' 2>&1 < /dev/null & echo $!")
        assert code == 0, pid
        self._read, self._program = 0, int(pid)

    def wait_for(self, lines: Iterable[str]) -> None:
        """Wait until the program here has printed such lines, after those of earlier blocks.

        Each shown line is one that was printed.  Their order is free, since several processes print.
        """
        begin, found = self._read, set[int]()
        for line in lines:
            expected = re.compile(rf".*{pattern(line)}")

            def appeared(expected: re.Pattern[str] = expected) -> bool:
                new = enumerate(self.printed()[begin:])
                number = next((n for n, each in new if n not in found and expected.match(each)), None)
                if number is not None:
                    found.add(number)
                return number is not None

            try:
                wait_until(appeared, line, SECONDS)
            except AssertionError as error:
                printed_at_last = "\n".join(self.printed())[-4_000:]
                raise AssertionError(f"not printed: {line}\n{printed_at_last}") from error
        self._read = begin + max(found, default=-1) + 1

    def printed(self) -> list[str]:
        lines = COLOURS.sub("", self._log.read_text(errors="replace")).splitlines()
        return [" ".join(line.split()) for line in lines]

    def press_ctrl_c(self) -> None:
        """End the program that runs here."""
        program, self._program = self._program, None
        assert program is not None, "no program runs there"
        os.killpg(program, signal.SIGINT)
        self.run(f"wait {program}")

    def close(self) -> None:
        if self._program is not None:
            self.press_ctrl_c()
        self._shell.communicate("exit\n", timeout=SECONDS)


@dataclass
class Desk:
    """Where a reader sits: an empty folder, and terminals.

    environ: of a new terminal.  replaced: words of the pages → what stands for them here.
    """

    folder: Path
    environ: dict[str, str]
    replaced: dict[str, str] = field(default_factory=dict)
    terminals: dict[str, Terminal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = {str(port): str(free_port()) for port in PORTS}
        self.environ = {**self.environ, "KIQ_LISTEN": f"127.0.0.1:{self.ports['8082']}"}

    def terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            logs = self.folder / f"{name} terminal"
            logs.mkdir()
            self.terminals[name] = Terminal(self.folder, self.environ, logs)
        return self.terminals[name]

    def here(self, text: str) -> str:
        """Return a text of a page with the ports and words of this place."""
        for word, other in self.replaced.items():
            text = text.replace(word, other)
        return re.sub(rf"\b({'|'.join(self.ports)})\b", lambda found: self.ports[found[0]], text)

    def close(self) -> None:
        for terminal in self.terminals.values():
            terminal.close()


def follow(page: Path, desk: Desk, project: Path) -> None:
    """Do what a page says.  project: the folder of the reader's files."""
    where, file, is_run = "first", None, True
    for step in STEP.finditer(page.read_text()):
        said = {name: text for name, text in step.groupdict().items() if text is not None}
        match said:
            case {"not_run": _}:
                is_run = False
            case {"how": how, "file": name}:
                file = (project / name, how)
            case {"stopped": name}:
                desk.terminal(name).press_ctrl_c()
            case {"url": url, "word": word}:
                look_at(desk.here(url), word)
            case {"terminal": name}:
                where = name
            case {"language": language, "block": block}:
                if is_run and file is not None:
                    save(*file, block)
                elif is_run and language == "console":
                    type_in(desk, where, block)
                elif is_run and language == "text":
                    desk.terminal(where).wait_for(desk.here(block).splitlines())
                file, is_run = None, True


def look_at(url: str, word: str) -> None:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        assert word in answer.read().decode(), f"{url} has no {word}"


def save(file: Path, how: str, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    before = "" if how == SAVE else file.read_text()
    file.write_text(extended(before, how, text))


def extended(before: str, how: str, text: str) -> str:
    """Return what a file has after a block that is saved as it, or added to its end."""
    return text if how == SAVE else f"{before}\n\n{text}"


def files_of(pages: Iterable[Path]) -> dict[str, str]:
    """Return the files that pages have a reader save, by their names; of one that a command makes, what is added."""
    files: dict[str, str] = {}
    for page in pages:
        how = name = None
        for step in STEP.finditer(page.read_text()):
            if step["file"]:
                how, name = step["how"], step["file"]
            elif step["block"] and how and name:
                files[name] = extended(files.get(name, ""), how, step["block"])
                how = name = None
    return files


def type_in(desk: Desk, where: str, block: str) -> None:
    """Type the commands of a block into a terminal; each must succeed, unless `echo $?` asks for its exit code."""
    terminal = desk.terminal(where)
    commands = COMMAND.findall(desk.here(block))
    for number, (command, shown) in enumerate(commands):
        if SERVER.match(command):
            terminal.start(command)
            continue
        is_asked = command == ASKS_CODE or [other for other, _ in commands[number + 1 : number + 2]] == [ASKS_CODE]
        code, printed = terminal.run(command)
        deadline = SystemClock.monotonic() + SECONDS
        while LOOKS.match(command) and not is_shown(printed, shown) and SystemClock.monotonic() < deadline:
            PAUSE.wait(LOOK_SECONDS)
            code, printed = terminal.run(command)
        assert code == 0 or is_asked, f"`{command}` ended with {code}:\n{printed}"
        assert not shown or is_shown(printed, shown), f"`{command}` printed\n{printed}"


def is_shown(printed: str, shown: str) -> bool:
    """Return whether it is what a page shows: … stands for anything, and columns may be wider."""
    return re.fullmatch(pattern(shown), " ".join(COLOURS.sub("", printed).split())) is not None
