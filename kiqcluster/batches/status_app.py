"""Status app: a small WSGI application that answers with the status of a batch as JSON, for a front end that polls.

GET /batches/<id>.json    the document of BatchStatus.as_json, in one round trip to Redis
    ?offset=100             `failures` from there on, 100 at a time; `more` says whether there are others after them
    ?status=failed          those of a page in this status only

It is mounted in a web framework's routes, or served by itself.  Who knows the id of a batch may read it, unless
`authorize` says otherwise: ids are random, 96 bits.  Arguments of failures are filtered as in logs, unless
`show_arguments` shows more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT, filtered
from kiqcluster.application.registry import current_registry
from kiqcluster.batches.batch import MAX_FAILURES, Batch
from kiqcluster.batches.records import BatchJob, BatchStatus
from kiqcluster.errors import BatchEnded, RedisRefused, StoreError
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store, is_outage

__all__ = ["status_app"]

PATH = re.compile(r"/batches/([0-9a-f]{24})\.json")
OFFSET = re.compile(r"[0-9]{1,9}")
FAILED_STATUSES = ("failed", "error")
RETRY_SECONDS = "2"

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]
ShowArguments = Callable[[str, list[JSON]], JSON]


def status_app(
    authorize: Callable[[Environ], bool] | None = None,
    *,
    store: Store | None = None,
    show_arguments: ShowArguments | None = None,
) -> Application:
    """Return the application.

    authorize: called with the environment of each request; False answers 403.  store: with the batches; None means the
    configured one, at the first request.  show_arguments: called with class and arguments of each failure whose
    arguments are kept, "" for a class that nobody has kept; returns the `params` of its document.  None: numbers, and
    what the class declares by `loggable_arguments` where it is known in this process; "[FILTERED]" for others.
    """

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        status, document = _answer(environ, authorize, store, show_arguments)
        body = ruby_json.encode(document)
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        if status.startswith("503"):
            headers.append(("Retry-After", RETRY_SECONDS))
        if status.startswith("405"):
            headers.append(("Allow", "GET, HEAD"))
        start_response(status, headers)
        return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else body]

    return application


def _answer(
    environ: Environ, authorize: Callable[[Environ], bool] | None, store: Store | None, show: ShowArguments | None
) -> tuple[str, dict[str, JSON]]:
    """Return status line and document of a request."""
    if environ.get("REQUEST_METHOD", "GET") not in ("GET", "HEAD"):
        return "405 Method Not Allowed", {"error": "only GET"}
    found = PATH.fullmatch(environ.get("PATH_INFO", ""))
    if found is None:
        return "404 Not Found", {"error": "ask for /batches/<id>.json"}
    if authorize is not None and not authorize(environ):
        return "403 Forbidden", {"error": "not allowed"}
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    offset, wanted = query.get("offset", ["0"])[-1], query.get("status", [""])[-1]
    if OFFSET.fullmatch(offset) is None or wanted not in ("", *FAILED_STATUSES):
        return "400 Bad Request", {"error": "offset is a number, and status is failed or error"}
    try:
        status = Batch(found[1], store or current_setup().current_store()).status(MAX_FAILURES + 1, int(offset))
    except BatchEnded:
        return "404 Not Found", {"error": "there is no such batch; it may have expired"}
    except StoreError as error:
        if is_outage(error):
            return "503 Service Unavailable", {"error": "Redis does not answer; ask again"}
        refusal = error.code if isinstance(error, RedisRefused) else type(error).__name__
        return "500 Internal Server Error", {"error": f"Redis refuses to have the batch read ({refusal})"}
    page = [each for each in status.failures[:MAX_FAILURES] if wanted in ("", each.status)]
    failures: list[JSON] = [{**each.as_json(), "params": _params(status, each, show)} for each in page]
    return "200 OK", {**status.as_json(), "failures": failures, "more": len(status.failures) > MAX_FAILURES}


def _params(status: BatchStatus, job: BatchJob, show: ShowArguments | None) -> JSON:
    """Return what is shown of the arguments of a job, None where they are not kept."""
    if not isinstance(job.params, list):
        return None
    name = status.class_of(job)
    if show is not None:
        return show(name, job.params)
    try:
        return filtered(job.params, {}, current_registry().get(name) if name else None)
    except (ValueError, TypeError, RecursionError):  # what somebody else has written
        return HIDDEN_ARGUMENT
