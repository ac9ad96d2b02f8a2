"""What the tests of deploy/ have in common: units, services with variables of their own, and systemd's ear."""

from __future__ import annotations

import importlib
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit import ROOT, TIMEOUT_SECONDS, unavailable

RUNTIME = "/run"  # systemd's %t for services of the system


def need(module: str) -> Any:
    """Return a module of the extra `dev`, or skip the test loudly; fail it where KIQ_REQUIRE_ALL=1 (CI) says so."""
    try:
        return importlib.import_module(module)
    except ImportError:
        unavailable(f"{module} is not installed (make test installs it)")


class Unit:
    """A unit file of systemd.  lines: its settings, in order."""

    def __init__(self, path: Path) -> None:
        self._text = path.read_text()
        self.lines = [
            (name, value)
            for name, equals, value in (line.partition("=") for line in self._text.splitlines())
            if equals and not name.startswith("#")
        ]

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.lines if each == name]

    def value(self, name: str) -> str:
        (value,) = self.values(name)
        return value

    def seconds(self, name: str) -> float:
        return float(self.value(name))

    def environ(self, instance: str, runtime: str = RUNTIME) -> dict[str, str]:
        """Return the variables that an instance is given."""
        words = shlex.split(" ".join(self.values("Environment")))
        return dict(word.replace("%i", instance).replace("%t", runtime).split("=", 1) for word in words)

    def example(self) -> dict[str, str]:
        """Return the variables of the environment file that its comments show."""
        lines = re.findall(r"^#   ([A-Z_]+=.*)$", self._text, re.MULTILINE)
        return dict(shlex.split(line)[0].split("=", 1) for line in lines)


@contextmanager
def service(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as a service manager does: with these variables and no others; stopped in the end."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its workers leave when they notice
            process.wait()


class Manager:
    """What systemd does with the socket that it names to a service: it reads datagrams."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self.heard: list[dict[str, str]] = []

    def listen(self) -> list[dict[str, str]]:
        """Return the assignments of every datagram so far."""
        while True:
            try:
                text = self._socket.recv(65_536).decode()
            except BlockingIOError:
                return self.heard
            self.heard.append(dict(line.split("=", 1) for line in text.split("\n")))

    def states(self) -> list[str]:
        """Return the states that the service has reported so far, in order."""
        return [name for message in self.listen() for name in message if name in ("READY", "RELOADING", "STOPPING")]

    def count(self, name: str) -> int:
        return sum(name in message for message in self.listen())

    def status(self) -> str:
        """Return the latest status line."""
        return next((each["STATUS"] for each in reversed(self.listen()) if "STATUS" in each), "")

    def close(self) -> None:
        self._socket.close()
