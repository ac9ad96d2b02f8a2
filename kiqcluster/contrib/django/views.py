"""Views: the web pages (kiqcluster.web) inside of Django, for users of its session.

| user                                     | role    |
|------------------------------------------|---------|
| staff                                    | view    |
| with the permission kiqcluster.operate   | operate |
| with kiqcluster.admin, superusers        | admin   |

Who is not signed in is led to the login of the admin, or to LOGIN_URL; who is no staff gets 403.  The pages have tokens
of their own in their forms, and check the origin: Django's check of its token is left out.
"""

from __future__ import annotations

import importlib
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from kiqcluster.contrib.django.loading import autodiscover

__all__ = ["pages"]

WEB = "kiqcluster.web"  # loaded by its name: it needs an extra, and is of the same layer
USER = "kiqcluster.django.user"  # key of the environ
LOGIN = "admin:login"
ROLES = (("kiqcluster.admin", "ADMIN"), ("kiqcluster.operate", "OPERATE"))


@csrf_exempt
def pages(request: HttpRequest, path: str = "") -> HttpResponse:
    """Show one of the pages.  path: behind the place of the mount."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return HttpResponseRedirect(f"{_login_url()}?{urlencode({'next': request.get_full_path()})}")
    if not (user.is_active and user.is_staff):
        raise PermissionDenied
    return _response(_application(), _environ(request, path, user))


def role_of(user: Any) -> str:
    """Return the name of the role of a member of the staff."""
    return next((role for permission, role in ROLES if user.has_perm(permission)), "VIEW")


@cache
def _application() -> Any:
    """Return the WSGI application; it knows the classes of this project."""
    try:
        web = importlib.import_module(WEB)
    except ImportError as error:
        raise ImportError("kiqcluster's web pages need an extra: pip install 'kiqcluster[web]'") from error
    autodiscover()

    def authorize(asked: Any) -> Any:
        user = asked.environ[USER]
        return web.User(user.get_username(), web.Role[role_of(user)])

    return web.create_app(authorize)


def _login_url() -> str:
    try:
        return str(reverse(LOGIN))
    except NoReverseMatch:  # the admin is not mounted
        return str(resolve_url(settings.LOGIN_URL))


def _environ(request: HttpRequest, path: str, user: Any) -> dict[str, Any]:
    """Return the environ of the pages, from a request that came by WSGI or ASGI."""
    mount = request.path.removesuffix(path) if path else request.path
    is_bare = not path and not mount.endswith("/")  # the address of the mount without a slash
    return {
        **request.META,
        "HTTP_HOST": request.get_host(),
        "SCRIPT_NAME": _as_wsgi(mount.rstrip("/")),
        "PATH_INFO": "" if is_bare else _as_wsgi(f"/{path.removeprefix('/')}"),
        "REQUEST_METHOD": request.method,
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": BytesIO(request.body),
        USER: user,
    }


def _as_wsgi(text: str) -> str:
    return text.encode().decode("latin-1")


def _response(application: Any, environ: dict[str, Any]) -> HttpResponse:
    """Return what a WSGI application answers, as Django's response."""
    begun: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _error: object = None) -> Any:
        begun[:] = [(status, headers)]
        return None

    answer = application(environ, start_response)
    try:
        body = b"".join(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()
    status, headers = begun[0]
    response = HttpResponse(body, status=int(status.split(" ", 1)[0]))
    for name, value in headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = value
    return response
