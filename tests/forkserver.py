"""Fork server: starts Python programs with the modules of kiqcluster imported already.

Importing the same modules in two thousand processes took most of the time of the tests.  A program that is started here
is the real one, in a process of its own, from its `__main__` on; the parts of the interpreter that follow the
environment are made anew.  Importing kiqcluster may therefore read neither environment nor folder.

1. Popen    in the tests' process: asks the server, and owns the new process as if it had started it
2. serve    in the server: forks twice, which hands the new process to the tests' process
3. become   in the new process: environment, folder, `sys.path`, streams; then the program runs

own_pids     processes of this module that stay
install      writes a program of that kind for a shell; tests/forkclient.py then asks the server, and stands for it
serve_client in a process of the server's, which waits for the program and tells how it has ended

A program whose environment changes the interpreter itself (PYTHON…, the locale), or leads to another kiqcluster, is
started the ordinary way.  So are all of them where KIQ_FORKSERVER=0 is set, and on systems other than Linux.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tomllib
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["Login", "Popen", "install", "own_pids", "run"]

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    *(
        "encodings.ascii",
        "encodings.idna",  # of the first address that is looked up
        "encodings.utf_8_sig",
        "hiredis",
        "http.client",
        "importlib.metadata",
        "logging.handlers",
        "pytest",
        "redis.sentinel",
        "ssl",
        "tomllib",
        "uuid",
    ),
    *("kiqcluster.cli", "kiqcluster.ctl.command", "kiqcluster.ctl.top.screen", "kiqcluster.web", "textual.app"),
)
CLIENT = ROOT / "tests" / "forkclient.py"
MAX_REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 16  # of a request
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Makes the terminal on standard input the controlling one of a new session, as a login does; then becomes the command.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
# Without these a program is what it is here: streams are made anew, Python reads and writes UTF-8 where no locale is
# set (PEP 538), and OpenSSL asks for its certificates when it connects.
MAY_LACK = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "LANG", "SSL_CERT_DIR", "SSL_CERT_FILE"}
INTERPRETER_VARIABLES = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENSSL", "SSL_")


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, by way of the server where that makes no difference to the program."""

    is_login: ClassVar = False

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Have the server start the program.  rest: as CPython passes it, from `executable` on."""
        _, preexec_fn, _, pass_fds, cwd, env = rest[:6]
        pipes, is_session = rest[9:15], bool(rest[20])
        words, environ = [os.fspath(word) for word in args], dict(os.environ if env is None else env)
        directory = os.fspath(cwd or Path.cwd())
        if preexec_fn or not _can_serve(words, environ, Path(directory)):
            plain = [sys.executable, "-c", LOGIN, *words] if self.is_login else args
            super()._execute_child(plain, *rest)  # type: ignore[misc]
            return
        theirs = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"words": words[1:], "directory": directory, "environ": environ, "session": is_session}
        request |= {"login": self.is_login, "passed": list(pass_fds)}
        self.pid = _Server.running().start(request, [*theirs, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class Login(Popen):
    """The same for a program in a terminal: that on its standard input controls its session."""

    is_login = True

    def __init__(self, words: Sequence[str], terminal: int, **options: Any) -> None:
        super().__init__(words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, **options)


def own_pids() -> set[int]:
    """Return the pid of the server, if there is one: it stays until the end of the run."""
    one = _Server._one
    return {one._process.pid} if one is not None else set()


def run(words: Sequence[str], *, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its exit code and all that it printed.  options: those of Popen."""
    with Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def install(path: Path, module: str) -> None:
    """Write a program that runs `python -m MODULE` by way of the server, for shells and their scripts."""
    words = [sys.executable, "-m", module]
    if sys.platform == "linux" and os.environ.get("KIQ_FORKSERVER") != "0":
        words = [sys.executable, "-IS", str(CLIENT), str(_Server.running().address), "-m", module]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


def _can_serve(words: list[str], environ: Mapping[str, str], directory: Path) -> bool:
    if sys.platform != "linux" or os.environ.get("KIQ_FORKSERVER") == "0":
        return False
    if words[0] != sys.executable or len(words) < 2 or not directory.is_dir():
        return False
    if words[1].startswith("-") and words[1] not in ("-m", "-c"):
        return False
    first_searched = [directory, *(directory / path for path in _python_path(environ))]
    known = {name.partition(".")[0] for name in IMPORTED}
    if any((path / name).exists() for path in first_searched if path.resolve() != ROOT for name in known):
        return False
    names = {name for name in {*environ, *os.environ} if name.startswith(INTERPRETER_VARIABLES)} - {"PYTHONPATH"}
    names -= {name for name in MAY_LACK if name not in environ}
    return all(environ.get(name) == os.environ.get(name) for name in names)


def _python_path(environ: Mapping[str, str]) -> list[str]:
    return [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]


class _Server:
    """The tests' end of the server; one for each of their processes."""

    _one: ClassVar[_Server | None] = None
    _lock = threading.Lock()  # guards _one, and the socket

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self._folder = tempfile.TemporaryDirectory(prefix="kiq-fork-")
        self.address = Path(self._folder.name) / "socket"  # of clients
        command = [sys.executable, "-m", "tests.forkserver", str(theirs.fileno()), str(self.address)]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._socket.recv(64)  # it listens
        self._prctl = ctypes.CDLL(None).prctl
        atexit.register(self._close)

    @classmethod
    def running(cls) -> _Server:
        with cls._lock:
            if cls._one is None:
                cls._one = cls()
            return cls._one

    def start(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Return the pid of a new child of this process."""
        with self._lock:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                return int(self._socket.recv(64))
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()
        self._folder.cleanup()


def serve(connection: socket.socket, listener: socket.socket) -> Mapping[str, Any] | None:
    """Start what is asked for.  Returns the request in each new process, and None in the server at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    connection.send(b"listening")
    while True:
        ready, _, _ = select.select([connection, listener], [], [])
        if listener in ready:
            client, _ = listener.accept()
            if _fork_away():
                connection.close()
                listener.close()
                return serve_client(client)
            client.close()
        if connection not in ready:
            continue
        data, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        if not data:
            return None
        reader, writer = os.pipe()
        gate, gate_keeper = os.pipe()
        if _fork_away():
            request = _begun(data)
            os.write(writer, str(os.getpid()).encode())  # from now on it may be signalled
            os.close(gate_keeper)
            os.read(gate, 1)  # until this process has its new parent
            for own in (reader, writer, gate, connection.detach(), listener.detach()):
                os.close(own)
            return _streaming(request, streams)
        connection.send(os.read(reader, 64))
        for own in (reader, writer, gate, gate_keeper, *streams):
            os.close(own)


def serve_client(client: socket.socket) -> Mapping[str, Any] | None:
    """Start what a client asks for, and tell it how that ends; with the client, its program ends too."""
    data, streams, _, _ = socket.recv_fds(client, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
    pid = os.fork() if data else 0
    if pid == 0:
        client.close()
        return _streaming(_begun(data), streams) if data else None
    for own in streams:
        os.close(own)
    client.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([client, ended], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # nobody may be there to hear it
        client.send(str(status).encode())
    os._exit(0)


def _fork_away() -> bool:
    """Return whether this is a new process, which is no child of the server."""
    between = os.fork()
    if between == 0:
        if os.fork() > 0:
            os._exit(0)
        return True
    os.waitpid(between, 0)
    return False


def _begun(data: bytes) -> Mapping[str, Any]:
    """Make a new process one that signals may reach; return its request."""
    request: Mapping[str, Any] = json.loads(data)
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return request


def _streaming(request: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, Any]:
    """Make a request's streams those of this process, and give it the other descriptors by their numbers."""
    numbers = [0, 1, 2, *request.get("passed", ())]
    above = [fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, max(*numbers, *descriptors) + 1) for own in descriptors]
    for own in descriptors:
        os.close(own)
    for number, own in zip(numbers, above, strict=True):
        os.dup2(own, number)
        os.close(own)
    if request["login"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return request


def become(request: Mapping[str, Any]) -> None:
    """Make this process what the interpreter would have made of that environment."""
    added = _python_path(os.environ)
    installed = [path for path in sys.path[1:] if path not in added]
    os.environ.clear()
    os.environ.update(request["environ"])
    if "parent" in request:  # by which kiqctl knows the deploys of a shell again
        own, getppid = os.getpid(), os.getppid
        os.getppid = lambda: request["parent"] if os.getpid() == own else getppid()
    time.tzset()
    os.chdir(request["directory"])
    words = request["words"]
    first = Path.cwd() if words[0].startswith("-") else Path(words[0]).resolve().parent
    sys.path[:] = ["" if words[0] == "-c" else str(first), *_python_path(os.environ), *installed]
    importlib.invalidate_caches()
    sys.stdin = sys.__stdin__ = _text(0, "r", sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w", sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w", sys.stderr, line_buffering=True)  # type: ignore[misc]
    sys.argv[:] = words[1:] if words[0] == "-m" else words


def _text(number: int, mode: str, like: Any, *, line_buffering: bool = False) -> io.TextIOWrapper:
    raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115  # as long as the process
    return io.TextIOWrapper(raw, like.encoding, like.errors, line_buffering=line_buffering or raw.isatty())


def run_program(words: list[str]) -> None:
    """Run what the words after `python` say: -m MODULE, -c SOURCE or a file, each with arguments."""
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        file = Path(words[0]).absolute()
        main.__file__ = str(file)
        exec(compile(file.read_bytes(), str(file), "exec"), main.__dict__)


def end(words: list[str]) -> None:
    """Run the program to its end, and leave as the interpreter does, but for its last act.

    That clears every module, for which the kernel copies each page that this process shares with the server: most of
    the time of a short program.
    """
    code = 0
    try:
        run_program(words)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(code)  # the interpreter says what is wrong with the stream
    os._exit(code & 0xFF)


def parse_settings_once() -> None:
    """Parse pyproject.toml of the repository here: each program that runs in the root looks for its settings there."""
    loads, text = tomllib.loads, (ROOT / "pyproject.toml").read_text(encoding="utf-8-sig")
    parsed = loads(text)
    tomllib.loads = lambda each, **options: parsed if each == text else loads(each, **options)


def main() -> None:
    for name in IMPORTED:
        with suppress(ImportError):  # an environment of `make test-versions` may lack an extra
            importlib.import_module(name)
    parse_settings_once()
    gc.freeze()  # no collection in a new process copies these pages
    connection, listener = socket.socket(fileno=int(sys.argv[1])), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[2])
    listener.listen(64)
    request = serve(connection, listener)
    if request is not None:
        become(request)
        end(request["words"])


if __name__ == "__main__":
    main()
