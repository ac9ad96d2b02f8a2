"""A PostgreSQL of the tests' own, from Debian's package postgresql."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sql

from tests.kit import free_port, require, wait_until

__all__ = ["running_postgres"]


def programs() -> Path:
    """Return the folder of initdb and postgres: on the path, or where Debian has them.  Skips the test loudly."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return (versions[-1] if versions else Path(require("postgres", "postgresql")).resolve()).parent


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server; give its URL, whose user may do anything.  It keeps nothing."""
    folder_of_programs = programs()
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to be root
    folder = Path(tempfile.mkdtemp(prefix="kiq-postgres-"))  # pytest's folders are for one user alone
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    words = [str(folder_of_programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "kiq", "--no-sync"]
    subprocess.run(words, check=True, capture_output=True, user=user, cwd=folder)
    settings = ["-p", str(port), "-k", str(folder), "-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(
        [str(folder_of_programs / "postgres"), "-D", str(data), *settings, "-c", "max_connections=200"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        cwd=folder,
    )
    url = f"postgresql+psycopg://kiq@127.0.0.1:{port}/postgres"
    try:
        wait_until(lambda: answers(url), "PostgreSQL to answer")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # SIGTERM would wait for connections that tests have left
        server.wait(20)
        shutil.rmtree(folder)


def answers(url: str) -> bool:
    engine = sql.create_engine(url)
    try:
        with engine.connect():
            return True
    except sql.exc.OperationalError:
        return False
    finally:
        engine.dispose()
