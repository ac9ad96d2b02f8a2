"""A package in an archive, as frozen programs and zip applications have it: scripts, templates and files are found."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import kiqcluster
from kiqcluster.store import Store
from tests.kit import RedisServer

PACKAGE = Path(kiqcluster.__file__).parent
PROGRAM = """
import asyncio, sys
sys.path.insert(0, "package.zip")
import kiqcluster
from kiqcluster import Client, job
assert "package.zip" in kiqcluster.__file__
from kiqcluster.batches import Batch
from kiqcluster.web import Role, User, create_app
from kiqcluster.web.assets import assets
from kiqcluster.web.i18n import LANGUAGES, translations
from werkzeug.test import Client as Browser

@job(result_ttl=60)
def note(n: int) -> None: ...

note.perform_async(1)
asyncio.run(note.aenqueue(2))
Batch.create("some", note, [[3]])
browser = Browser(create_app(lambda request: User("ann", Role.ADMIN)))
print(browser.get("/queues").status_code, browser.get("/" + assets()["icon.svg"].path.lstrip("/")).status_code)
print(all(translations(language).info() for language in LANGUAGES if language != "en"))
"""


def test_a_client_and_the_pages_work_out_of_an_archive(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for file in PACKAGE.rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                archive.write(file, file.relative_to(PACKAGE.parent))
    environ = {"PATH": "/usr/bin:/bin", "REDIS_URL": redis_server.url, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM]  # by no fork server, which has imported the package from elsewhere
    done = subprocess.run(command, cwd=tmp_path, env=environ, timeout=60, capture_output=True, text=True)

    assert done.stdout.split() == ["200", "200", "True"], done.stderr
    assert store.call("LLEN", "queue:default") == 3


def test_pyinstaller_finds_the_hook() -> None:
    value = "kiqcluster.contrib.pyinstaller:hook_folders"
    entry = metadata.EntryPoint(name="hook-dirs", group="pyinstaller40", value=value)
    assert entry in metadata.entry_points(group="pyinstaller40")

    (folder,) = entry.load()()

    assert (Path(folder) / "hook-kiqcluster.py").is_file()
