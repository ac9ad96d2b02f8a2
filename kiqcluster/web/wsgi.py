"""WSGI: `application` for any WSGI server, as in `gunicorn kiqcluster.web.wsgi:application`; from the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from kiqcluster.web.app import StartResponse, WebApp, create_app

__all__ = ["application"]


@cache
def _app() -> WebApp:
    return create_app()


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request; the first one reads the configuration."""
    return _app()(environ, start_response)
