"""Settings of the pages: the table [web] of the configuration, or what create_app is given.

[web]
users = ["ada admin scrypt:32768:8:1$…", "bob view scrypt:…"]   # name, role, hash of the password (werkzeug.security)
tokens = ["ci operate 9f86d081…"]                               # name, role, SHA-256 of the token
hosts = ["jobs.example.com"]                                    # names under which the pages are asked for
read_only = true
language = "ja"                                                 # where a browser asks for none of ours
secret = "…"                                                    # by which pages name jobs; else one in Redis
root_path = "/ops/jobs"                                         # below which browsers find the pages
trusted_proxies = ["10.0.0.0/8"]                                # whose X-Forwarded-Prefix says the same
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kiqcluster.errors import UsageError
from kiqcluster.web.i18n import LANGUAGES
from kiqcluster.web.mount import Network, is_root_path, network
from kiqcluster.web.users import Credential, Role

__all__ = ["WebSettings", "read_root_path", "read_settings"]

SHA256 = re.compile(r"[0-9a-fA-F]{64}")
PASSWORD_HASH = re.compile(r"(scrypt|pbkdf2)(:\w+)*\$[^$]+\$[0-9a-f]+")
HASH_HINT = "python -c 'from werkzeug.security import generate_password_hash as h; print(h(input()))' makes one"
MIN_SECRET_CHARACTERS = 32
RANDOM_HINT = "python -c 'import secrets; print(secrets.token_hex(32))' makes one"


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What the pages are told; see above."""

    users: tuple[Credential, ...] = ()
    tokens: tuple[Credential, ...] = ()
    hosts: tuple[str, ...] = ()
    read_only: bool = False
    language: str = "en"
    secret: str = field(default="", repr=False)
    root_path: str = ""
    trusted_proxies: tuple[Network, ...] = ()


def read_settings(table: Mapping[str, Any] | None) -> WebSettings:
    """Return the settings of a table.  Raises UsageError, which shows no secret."""
    table = table or {}
    known = [each.name for each in fields(WebSettings)]
    if unknown := sorted(table.keys() - set(known)):
        raise UsageError(f"[web] has no key {unknown[0]!r}; its keys are {', '.join(known)}")
    language, read_only = table.get("language", "en"), table.get("read_only", False)
    if language not in LANGUAGES:
        raise UsageError(f"[web] language is one of {', '.join(LANGUAGES)}, not {language!r}")
    if not isinstance(read_only, bool):
        raise UsageError("[web] read_only is true or false")
    secret = table.get("secret", "")
    if not isinstance(secret, str) or 0 < len(secret) < MIN_SECRET_CHARACTERS:
        raise UsageError(f"[web] secret is a text of at least {MIN_SECRET_CHARACTERS} characters; {RANDOM_HINT}")
    return WebSettings(
        users=tuple(_credential(each, "users", PASSWORD_HASH) for each in _texts(table, "users")),
        tokens=tuple(_credential(each, "tokens", SHA256) for each in _texts(table, "tokens")),
        hosts=_texts(table, "hosts"),
        read_only=read_only,
        language=language,
        secret=secret,
        root_path=read_root_path(table.get("root_path", "")),
        trusted_proxies=tuple(_network(each) for each in _texts(table, "trusted_proxies")),
    )


def read_root_path(given: object) -> str:
    """Return the path below which browsers find the pages, "" for none.  Raises UsageError."""
    path = given.rstrip("/") if isinstance(given, str) else given
    if path == "" or (isinstance(path, str) and is_root_path(path)):
        return path
    raise UsageError(f"[web] root_path is a path like /ops/jobs, not {given!r}")


def _network(text: str) -> Network:
    try:
        return network(text)
    except ValueError as error:
        raise UsageError(f"[web] trusted_proxies: {error}; write addresses or networks, 10.0.0.0/8") from error


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = table.get(name, ())
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise UsageError(f"[web] {name} is a list of texts")
    return tuple(values)


def _credential(text: str, place: str, form: re.Pattern[str]) -> Credential:
    name, role, secret_hash = [*text.split(), "", "", ""][:3]
    roles = {each.name.lower(): each for each in Role}
    if len(text.split()) != 3 or role not in roles:
        raise UsageError(f"[web] {place}: write NAME ROLE HASH; the roles are {', '.join(roles)} ({name!r} is not so)")
    if not form.fullmatch(secret_hash):
        hint = HASH_HINT if place == "users" else "a token's is its SHA-256 in hexadecimal (sha256sum)"
        raise UsageError(f"[web] {place}: what {name!r} has is not a hash; {hint}")
    return Credential(name, roles[role], secret_hash)
