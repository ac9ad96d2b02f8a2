"""Releases of an application side by side, and the link `current` to one of them, as Capistrano lays them out."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from tests.kit import Cluster
from tests.stage import Stage

HEAD = """
import os, pathlib, threading, time
from kiqcluster import job, on
from tests.apps.basic import nap, note, record, stubborn

@job()
def release():
    note("release", {name!r})

@job()
def where():
    note("slot", os.environ["KIQ_SLOT"], "pid", os.getpid())
"""


class Releases:
    """Each release is a module `shop`; its job `release` notes the release that runs it."""

    def __init__(self, folder: Path) -> None:
        self.current = folder / "current"
        self._folder = folder / "releases"

    def deploy(self, name: str, source: str = "") -> None:
        """Write a release and move the link to it."""
        release = self._folder / name
        release.mkdir(parents=True, exist_ok=True)
        (release / "shop.py").write_text(f"{HEAD.format(name=name)}\n{dedent(source)}")
        link = self._folder / "next"
        link.symlink_to(release)
        link.rename(self.current)

    def path(self, name: str) -> str:
        return str((self._folder / name).resolve())

    def run(self, stage: Stage, *arguments: str, **environ: str) -> Cluster:
        """Start a cluster on the release that `current` leads to."""
        return stage.run_cluster(*arguments, "--directory", str(self.current), app="shop", **environ)
