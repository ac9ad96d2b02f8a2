"""The application: found by -r, imported once per process that needs it.

`pkg.mod` imports a module, `path/to/jobs.py` a file, `pkg.mod:factory` imports a module and calls a function of
it.  The working directory is on sys.path, as for `python -m`.  Runs in workers and in the catalogue child only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from kiqcluster.errors import ApplicationError
from kiqcluster.registry import current_registry

__all__ = ["describe", "load"]


def load(requirements: Sequence[str], directory: Path) -> None:
    """Import the application.

    Raises ApplicationError with the traceback of what failed, from the application's own frames on.
    """
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    for requirement in requirements:
        try:
            _load(requirement, directory)
        except ApplicationError:
            raise
        except (Exception, SystemExit) as error:
            raise ApplicationError(f"-r {requirement} failed to load:\n{_own_traceback(error)}") from error


def describe() -> list[dict[str, str]]:
    """Return name and queue of every job that the application has registered."""
    return [{"name": definition.name, "queue": definition.queue} for definition in current_registry()]


def _load(requirement: str, directory: Path) -> None:
    if requirement.endswith(".py") or "/" in requirement:
        _load_file(directory / requirement)
        return
    module_name, colon, factory = requirement.partition(":")
    module = importlib.import_module(module_name)
    if colon:
        target = getattr(module, factory, None)
        if not callable(target):
            raise ApplicationError(
                f"-r {requirement}: {module_name} has no function {factory!r}; name one that sets the jobs up"
            )
        target()


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise ApplicationError(
            f"-r {path}: there is no such file; name a module (pkg.jobs) or a Python file (pkg/jobs.py)"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ApplicationError(f"-r {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


def _own_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of importlib and of this file."""
    summary = traceback.TracebackException.from_exception(error)
    summary.stack = traceback.StackSummary.from_list(
        [frame for frame in summary.stack if "importlib" not in frame.filename and frame.filename != __file__]
    )
    return "".join(summary.format()).rstrip()
