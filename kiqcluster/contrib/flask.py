"""Flask: jobs run in the application's context, and those that a request enqueues name it; `flask kiqcluster`.

Runs in: processor threads and the event loop (jobs), request threads, the process of the command `flask`.
1. KiqCluster.init_app   reads KIQCLUSTER_… of app.config; adds the middleware, the request's context and the commands
2. InAppContext          server middleware: an application context around each run, so that its teardown functions run
3. commands              `flask kiqcluster` and `flask kiqctl` replace their process by the command

Never: imported by the rest of the package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from kiqcluster.contrib.run_errors import SuppressErrors
from kiqcluster.errors import UsageError
from kiqcluster.process.boundary.calls import handled_error
from kiqcluster.process.config import Config
from kiqcluster.process.context.application_context import application_context
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.outcome import Outcome

try:
    import click
    from flask import Flask, current_app, request
    from flask.cli import ScriptInfo, prepare_import
except ImportError as error:
    raise ImportError(
        "kiqcluster.contrib.flask needs Flask, which is not installed: pip install 'kiqcluster[flask]'"
    ) from error

__all__ = ["InAppContext", "KiqCluster", "requirement"]

SUPPRESS = SuppressErrors("flask")  # a teardown function that fails is not a failure of a job
PREFIX = "KIQCLUSTER_"  # of settings in app.config
REQUEST_ID = "X-Request-ID"  # the header that names a request
OPEN_CONTEXT = "kiqcluster.context"  # key of a request's environ
FACTORIES = ("create_app", "make_app")  # that Flask calls if a module has no application
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


class KiqCluster:
    """The extension: `KiqCluster(app)`, or `init_app` in a factory.

    request_context: whether the jobs that a request enqueues have its id (header X-Request-ID) and its endpoint.
    """

    def __init__(self, app: Flask | None = None, *, request_context: bool = True) -> None:
        self._request_context = request_context
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Have all jobs of this process run in a context of this application; a later one takes its place.

        Raises UsageError for a setting KIQCLUSTER_… that does not exist or cannot work.
        """
        setup = current_setup()
        settings: dict[str, Any] = app.config.get_namespace(PREFIX)
        setup.configure(**settings)
        for middleware in [each for each in setup.server_middleware if isinstance(each, InAppContext)]:
            setup.server_middleware.remove(middleware)
        setup.server_middleware.prepend(InAppContext(app))
        if app.extensions.get("kiqcluster") is None:
            if self._request_context:
                app.before_request(_enter_request)
                app.teardown_request(_leave_request)
            app.cli.add_command(_kiqcluster)
            app.cli.add_command(_kiqctl)
        app.extensions["kiqcluster"] = self


class InAppContext:
    """Server middleware: each run has an application context of its own, which ends with it.

    Where another application with this extension is the current one, as in a test, the run is in a context of that one.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:  # noqa: ARG002
        with self._context():
            return proceed()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:  # noqa: ARG002
        """Do the same around an async job."""
        with self._context():
            return await proceed()

    @contextmanager
    def _context(self) -> Iterator[None]:
        app = self._app
        if current_app and "kiqcluster" in current_app.extensions:
            app = current_app._get_current_object()  # type: ignore[attr-defined]
        context = app.app_context()
        context.push()
        try:
            yield
        except BaseException:
            with SUPPRESS:
                context.pop(handled_error())
            raise
        with SUPPRESS:
            context.pop(None)


# The context of requests


def _enter_request() -> None:
    """Name the request to the jobs that it enqueues: `GET orders.show`, not the path, of which there may be many."""
    caller = f"{request.method} {request.endpoint or request.path}"
    context = application_context(correlation_id=request.headers.get(REQUEST_ID), caller_id=caller)
    context.__enter__()
    request.environ[OPEN_CONTEXT] = context


def _leave_request(_error: BaseException | None) -> None:
    context = request.environ.pop(OPEN_CONTEXT, None)
    try:
        if context is not None:
            context.__exit__(None, None, None)
    except ValueError:  # the end of a streamed answer in another context, in which it never was
        return


# Commands


@click.command("kiqcluster", context_settings=PASSED_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _kiqcluster(info: ScriptInfo, arguments: tuple[str, ...]) -> None:
    """Run worker processes for this application's jobs; takes the arguments of kiqcluster."""
    names_application = any(re.match(r"-r|--require(=|$)", word) for word in arguments)
    try:
        words = [] if names_application else _words_of(info)
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    _become(info.load_app(), ["-m", "kiqcluster", *words, *arguments])


@click.command("kiqctl", context_settings=PASSED_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _kiqctl(info: ScriptInfo, arguments: tuple[str, ...]) -> None:
    """Inspect and steer jobs and worker processes; takes the arguments of kiqctl."""
    _become(info.load_app(), ["-m", "kiqcluster.ctl", *arguments])


def _words_of(info: ScriptInfo) -> list[str]:
    """Return what names the application, and have workers find its module where Flask has.  Raises UsageError."""
    if info.create_app is not None and info.app_import_path is None:
        raise UsageError(
            "this command makes its application by a function; name that function, or its module: -r MODULE:FUNCTION"
        )
    required = requirement(info.app_import_path)
    folder = _folder_to_add(re.split(r"[.:]", required)[0], Path(sys.path[0]), Config().known_directory())
    if folder is not None:
        paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return ["-r", required]


def _folder_to_add(module: str, folder: Path, here: Path) -> Path | None:
    """Return the folder that workers must search for a module, None for the working directory, which they search first.

    folder: in which Flask has found the module, without links.  here: the working directory, perhaps through a link
    such as `current`; a folder below it is returned through that link too.
    Raises UsageError if the working directory has another module of this name.
    """
    real = here.resolve()
    if folder == real:
        return None
    other = PathFinder.find_spec(module, [str(here)])
    if other is not None and other.origin is not None:  # None: a folder without __init__.py, which comes last
        raise UsageError(
            f"workers would import {module} of the working directory ({other.origin}), not that of {folder}: start the "
            f"command in {folder}, or name another module: -r MODULE:FUNCTION"
        )
    return here / folder.relative_to(real) if folder.is_relative_to(real) else folder


def requirement(app_import_path: str | None) -> str:
    """Return what `-r` takes for an application that Flask has found and imported: a module, or `module:factory`.

    app_import_path: of `flask --app`, None where Flask has looked for wsgi.py and app.py.
    The folder of the module is the first of sys.path afterwards.  Raises UsageError for a factory with arguments.
    """
    path, *names = re.split(r":(?![\\/])", app_import_path or _default_path(), maxsplit=1)
    module, name = prepare_import(path), "".join(names).strip().removesuffix("()")
    if "(" in name:
        raise UsageError(
            f"{app_import_path} calls a factory with arguments, and -r calls one without: write a function that needs "
            f"none, and name it: -r {module}:FUNCTION"
        )
    found = vars(sys.modules[module]) if module in sys.modules else {}
    if not name and not any(_is_application(value) for value in found.values()):
        name = next((each for each in FACTORIES if callable(found.get(each))), "")
    return f"{module}:{name}" if name and not _is_application(found.get(name)) else module


def _default_path() -> str:
    return "wsgi" if prepare_import("wsgi") in sys.modules else "app"


def _is_application(value: object) -> bool:
    """Return whether a module's value is one; its `current_app` only passes itself off as one."""
    return issubclass(type(value), Flask)


def _become(app: Flask, words: Sequence[str]) -> None:
    """Replace this process: it has imported the application, which a supervisor never does."""
    redis = app.config.get(f"{PREFIX}REDIS")
    if redis is not None:
        os.environ.setdefault("REDIS_URL", redis)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606
