"""PyInstaller: what a program that is frozen needs of us beside modules.  PyInstaller finds the hook by itself.

hook-kiqcluster  a hook of PyInstaller, which runs it while it analyses a program that imports kiqcluster
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Return the folder of the hook, for the entry point `pyinstaller40`."""
    return [str(Path(__file__).parent)]
