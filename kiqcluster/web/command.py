"""Command: serves the pages alone, by waitress.  `kiqctl web` (ctl/fleet/web.py) loads this module by its name."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from waitress.server import create_server

from kiqcluster.errors import UsageError
from kiqcluster.process.config import listen_error, parse_listen
from kiqcluster.process.logs import log
from kiqcluster.store import Store
from kiqcluster.web.app import MAX_REQUEST_BYTES, create_app
from kiqcluster.web.settings import read_root_path, read_settings
from kiqcluster.web.users import is_loopback

__all__ = ["serve"]

THREADS = 8  # that answer requests, each one at a time
CONNECTION_SECONDS = 60  # that an idle connection is kept
MAX_CONNECTIONS = 1_000  # each open tab keeps one, since it asks again every two seconds


def serve(
    store: Store, listen: str, table: object, *, read_only: bool, root_path: str, ready: Callable[[str], object]
) -> None:
    """Serve the pages until SIGINT or SIGTERM.

    table: [web] of the configuration.  root_path: "" for that of the configuration.  ready: told where, once it
    listens.  Raises UsageError.
    """
    settings = read_settings(table if isinstance(table, dict) else None)
    if read_only:
        settings = replace(settings, read_only=True)
    if root_path:
        settings = replace(settings, root_path=read_root_path(root_path))
    place = parse_listen(listen)
    if not isinstance(place, tuple):
        raise UsageError(f"--listen {listen}: the pages are served at HOST:PORT")
    host, port = place
    app = create_app(store=store, settings=settings)
    if app.gate.is_open and not is_loopback(host):
        raise UsageError(
            f"--listen {listen} lets other hosts in, and nothing says who may: add users or tokens to [web] in the "
            "configuration, or listen at 127.0.0.1"
        )
    log.configure("auto", "info")
    try:
        server = create_server(
            app,
            host=host,
            port=port,
            threads=THREADS,
            channel_timeout=CONNECTION_SECONDS,
            connection_limit=MAX_CONNECTIONS,
            asyncore_use_poll=True,  # `select` ends at 1024 descriptors
            max_request_body_size=MAX_REQUEST_BYTES,  # waitress reads the whole body before it asks the application
            clear_untrusted_proxy_headers=False,  # without them, a request through a proxy looks like one of this host
            ident=None,
        )
    except OSError as error:
        raise listen_error(listen, error) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # while it serves, waitress takes care of that
        ready(f"http://{listen}{settings.root_path}/")
        server.run()
