"""Mount: below which path a browser finds the pages, where a proxy takes that path away.

Links begin with SCRIPT_NAME.  A server that mounts the pages sets it; here it is set for a proxy that does not tell the
server: by `root_path` of the settings, or by the header X-Forwarded-Prefix of a proxy that the settings trust.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["Network", "is_root_path", "mounted", "network"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
FORWARDED_PREFIX = "HTTP_X_FORWARDED_PREFIX"


def is_root_path(text: str) -> bool:
    """Return whether a text is a path below which pages can be: /ops/jobs."""
    return ROOT_PATH.fullmatch(text) is not None


def network(text: str) -> Network:
    """Return the addresses that a text means: 10.0.0.7, 10.0.0.0/8.  Raises ValueError."""
    return ipaddress.ip_network(text)


def mounted(environ: dict[str, Any], root_path: str, trusted: Sequence[Network]) -> dict[str, Any]:
    """Return the environment of a request (WSGI) below its path.

    root_path: its proxy may have taken it away or not; it begins like no page (app.create_app).  The proxy that tells
    a prefix has taken it away.
    """
    prefix = root_path or _told(environ, trusted)
    if not prefix:
        return environ
    path = environ.get("PATH_INFO", "")
    if root_path and (path == root_path or path.startswith(f"{root_path}/")):
        path = path.removeprefix(root_path)
    return {**environ, "SCRIPT_NAME": f"{prefix}{environ.get('SCRIPT_NAME', '')}", "PATH_INFO": path}


def _told(environ: dict[str, Any], trusted: Sequence[Network]) -> str:
    """Return the path that a trusted proxy tells; "" where there is none, or it is none."""
    prefix = str(environ.get(FORWARDED_PREFIX, "")).rstrip("/")
    if not trusted or not is_root_path(prefix):
        return ""
    try:
        address = ipaddress.ip_address(environ.get("REMOTE_ADDR", ""))
    except ValueError:  # a unix socket has none
        return ""
    known = getattr(address, "ipv4_mapped", None) or address
    return prefix if any(known in each for each in trusted) else ""
