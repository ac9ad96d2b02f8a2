"""Site hooks: agents that Python starts before any program, and a supervisor that may have no thread.

`opentelemetry-instrument`, `ddtrace-run`, `newrelic-admin run-program` and their kind put a folder with a
`sitecustomize` in front of PYTHONPATH.  Python imports it first of all, and it starts threads.  A fork copies their
locks, but not the threads that would release them.
1. put_off          the first step of the command: if there are threads, the process becomes the same program again (the
                    same pid, arguments and environment), in which Python finds an empty `sitecustomize` (no_hooks)
2. run_put_off      in each process that imports the application: what was put off, so agents live in workers only
3. foreign_threads  those that are there all the same, in words

A launcher that runs the command within its own process (a debugger, coverage) is not started twice: it may hold a port
or a file.  A debugger takes care of its threads in forked processes by itself.
"""

from __future__ import annotations

import os
import site
import sys
import threading
from pathlib import Path
from traceback import walk_stack
from types import ModuleType

from kiqcluster.ipc.operating_system import count_threads
from kiqcluster.ipc.stdio import flush_output
from kiqcluster.ipc.thread_frames import frames_by_thread

__all__ = ["foreign_threads", "put_off", "run_put_off"]

EMPTY = str(Path(__file__).parent / "no_hooks")
MARK = "KIQ_SITE_HOOKS_PUT_OFF"  # in the environment of the second start: "=" and the PYTHONPATH of the first
HOOKS = ("sitecustomize", "usercustomize")
DEBUGGER = "pydevd"  # of VS Code (debugpy) and of PyCharm


class SiteHooks:
    """are_put_off: whether Python's site hooks have not run in this process."""

    are_put_off = False


def put_off() -> None:
    """Start the process again without site hooks, if threads run by now; in the second start, remember that."""
    if MARK in os.environ:
        _remember(os.environ.pop(MARK))
    elif (foreign_threads() or count_threads() > 1) and _can_start_again():
        _start_again()


def run_put_off() -> None:
    """Run the site hooks that were put off, as Python does at its start."""
    if SiteHooks.are_put_off:
        SiteHooks.are_put_off = False
        ours = dict(sys.modules)
        site.execsitecustomize()
        if site.ENABLE_USER_SITE:
            site.execusercustomize()
        _put_back(ours)


def _put_back(ours: dict[str, ModuleType]) -> None:
    """Make these the modules that an import finds, so that the application shares them with this program.

    ddtrace takes modules out of `sys.modules`, to have copies of its own. At Python's start nobody has them yet.
    """
    for name, module in ours.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module
            package, _, last = name.rpartition(".")
            if package:
                setattr(ours[package], last, module)


def foreign_threads() -> list[str]:
    """Return each Python thread beside the main one, by its name and by what it runs; none of a debugger."""
    if DEBUGGER in sys.modules:
        return []
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return [
        f"{thread.name} ({_entry(thread.ident or 0, getattr(thread, '_target', None) or thread.run)})"
        for thread in others
    ]


def _entry(ident: int, target: object) -> str:
    """Return the function at the bottom of a thread's stack; target: what it was made with, if that is not Python's."""
    for frame, _ in reversed(list(walk_stack(frames_by_thread().get(ident)))):
        if frame.f_globals.get("__name__") != "threading":
            return f"{frame.f_code.co_qualname} in {frame.f_code.co_filename}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _can_start_again() -> bool:
    """Return whether Python itself runs our program, not a launcher in this process, and heeds PYTHONPATH."""
    names = [frame.f_globals.get("__name__") for frame, _ in walk_stack(sys._getframe())]
    callers = [name for name in names if name not in (__name__, "runpy")]
    is_direct = callers[1:] == ["__main__"]  # `main`, called by the script, or by `python -m`
    return is_direct and bool(sys.executable) and not sys.flags.ignore_environment and not hasattr(sys, "frozen")


def _start_again() -> None:
    """Become the same program; return only if the system refuses that."""
    python_path = os.environ.get("PYTHONPATH")
    listed = [entry for entry in (python_path or "").split(os.pathsep) if entry]
    # Hooks take their folder from the one or from the other.
    entries = [EMPTY, *(entry for entry in listed if entry not in sys.path), *filter(None, sys.path)]
    mark = "" if python_path is None else f"={python_path}"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entries), MARK: mark}
    flush_output()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  # this program, by its own words
    except OSError:
        return  # the supervisor names the threads


def _remember(mark: str) -> None:
    if mark:
        os.environ["PYTHONPATH"] = mark[1:]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = dict.fromkeys(entry for entry in sys.path if entry != EMPTY)
    for name in HOOKS:
        sys.modules.pop(name, None)
    SiteHooks.are_put_off = True
