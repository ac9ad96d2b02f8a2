"""Errors: what went wrong → status, headers and words of an answer.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from werkzeug.exceptions import HTTPException

from kiqcluster.errors import KiqError, StoreError, class_name
from kiqcluster.store import is_outage
from kiqcluster.web.i18n import message

__all__ = ["Trouble", "outcome_of", "trouble_of"]

RETRY_SECONDS = 2  # after which somebody asks again while Redis is away
KEPT_HEADERS = ("Allow", "Retry-After", "WWW-Authenticate")
TITLES = {
    400: message("The request cannot be understood"),
    401: message("Please sign in"),
    403: message("Not allowed"),
    404: message("There is no such page"),
    405: message("Only a form of these pages changes things"),
    409: message("Not done"),
    413: message("The request is too large"),
    429: message("Too many requests"),
    500: message("This page has failed"),
    503: message("Redis does not answer"),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """status: of HTTP.  reason: in words, "" where the title says all.  retry: seconds; 0: asking again is no use."""

    status: int
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    retry: int = 0

    @property
    def title(self) -> str:
        return TITLES.get(self.status, TITLES[400 if self.status < 500 else 500])


def trouble_of(error: Exception) -> Trouble:
    """Return what an error means to who asked."""
    if isinstance(error, HTTPException):
        status = error.code or 500
        headers = tuple(pair for pair in error.get_headers() if pair[0] in KEPT_HEADERS)
        is_ours = error.description is not None and error.description != type(error).description
        return Trouble(status, str(error.description) if is_ours else "", headers)
    if isinstance(error, StoreError) and is_outage(error):
        return Trouble(503, str(error), (("Retry-After", str(RETRY_SECONDS)),), RETRY_SECONDS)
    if isinstance(error, StoreError):
        return Trouble(500, str(error))
    return Trouble(409, str(error))


def outcome_of(error: Exception) -> str:
    """Return what an audit event says of a change that raised an error."""
    if isinstance(error, StoreError) and is_outage(error):
        return f"in doubt: {error}"
    if isinstance(error, HTTPException | KiqError):
        return f"not done: {trouble_of(error).reason or error}"
    return f"in doubt: {class_name(error)}; the log says more"
