"""The application: found by -r, imported once per process that needs it.

`pkg.mod` imports a module, `path/to/jobs.py` a file, `pkg.mod:factory` imports a module and calls a function of
it.  The working directory is on sys.path, as for `python -m`.  Runs in workers and in the catalogue child only.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kiqcluster.application.argument_types import check_types
from kiqcluster.application.registry import current_registry
from kiqcluster.errors import ApplicationError, JobDefinitionError
from kiqcluster.ipc.forks import exit_forked_children

__all__ = ["describe", "load"]

# Libraries with green threads → a module, its function that tells whether it has patched one of Python's, and which.
GREEN_THREADS = {
    "gevent": ("gevent.monkey", "is_module_patched", "_thread"),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", "thread"),
}


def load(requirements: Sequence[str], directory: Path, logical: Path | None = None) -> None:
    """Import the application.

    logical: the path of the directory through a symbolic link, if there is one.  Entries of sys.path below it are
    replaced by those of the directory, because the link may point elsewhere by now: a virtual environment often lies in
    the release.
    Raises ApplicationError: its first line says what failed; the traceback follows, from the application's own frames.
    """
    if logical is not None and logical != directory:
        sys.path[:] = [_without_link(entry, logical, directory) for entry in sys.path]
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    for requirement in requirements:
        try:
            with exit_forked_children():
                _load(_without_link(requirement, logical or directory, directory), directory)
        except ApplicationError:
            raise
        except (Exception, SystemExit) as error:
            searched = f"\nThe working directory, where it looks first, is {directory}."
            hint = searched if isinstance(error, ModuleNotFoundError) else ""
            gist = traceback.format_exception_only(error)[-1].partition("\n")[0]
            raise ApplicationError(f"-r {requirement} failed to load: {gist}\n{_own_traceback(error)}{hint}") from error
    _refuse_green_threads()
    try:
        check_types(current_registry())
    except JobDefinitionError as error:
        raise ApplicationError(f"-r {' -r '.join(requirements)}: {error}") from error


def _refuse_green_threads() -> None:
    """Raise ApplicationError when a library has replaced Python's threads by its own.

    A library says so itself: debuggers and profilers replace the function that starts a thread, which stays a real one.
    """
    libraries = [name for name, question in GREEN_THREADS.items() if _has_patched(*question)]
    if libraries:
        raise ApplicationError(
            f"{libraries[0]} has replaced Python's threads (monkey patching); kiqcluster runs jobs in real ones, and "
            "would run none. Leave the patching out of what -r imports, and keep it where the web server starts"
        )


def _has_patched(module: str, function: str, patched: str) -> bool:
    """Return whether a library says that it has patched Python's threads; one that is not imported has not."""
    return module in sys.modules and bool(getattr(sys.modules[module], function)(patched))


def describe(requirements: Sequence[str]) -> list[dict[str, Any]]:
    """Return what every job that the application has registered says of itself, for `selectors.described`.

    Raises ApplicationError when there is none: probably -r names the wrong modules.
    """
    jobs = [
        {
            "name": definition.name,
            "queue": definition.queue,
            "attributes": definition.attributes,
            "declares_queue": definition.declares_queue,
        }
        for definition in current_registry()
    ]
    if not jobs:
        folders = [name for name in requirements if getattr(sys.modules.get(name), "__file__", "") is None]
        hint = f" ({folders[0]} is a folder without __init__.py: name a module in it)" if folders else ""
        raise ApplicationError(f"-r {' -r '.join(requirements)} registered no job; is that the right module?{hint}")
    return jobs


def _without_link(path: str, logical: Path, directory: Path) -> str:
    """Return a path below `logical` as a path below the directory, if that exists; any other path unchanged."""
    if not Path(path).is_relative_to(logical):
        return path
    there = directory / Path(path).relative_to(logical)
    return str(there) if there.exists() else path


def _load(requirement: str, directory: Path) -> None:
    if requirement.endswith(".py") or "/" in requirement:
        _load_file(directory / requirement, directory)
        return
    module_name, colon, factory = requirement.partition(":")
    module = importlib.import_module(module_name)
    if colon:
        _call(requirement, getattr(module, factory, None))


def _call(requirement: str, factory: object) -> None:
    if not callable(factory):
        raise ApplicationError(f"-r {requirement}: there is no such function; name one that sets the jobs up")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ApplicationError(f"-r {requirement}: {error}; the function is called without any arguments") from error
    except ValueError:  # its signature is not known
        pass
    factory()


def _load_file(path: Path, directory: Path) -> None:
    """Import a file under the name that the application's imports use, so that it is not imported as two modules."""
    if not path.is_file():
        raise ApplicationError(
            f"-r {path}: there is no such file; name a module (pkg.jobs) or a Python file (pkg/jobs.py)"
        )
    name = _name_in(path, directory)
    first = (name or path.stem).partition(".")[0]
    if first in sys.stdlib_module_names:
        raise ApplicationError(f"-r {path}: {first} is a module of Python's own; give yours another name")
    try:
        module = importlib.import_module(name) if name else _import_from(path)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the file, or its package, imports another module that is missing
        module = _import_from(path)  # another package with the folder's name hides the folder
    found = module.__file__
    if found is None or Path(found).resolve() != path.resolve():
        place = found or "built in"
        raise ApplicationError(f"-r {path}: the module {module.__name__} is another one ({place}); rename yours")


def _name_in(path: Path, directory: Path) -> str | None:
    """Return the name by which modules of the working directory import the file; None if they cannot."""
    if not path.is_relative_to(directory):
        return None
    parts = path.relative_to(directory).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    importable = path.suffix == ".py" and parts and all(part.isidentifier() for part in parts)
    return ".".join(parts) if importable else None


def _import_from(path: Path) -> ModuleType:
    """Import a file that is not on sys.path; a module of that name that is already imported is returned unchanged."""
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ApplicationError(f"-r {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _own_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of importlib and of this file."""
    summary = traceback.TracebackException.from_exception(error)
    summary.stack = traceback.StackSummary.from_list(
        [frame for frame in summary.stack if "importlib" not in frame.filename and frame.filename != __file__]
    )
    return "".join(summary.format()).rstrip()
