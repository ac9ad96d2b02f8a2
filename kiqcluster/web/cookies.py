"""Cookies: what a browser keeps for the pages; scripts read none of it, and no other site sends it.

token      the secret of the double submit
message    what an action has done, for the next page
language, theme   what somebody has chosen
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from dataclasses import dataclass

from werkzeug.wrappers import Request, Response

__all__ = [
    "LANGUAGE",
    "THEME",
    "THEMES",
    "YEAR_SECONDS",
    "Message",
    "forget",
    "keep",
    "keep_token",
    "read_message",
    "read_token",
    "write_message",
]

TOKEN, MESSAGE, LANGUAGE, THEME = "kiqweb_token", "kiqweb_message", "kiqweb_language", "kiqweb_theme"
TOKEN_FORM = re.compile(r"[A-Za-z0-9_-]{43}")
TOKEN_BYTES = 32
MAX_MESSAGE_CHARACTERS = 500
MESSAGE_SECONDS = 60
YEAR_SECONDS = 365 * 86_400
THEMES = ("auto", "light", "dark")


@dataclass(frozen=True, slots=True)
class Message:
    """What an action has done.  kind: done or failed."""

    text: str
    kind: str = "done"


def read_token(request: Request) -> tuple[str, bool]:
    """Return the secret of a browser, and whether it is new."""
    known = request.cookies.get(TOKEN, "")
    return (known, False) if TOKEN_FORM.fullmatch(known) else (secrets.token_urlsafe(TOKEN_BYTES), True)


def keep(request: Request, response: Response, name: str, value: str, seconds: int | None = None) -> None:
    """Have the browser keep a value; None: until it is closed."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=request.script_root or "/",
        secure=request.is_secure,
        httponly=True,
        samesite="Strict",
    )


def keep_token(request: Request, response: Response, token: str) -> None:
    """Have the browser keep its secret."""
    keep(request, response, TOKEN, token)


def write_message(request: Request, response: Response, message: Message) -> None:
    """Have the next page show a message."""
    document = json.dumps([message.kind, message.text[:MAX_MESSAGE_CHARACTERS]])
    keep(request, response, MESSAGE, base64.urlsafe_b64encode(document.encode()).decode(), MESSAGE_SECONDS)


def read_message(request: Request) -> Message | None:
    """Return the message of the action before, None where there is none."""
    raw = request.cookies.get(MESSAGE)
    if not raw:
        return None
    try:
        kind, text = json.loads(base64.urlsafe_b64decode(raw.encode("ascii")))
    except (ValueError, TypeError, RecursionError):  # anybody may have written it
        return None
    return Message(text, "failed" if kind == "failed" else "done") if isinstance(text, str) else None


def forget(request: Request, response: Response) -> None:
    """Have the browser forget the message."""
    response.delete_cookie(MESSAGE, path=request.script_root or "/", httponly=True, samesite="Strict")
