"""Users: who asks, and what they may do.

1. authorize     the hook of the application in which the pages are mounted
2. credentials   of the settings: name and password (basic), or a token (bearer)
3. neither       requests from this very host, under its loopback names, which are an administrator's; nobody else's

Whoever may come in has a role: view < operate < admin.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, TooManyRequests, Unauthorized
from werkzeug.security import check_password_hash, generate_password_hash
from werkzeug.wrappers import Request

from kiqcluster.process.clock import Clock
from kiqcluster.web.i18n import message
from kiqcluster.web.rate_limit import RateLimit

__all__ = ["Authorize", "Credential", "Gate", "Role", "User", "is_loopback"]

CHALLENGE = WWWAuthenticate("basic", {"realm": "kiqcluster", "charset": "UTF-8"})
FORWARDED = re.compile(
    r"(x-)?forwarded(-.*)?|via|(.*-)?(client|real|remote|connecting)-(ip|addr)"
    r"|x-(original|rewrite|envoy|real|remote|proxyuser|amzn|arr|azure|cluster|client|appengine)-.*"
    r"|remote-user|cf-.*|fly-.*|fastly-.*",
    re.IGNORECASE,
)  # names of headers that proxies add
OLD_PROTOCOLS = (
    "HTTP/0.9",
    "HTTP/1.0",
)  # no browser's; nginx speaks to what is behind it so, unless it is told otherwise
MAX_KNOWN_PASSWORDS = 1_000  # that were checked lately: a hash takes some 50 ms on purpose
FAILURES, FAILURES_PER_SECOND = 10.0, 0.2  # wrong passwords of one name from one address
ADDRESS_FAILURES, ADDRESS_FAILURES_PER_SECOND = 100.0, 1.0  # of all names together: many people may share a proxy's
MAX_KEY_CHARACTERS = 100  # of a name, in a key of the limit


class Role(IntEnum):
    """What somebody may do; each includes those before it."""

    VIEW = 1
    OPERATE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class User:
    """Who asks.  name: as audit events say it."""

    name: str
    role: Role = Role.VIEW


Authorize = Callable[[Request], User | None]


@dataclass(frozen=True, slots=True)
class Credential:
    """secret_hash: of a password as werkzeug.security makes it; of a token its SHA-256, in hexadecimal."""

    name: str
    role: Role
    secret_hash: str

    @property
    def user(self) -> User:
        return User(self.name, self.role)


class Gate:
    """Says who asks.  Thread-safe: a dict is read and written in single steps.

    Wrong passwords are counted by name and address, so that one who guesses keeps no other name out; and by address
    with a larger limit, for one who guesses names as well.  A password that was right lately is not held up.
    Wrong tokens are not counted: a right one is never held up, so that would stop nobody, and an SSO proxy in front may
    send its own with each request.
    """

    def __init__(
        self, authorize: Authorize | None, users: Sequence[Credential], tokens: Sequence[Credential], clock: Clock
    ) -> None:
        self._authorize = authorize
        self._users = {each.name: each for each in users}
        self._tokens = tokens
        self._failures = RateLimit(clock, FAILURES, FAILURES_PER_SECOND)
        self._address_failures = RateLimit(clock, ADDRESS_FAILURES, ADDRESS_FAILURES_PER_SECOND)
        self._known: dict[bytes, User] = {}
        self._key = secrets.token_bytes(32)
        self._no_user = generate_password_hash(secrets.token_hex()) if users else ""

    @property
    def is_open(self) -> bool:
        """Whether nothing says who may come in, so that only this host may."""
        return self._authorize is None and not self._users and not self._tokens

    def user(self, request: Request) -> User:
        """Return who asks.

        Raises Unauthorized, Forbidden, TooManyRequests; TypeError for what authorize may not say.
        """
        if self._authorize is not None and (user := self._authorize(request)) is not None:
            return checked(user)
        if self.is_open:
            if not is_local(request):
                raise Forbidden(
                    message("These pages answer their own host only; users, tokens or authorize let others in.")
                )
            return User("local", Role.ADMIN)
        if not self._users and not self._tokens:
            raise Forbidden(message("You may not see these pages."))
        return self._by_credentials(request)

    def _by_credentials(self, request: Request) -> User:
        given = request.authorization
        if given is None:
            raise Unauthorized(message("A name and a password, or a token, are needed."), www_authenticate=CHALLENGE)
        user = None
        if given.type == "bearer":
            user = self._by_token(given.token or "")
        elif given.type == "basic":
            name, password = given.username or "", given.password or ""
            user = self._remembered(name, password) or self._by_password(name, password, request.remote_addr or "")
        if user is None:
            raise Unauthorized(message("These credentials are not valid."), www_authenticate=CHALLENGE)
        return user

    def _by_token(self, token: str) -> User | None:
        """Compare with every token, so that the time tells nothing."""
        given = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        found = [each.user for each in self._tokens if hmac.compare_digest(each.secret_hash.lower(), given)]
        return found[0] if found else None

    def _by_password(self, name: str, password: str, address: str) -> User | None:
        """Check a hash also where there is no such user, so that the time tells nothing.  Raises TooManyRequests."""
        buckets = (
            (self._failures, f"{address}|{name[:MAX_KEY_CHARACTERS]}"),
            (self._address_failures, address),
        )
        _hold_up(max(limit.wait(key) for limit, key in buckets))
        credential = self._users.get(name)
        is_right = check_password_hash(self._no_user if credential is None else credential.secret_hash, password)
        if credential is None or not is_right:
            for limit, key in buckets:
                _hold_up(limit.take(key))
            return None
        if len(self._known) >= MAX_KNOWN_PASSWORDS:
            self._known.clear()
        self._known[self._digest(name, password)] = credential.user
        return credential.user

    def _remembered(self, name: str, password: str) -> User | None:
        return self._known.get(self._digest(name, password)) if self._known else None

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{len(name)}:{name}:{password}".encode(errors="replace"), "sha256")


def _hold_up(seconds: float) -> None:
    """Raise TooManyRequests for whoever has to wait."""
    if seconds > 0:
        words = message("Too many wrong credentials; wait a minute.")
        raise TooManyRequests(words, retry_after=int(seconds) + 1)


def checked(user: object) -> User:
    """Return what the hook has returned, if that is a user.  Raises TypeError: a role of another type may be any."""
    if isinstance(user, User) and isinstance(user.name, str) and isinstance(user.role, Role):
        return user
    raise TypeError(f"authorize returns a User with a name and a Role, or None; not {type(user).__name__}")


def is_local(request: Request) -> bool:
    """Return whether a request comes from this host, and through no proxy that can be told by its headers."""
    if any(FORWARDED.fullmatch(name) for name, _ in request.headers):
        return False
    if request.environ.get("SERVER_PROTOCOL") in OLD_PROTOCOLS:
        return False
    return is_loopback(request.remote_addr or "")


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this host."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
