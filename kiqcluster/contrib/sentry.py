"""Sentry: errors of jobs with their circumstances, a transaction per run, a span per push, check-ins of cron entries.

Runs in: threads and coroutines that push (client), processor threads and the event loop (server), the worker's main
thread (the last flush).
1. instrument    add both middleware outermost, and the handlers; uninstrument removes them
2. PublishSpans  client middleware: a span queue.publish; the payload carries the trace and the user
3. ProcessSpans  server middleware: a scope and a transaction queue.process, which continues that trace
4. reports       error and death handlers: the error of a run is reported within the scope that the run had
5. processors    no event has variables of our frames; none of a job with an encrypted argument has any
6. flush         at the worker's end: what the SDK still holds goes out

Keys of the payload are those of sentry-ruby's integration for Sidekiq, so that a trace goes through a mixed fleet.
The application calls `sentry_sdk.init`; until it has, nothing here has any effect.
Never: imported by the rest of the package.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from typing import Any

from kiqcluster.application.argument_filter import json_size, shown_arguments
from kiqcluster.contrib.job_names import job_class
from kiqcluster.contrib.run_errors import CANCELLED, PUT_OFF, SuppressErrors
from kiqcluster.errors import JobKilled, RetryError
from kiqcluster.process.boundary.calls import exc_info, is_a
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Run, current_setup
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.sidekiq.payload import ENCRYPT, Payload, seconds

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import (
        Scope,
        add_global_event_processor,
        global_event_processors,
        use_isolation_scope,
        use_scope,
    )
    from sentry_sdk.tracing import Span
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError(
        "kiqcluster.contrib.sentry needs Sentry's SDK 2, which is not installed: pip install 'kiqcluster[sentry]'"
    ) from error

__all__ = ["ProcessSpans", "PublishSpans", "instrument", "uninstrument"]

HEADERS, USER = "trace_propagation_headers", "sentry_user"  # keys of the payload, as sentry-ruby writes them
CRON = "cron"  # key of a payload that a cron entry has enqueued (sidekiq/cron_entries)
ORIGIN = "auto.queue.kiqcluster"
PUBLISH, PROCESS, TASK = "queue.publish", "queue.process", "task"  # operations of spans; where a name comes from
FLUSH_TIMEOUT_SECONDS = 2.0  # for the last events; a part of the supervisor's grace, which others need too
MAX_SLUG_CHARACTERS = 50  # of a monitor, by Sentry
CRONTAB_FIELDS = 5  # that Sentry reads; it knows macros too
OWN_FILES = str(Path(__file__).parents[1]) + "/"  # a module that was started by -m has the name __main__
LOGGERS_OF_TASKS = ("django.tasks", "django_tasks")  # by which Django and its backport log tasks that have failed
SUPPRESS = SuppressErrors("sentry")


def instrument(
    *, report_after_job_retries: bool = False, send_arguments: bool | None = None, monitor_crons: bool = False
) -> None:
    """Report errors of jobs and services, and trace pushes and runs; call it where the application declares its jobs.

    report_after_job_retries: whether an error is reported only once its job will not be tried again.
    send_arguments: whether events have the arguments that logs may show; None: as the SDK's options say.
    monitor_crons: whether runs of cron entries send check-ins to the monitor of the entry's name.
    Called again, it replaces what it did before.
    """
    uninstrument()
    setup = current_setup()
    setup.client_middleware.prepend(PublishSpans())
    setup.server_middleware.prepend(ProcessSpans(send_arguments=send_arguments, monitor_crons=monitor_crons))
    reports = _Reports(after_retries=report_after_job_retries, send_arguments=send_arguments)
    setup.error_handlers.append(reports.on_error)
    setup.death_handlers.append(reports.on_death)
    add_global_event_processor(_process_event)
    if _end not in setup.hooks.of("exit"):
        setup.hooks.on("startup")(_begin)
        setup.hooks.on("exit")(_end)


def uninstrument() -> None:
    """Report and trace nothing more; nothing happens where `instrument` was not called."""
    setup = current_setup()
    setup.client_middleware.discard(PublishSpans)
    setup.server_middleware.discard(ProcessSpans)
    setup.error_handlers[:] = [each for each in setup.error_handlers if not _is_ours(each)]
    setup.death_handlers[:] = [each for each in setup.death_handlers if not _is_ours(each)]
    while _process_event in global_event_processors:
        global_event_processors.remove(_process_event)


def _is_ours(handler: object) -> bool:
    return isinstance(getattr(handler, "__self__", None), _Reports)


# The two middleware


class PublishSpans:
    """Client middleware: a span within the caller's, and trace and user in the payload.

    A payload that has a trace keeps it and gets no span: the poller, the API or a web page enqueues it again.
    """

    def __call__(self, push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        if HEADERS in push.payload or not sentry_sdk.is_initialized():
            return proceed()
        with ExitStack() as stack:
            with SUPPRESS:
                self._begin(push, stack)
            return proceed()

    def _begin(self, push: Push, stack: ExitStack) -> None:
        name = job_class(push.payload)
        if sentry_sdk.get_current_span() is not None:
            span = stack.enter_context(sentry_sdk.start_span(op=PUBLISH, name=name, origin=ORIGIN))
            _describe(span, push.payload, push.queue)
        headers = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        push.payload[HEADERS] = {key: value for key, value in headers.items() if value}
        user = _user()
        if user and USER not in push.payload:
            push.payload[USER] = user


@dataclass(slots=True)
class _Begun:
    """A run: its scopes, which reports about it use when it has ended, and its transaction."""

    payload: Payload
    isolation: Scope
    current: Scope
    transaction: Any
    check_in: str | None = None
    started: float = 0.0


LATEST: ContextVar[_Begun | None] = ContextVar("kiqcluster_sentry_run", default=None)  # of a thread's job, or a task


class ProcessSpans:
    """Server middleware: each run has an isolation scope and a transaction of its own.

    Shared by all processor threads; open runs are added and removed by single steps of a dictionary.
    """

    def __init__(self, *, send_arguments: bool | None = None, monitor_crons: bool = False) -> None:
        self._send_arguments = send_arguments
        self._monitor_crons = monitor_crons
        self._open: dict[int, _Begun] = {}

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        if not sentry_sdk.is_initialized():
            return proceed()
        with self._around(run):
            return proceed()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Do the same around an async job."""
        if not sentry_sdk.is_initialized():
            return await proceed()
        with self._around(run):
            return await proceed()

    @contextmanager
    def _around(self, run: Run) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            begun, status = None, "ok"
            with SUPPRESS:
                begun = self._begin(run, scope)
                self._open[id(begun)] = begun
                LATEST.set(begun)
            try:
                yield
            except BaseException as raised:
                status = _status(raised)
                raise
            finally:
                if begun is not None and self._open.pop(id(begun), None) is not None:
                    with SUPPRESS:
                        self._finish(run, begun, status)

    def _begin(self, run: Run, scope: Scope) -> _Begun:
        name = job_class(run.payload)
        _fill(scope, run.payload, run.queue, run.job, self._send_arguments)
        transaction = sentry_sdk.start_transaction(
            sentry_sdk.continue_trace(_headers(run.payload), op=PROCESS, name=name, source=TASK, origin=ORIGIN),
            custom_sampling_context={"kiqcluster_job": {"class": name, "queue": run.queue, "jid": run.jid}},
        )
        transaction.__enter__()
        now = SystemClock().now()
        _describe(transaction, run.payload, run.queue)
        _describe_receipt(transaction, run.payload, now)
        begun = _Begun(run.payload, scope, sentry_sdk.get_current_scope(), transaction, started=now)
        if self._monitor_crons and isinstance(run.payload.get(CRON), str):
            begun.check_in = capture_checkin(_slug(run.payload), status="in_progress", monitor_config=_monitor(run))
        return begun

    def _finish(self, run: Run, begun: _Begun, status: str) -> None:
        begun.transaction.set_status(status)
        begun.transaction.__exit__(None, None, None)
        if begun.check_in is not None and status in ("ok", "internal_error"):
            duration = max(0.0, SystemClock().now() - begun.started)
            words = "ok" if status == "ok" else "error"
            capture_checkin(_slug(run.payload), begun.check_in, words, duration, _monitor(run))

    def end(self) -> None:
        """End the transactions of jobs that this process leaves unfinished, and send all that is not sent."""
        for key in list(self._open):
            begun = self._open.pop(key, None)
            if begun is not None:
                with SUPPRESS, use_isolation_scope(begun.isolation), use_scope(begun.current):
                    begun.transaction.set_status("aborted")
                    begun.transaction.finish()
        sentry_sdk.flush(FLUSH_TIMEOUT_SECONDS)


def _begin() -> None:
    """Handler of `startup`: in a worker, Django's log line would report the error of a task first, without the job.

    The SDK reports an error once, and the report of the job would not be sent.
    """
    for name in LOGGERS_OF_TASKS:
        ignore_logger(name)


def _end() -> None:
    """Handler of `exit`, after all others: jobs have ended or were put back."""
    for middleware in current_setup().server_middleware:
        if isinstance(middleware, ProcessSpans):
            middleware.end()


# Reports


class _Reports:
    """Error and death handlers.  Jobs that were deferred, interrupted or cancelled come to neither."""

    def __init__(self, *, after_retries: bool, send_arguments: bool | None) -> None:
        self._after_retries = after_retries
        self._send_arguments = send_arguments

    def on_error(self, error: Exception, context: dict[str, Any]) -> None:
        """Report an error of a job, or of a service of the worker."""
        where = str(context.get("context", ""))
        job = context.get("job")
        if where == "sentry" or (where == "job" and self._after_retries):
            return
        self._report(error, where, job if isinstance(job, dict) else None, str(context.get("queue", "")))

    def on_death(self, payload: Payload, error: Exception) -> None:
        """Report the error of a job that will not be tried again, if no other was reported."""
        if self._after_retries and not is_a(error, JobKilled):
            self._report(error, "job", payload, str(payload.get("queue", "")))

    def _report(self, error: Exception, where: str, payload: Payload | None, queue: str) -> None:
        if not sentry_sdk.is_initialized():
            return
        latest = LATEST.get()
        with ExitStack() as stack:
            if payload is not None and latest is not None and latest.payload.get("jid") == payload.get("jid"):
                stack.enter_context(use_isolation_scope(latest.isolation))
                scope = stack.enter_context(use_scope(latest.current.fork()))
                scope.span = latest.transaction
            else:  # it has not begun, or another process ran it
                scope = stack.enter_context(sentry_sdk.isolation_scope())
                if payload is not None:
                    _fill(scope, payload, queue, None, self._send_arguments)
                    sentry_sdk.continue_trace(_headers(payload))
            scope.set_tag("kiqcluster.context", where)
            if payload is not None and exc_info(error)[2] is None:  # else all jobs would be one issue
                scope.fingerprint = ["{{ default }}", job_class(payload)]
            event, hint = event_from_exception(
                error,
                client_options=sentry_sdk.get_client().options,
                mechanism={"type": "kiqcluster", "handled": False},
            )
            sentry_sdk.capture_event(event, hint=hint)


# What is said of a job


def _fill(scope: Scope, payload: Payload, queue: str, definition: Any, send_arguments: bool | None) -> None:
    """Have all events of a scope name the job."""
    name = job_class(payload)
    scope.clear_breadcrumbs()
    scope.set_transaction_name(name, source=TASK)
    scope.set_tags({"class": name, "queue": queue, "jid": str(payload.get("jid", ""))})
    tags = payload.get("tags")
    scope.set_tags({f"sidekiq.{tag}": "true" for tag in (tags if isinstance(tags, list) else ())})
    user = payload.get(USER)
    if isinstance(user, dict):
        scope.set_user(user)
    said = {key: payload[key] for key in SAID if key in payload}
    if _sends_arguments() if send_arguments is None else send_arguments:
        said["args"] = shown_arguments(payload, definition)
    scope.set_context("job", {**said, "class": name, "queue": queue})
    is_encrypted = _is_encrypted(payload)
    scope.add_event_processor(lambda event, _hint: _without_variables(event, all_frames=is_encrypted))


SAID = ("jid", "retry", "retry_count", "created_at", "enqueued_at", "correlation_id", "bid", "deaths", CRON)


def _sends_arguments() -> bool:
    """Return whether the SDK's options allow it: `data_collection`, or `send_default_pii` of older releases."""
    client = sentry_sdk.get_client()
    collected = client.options.get("data_collection") or {}
    return bool(collected.get("queues", client.should_send_default_pii()))


def _is_encrypted(payload: Payload) -> bool:
    return bool(payload.get(ENCRYPT)) or KEY_VERSION in payload


# What is not said of a job: it has a processor in its scope, which its threads share, and the process has one for
# events outside of such a scope, those of services, of hooks and of middleware around ours


def _process_event(event: Any, _hint: Any) -> Any:
    running = current_job()
    return _without_variables(event, all_frames=running is not None and _is_encrypted(running.payload))


def _without_variables(event: Any, *, all_frames: bool) -> Any:
    """Take out local variables of our own frames, which have payload and arguments, and all of a job with a secret.

    The SDK adds the stack of `attach_stacktrace` later, to an event without one: it then finds an empty one.
    """
    if event.get("type") in ("transaction", "check_in"):
        return event
    parts = [part for key in ("exception", "threads") for part in (event.get(key) or {}).get("values") or ()]
    for part in (event, *parts):
        for frame in (part.get("stacktrace") or {}).get("frames") or ():
            if all_frames or _is_own(str(frame.get("module")), str(frame.get("abs_path"))):
                frame.pop("vars", None)
    if not {"exception", "threads", "stacktrace"} & event.keys() and (all_frames or _is_called_by_us()):
        event["threads"] = {"values": []}
    return event


def _is_own(module: str, path: str) -> bool:
    return module.partition(".")[0] == "kiqcluster" or path.startswith(OWN_FILES)


def _is_called_by_us() -> bool:
    """Return whether this thread's stack has frames of ours, besides those of this module."""
    frames = (frame for frame, _ in walk_stack(None) if frame.f_globals.get("__name__") != __name__)
    return any(_is_own(str(frame.f_globals.get("__name__")), frame.f_code.co_filename) for frame in frames)


def _describe(span: Span | Any, payload: Payload, queue: str) -> None:
    span.set_data("messaging.system", "sidekiq")
    span.set_data("messaging.message.id", str(payload.get("jid", "")))
    span.set_data("messaging.destination.name", queue)
    if span.sampled:
        span.set_data("messaging.message.body.size", json_size(payload.get("args")))


def _describe_receipt(transaction: Any, payload: Payload, now: float) -> None:
    count = payload.get("retry_count")
    transaction.set_data("messaging.message.retry.count", max(0, count + 1) if type(count) is int else 0)
    at = seconds(payload.get("enqueued_at"))
    if at is not None:
        transaction.set_data("messaging.message.receive.latency", max(0.0, now - at) * 1_000)  # milliseconds


def _status(raised: BaseException) -> str:
    """Return the status of a transaction whose job has raised this."""
    if is_a(raised, CANCELLED):
        return "cancelled"
    return "aborted" if is_a(raised, (RetryError, *PUT_OFF)) else "internal_error"


def _headers(payload: Payload) -> dict[str, Any]:
    found = payload.get(HEADERS)
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _user() -> dict[str, Any]:
    """Return the user of the caller's scope, as far as it is text and numbers; the SDK has no public way to ask."""
    scopes = (sentry_sdk.get_current_scope(), sentry_sdk.get_isolation_scope())
    user: dict[str, Any] = next((found for scope in scopes if (found := getattr(scope, "_user", None))), {})
    return {str(key): value for key, value in user.items() if isinstance(value, str | int | float)}


# Check-ins


def _slug(payload: Payload) -> str:
    """Return the name of a cron entry as monitors are named."""
    return re.sub(r"[^a-z0-9_-]+", "-", str(payload[CRON]).lower()).strip("-")[:MAX_SLUG_CHARACTERS]


def _monitor(run: Run) -> Any:
    """Return the schedule of an entry that its job declares, so that Sentry makes the monitor; None for others."""
    local = getattr(run.job, "local", {})
    schedule = str(local.get("cron", ""))
    is_read = schedule.startswith("@") or len(schedule.split()) == CRONTAB_FIELDS
    if run.payload.get(CRON) != getattr(run.job, "name", None) or not is_read:
        return None
    return {"schedule": {"type": "crontab", "value": schedule}, "timezone": local.get("tz") or "UTC"}
