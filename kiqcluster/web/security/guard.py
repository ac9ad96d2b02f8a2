"""Guard: what keeps requests of other sites out, and what every answer says to the browser.

1. check_host     a name that an attacker has pointed at this host (DNS rebinding)
2. check_origin   a change asked for by another site
3. Token          double submit: a cookie that scripts cannot read, and in each form a token made from it
4. harden         headers: no script, style or frame but ours; nothing is stored
5. SharedSecret   what all processes of these pages know and no browser does; keys of jobs are made with it (entry_keys)
"""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
from collections.abc import Collection, Sequence
from urllib.parse import SplitResult, urlsplit

from werkzeug.exceptions import BadRequest, Forbidden
from werkzeug.wrappers import Request, Response

from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.store.replies import readable
from kiqcluster.store.wire import Command, ErrorReply, Reply, WrongType
from kiqcluster.web.i18n import message
from kiqcluster.web.users import is_loopback

__all__ = [
    "TOKEN_FIELD",
    "TOKEN_HEADER",
    "SharedSecret",
    "check_change",
    "check_host",
    "harden",
    "make_token",
]

TOKEN_FIELD, TOKEN_HEADER = "csrf_token", "X-CSRF-Token"  # names
OPEN_PAGES = message(
    "Without users, tokens or authorize, these pages answer to localhost and 127.0.0.1 only; set users first."
)
SALT_BYTES = 16
SECRET_BYTES = 32
SECRET_SECONDS = 60.0  # after which it is read again: somebody may have emptied Redis
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would come with the origin `null`
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def check_host(request: Request, hosts: Collection[str], *, is_open: bool) -> None:
    """Raise BadRequest for a Host that is not ours.

    hosts: names from the settings, with or without a port.  is_open: whether nothing says who may come in; then only
    loopback names of this host are right, whatever `hosts` says, and Forbidden is raised for the names in it: a proxy
    that adds no header and speaks HTTP/1.1 would make everybody an administrator.
    """
    host = request.host
    name = _split(f"//{host}").hostname or ""
    is_listed = host in hosts or name in hosts
    if is_open and not (is_loopback(name) and request.headers.get("Host")):  # without one, werkzeug says localhost
        raise (Forbidden if is_listed else BadRequest)(OPEN_PAGES)
    if hosts and not is_open and not is_listed:
        raise BadRequest(message("This host name is not one of these pages; add it to `hosts`, if it should be."))


def check_change(request: Request, hosts: Collection[str], cookie: str, user: str) -> None:
    """Raise Forbidden for a change that no page of ours has asked for.

    hosts: names that an origin may have besides that of the request; none where the pages are open.  cookie: the secret
    that the browser keeps.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    origin = _split(request.headers.get("Origin", ""))
    is_ours = origin.scheme in ("http", "https") and (origin.netloc == request.host or origin.netloc in hosts)
    if site != "same-origin" or not is_ours:
        raise Forbidden(message("This request comes from another site; nothing was changed."))
    token = request.form.get(TOKEN_FIELD) or request.headers.get(TOKEN_HEADER, "")
    if not cookie or not _is_token(token, cookie, user):
        raise Forbidden(message("This form is out of date; nothing was changed. Load the page again, and repeat it."))


def _split(address: str) -> SplitResult:
    """Return the parts of an address; of one that is none, empty ones."""
    try:
        return urlsplit(address)
    except ValueError:  # a bracket that is never closed, say
        return urlsplit("")


def make_token(cookie: str, user: str) -> str:
    """Return a token for the forms of a page; another text for each, so that compressed ones do not tell it."""
    salt = secrets.token_bytes(SALT_BYTES)
    return base64.urlsafe_b64encode(salt + _digest(salt, cookie, user)).decode()


def _is_token(token: str, cookie: str, user: str) -> bool:
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii"))
    except ValueError:  # also of Unicode, and of base64
        return False
    salt, digest = raw[:SALT_BYTES], raw[SALT_BYTES:]
    return hmac.compare_digest(digest, _digest(salt, cookie, user))


def _digest(salt: bytes, cookie: str, user: str) -> bytes:
    return hmac.digest(cookie.encode(), salt + user.encode(errors="replace"), "sha256")


def harden(response: Response) -> Response:
    """Add the headers that every answer has."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")
    return response


class SharedSecret:
    """A secret that all processes of these pages have, also after restarts.

    That of the settings; else random bytes in Redis, which the first process writes.  Where Redis takes no writes, and
    has none, one of this process.  Thread-safe: `_lock` guards what is known.
    """

    def __init__(self, configured: str, clock: Clock) -> None:
        self._configured = configured.encode()
        self._clock = clock
        self._lock = threading.Lock()
        self._own = secrets.token_hex(SECRET_BYTES).encode()
        self._known = ("", 0.0, b"")  # which Redis, until when (monotonic), its secret

    def of(self, store: Store) -> bytes:
        """Return it.  One round trip a minute, none with a configured one.  Raises StoreError."""
        return self._configured or self._fresh(store) or self._read(store, ())[0]

    def along(self, store: Store, commands: Sequence[Command]) -> list[Reply | WrongType]:
        """Do what Store.read_each does; learn the secret in the same round trip if it is due.  Raises StoreError."""
        if self._configured or self._fresh(store):
            return store.read_each(commands)
        return self._read(store, commands)[1]

    def _fresh(self, store: Store) -> bytes:
        """Return the secret that is known, b"" where it has to be read."""
        with self._lock:
            place, until, secret = self._known
        return secret if place == _place(store) and self._clock.monotonic() < until else b""

    def _read(self, store: Store, commands: Sequence[Command]) -> tuple[bytes, list[Reply | WrongType]]:
        """Read the secret, and write one where there is none; return it, and the replies to other commands."""
        with self._lock:
            place, _, secret = self._known
        own, key = secret if place == _place(store) else self._own, store.keys.web_secret
        with store.borrowed() as connection:
            *answers, written, kept = connection.exchange_each([*commands, ("SET", key, own, "NX"), ("GET", key)])
        *replies, found = readable([*commands, ("GET", key)], [*answers, kept])
        if found is None and isinstance(written, ErrorReply) and written.code != "OOM":  # a full Redis is no reason
            raise ErrorReply(f"{written}; so these pages cannot share the secret of their forms: set [web] secret")
        secret = found if isinstance(found, bytes) and found else own
        with self._lock:
            self._known = (_place(store), self._clock.monotonic() + SECRET_SECONDS, secret)
        return secret, replies


def _place(store: Store) -> str:
    return f"{store.address} {store.keys.web_secret}"
