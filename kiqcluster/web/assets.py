"""Assets: the files of static/, read once, each under a path with a hash of its content, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

__all__ = ["PREFIX", "Asset", "answer", "asset_path", "assets", "is_asset"]

FOLDER = files("kiqcluster.web") / "static"
PREFIX = "/static/"
ICON, ICON_PATH = "icon.svg", "/favicon.ico"  # for which a browser asks beside anything that is no page of ours
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
DIGEST_CHARACTERS = 12
FOREVER = "public, max-age=31536000, immutable"
COMPRESSION_LEVEL = 9


@dataclass(frozen=True, slots=True)
class Asset:
    """A file.  compressed: the same by gzip."""

    name: str
    digest: str
    content_type: str
    body: bytes
    compressed: bytes

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.digest}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """Return name → file."""
    found = {}
    for name, file in sorted(_files(FOLDER)):
        if kind := TYPES.get(PurePosixPath(name).suffix):
            body = file.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:DIGEST_CHARACTERS]
            compressed = gzip.compress(body, COMPRESSION_LEVEL, mtime=0)
            found[name] = Asset(name, digest, kind, body, compressed)
    return found


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield path and file of all files below a folder."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}", each


def asset_path(name: str) -> str:
    """Return the path of a file, below where the pages are mounted.  Raises KeyError."""
    return assets()[name].path


def is_asset(path: str) -> bool:
    """Return whether a path is that of a file."""
    return path.startswith(PREFIX) or path == ICON_PATH


def answer(request: Request) -> Response:
    """Answer with a file.  Raises NotFound."""
    digest, _, name = request.path.removeprefix(PREFIX).partition("/")
    if request.path == ICON_PATH:
        name = ICON
    asset = assets().get(name)
    if asset is None:
        raise NotFound
    response = Response(asset.body, content_type=asset.content_type)
    if request.accept_encodings.quality("gzip") > 0:
        response.data, response.headers["Content-Encoding"] = asset.compressed, "gzip"
    response.headers["Vary"] = "Accept-Encoding"
    # A page of another release may ask for its own file while releases change: it gets ours, and keeps it not.
    response.headers["Cache-Control"] = FOREVER if digest == asset.digest else "no-cache"
    return response
