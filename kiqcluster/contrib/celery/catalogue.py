"""Catalogue: the parts of Celery that code can use, and what each becomes here.  Data; one table for each place.

The layer raises Unsupported by these tables, and the checker reports by them, so that both say the same.

works    it works when the import has changed
change   it has a counterpart with another spelling; the advice names it
none     it has no counterpart; the advice says what comes nearest
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.words import page

__all__ = [
    "APPLY",
    "BASE",
    "BATCHES",
    "BEAT",
    "CALL",
    "CURRENT",
    "DECLARATION",
    "EAGER",
    "EVENTS",
    "FLAGS",
    "GET",
    "JSON_ONLY",
    "NAMES",
    "ONE_WAY",
    "QUEUES",
    "REMOTE",
    "REQUEST",
    "RESULT",
    "RETRY",
    "REVOKE",
    "SIGNATURE",
    "TASK",
    "TIMING",
    "VERBS",
    "WEIGHTS",
    "Entry",
    "Verdict",
    "change",
    "find",
    "none",
    "refusal",
    "works",
]

Verdict = Literal["works", "change", "none"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a part of Celery becomes."""

    verdict: Verdict
    advice: str = ""


def works(advice: str = "") -> Entry:
    return Entry("works", advice)


def change(advice: str) -> Entry:
    return Entry("change", advice)


def none(advice: str) -> Entry:
    return Entry("none", advice)


def find(table: Mapping[str, Entry], name: str) -> Entry:
    """Return the entry of a name; a name that the table lacks has no counterpart."""
    return table.get(name, UNKNOWN)


def refusal(table: Mapping[str, Entry], name: str, where: str) -> Unsupported:
    """Return the error for a part of Celery that does not work here.  where: the task or object that uses it."""
    return Unsupported(f"{where}: {name} of Celery does not work here; {find(table, name).advice}")


UNKNOWN = none("kiqcluster does not know it; remove it, or keep this task on Celery")
CHAINS = f"write a chain: first.job.then(second.job).enqueue(…) ({page('guides/chains')})"
BATCHES = (
    "create a batch with callbacks: kiqcluster.batches.Batch.create(name, each.job, rows, …) "
    f"({page('guides/batches')})"
)
SIGNATURE = (
    f"write a chain, first.job.then(second.job), or a batch with callbacks ({page('guides/migrate_from_celery')})"
)
CALLBACK = f"enqueue the next job at the end of the first one, or write a chain ({page('guides/chains')})"
JSON_ONLY = "arguments and results are JSON; pass keys and plain values"
QUEUES = f"name the queue: queue=… of the task, or a routing rule in kiqcluster.toml ({page('guides/route')})"
HOOKS = f"use a hook or a handler, as death_handler, error_handler or middleware ({page('guides/middleware')})"
WEIGHTS = f"give urgent jobs a queue of their own, and start workers for it ({page('guides/run')})"
REMOTE = (
    f"revoke(id) is kiqcluster.cancel(id); for others use kiqctl: ps, quiet, limits ({page('reference/kiqctl/index')})"
)
EVENTS = f"use kiqcluster.on(…), error_handler, death_handler or middleware ({page('guides/middleware')})"
ONE_WAY = f"a push is sent once and never repeated; catch StoreError and decide ({page('guides/write_jobs')})"
TIMING = "time limits belong to the declaration: soft_time_limit=…, time_limit=…"
EAGER = f"use the fixture kiq_inline; write apply(…).get() for delay(…).get() in tests ({page('guides/testing')})"
FLAGS = f"it is a flag of the command kiqcluster or a setting of kiqcluster.toml ({page('guides/run')})"
BEAT = (
    f"convert it: python -m kiqcluster.contrib.celery schedule PATH prints [cron.NAME] entries ({page('guides/cron')})"
)
CURRENT = f"call kiqcluster.current_job() ({page('guides/write_jobs')})"

NAMES: Mapping[str, Entry] = {  # names of the package celery, without their module
    "Celery": works(),
    "shared_task": works(),
    "AsyncResult": works(),
    "Retry": works(),
    "MaxRetriesExceededError": works(),
    "SoftTimeLimitExceeded": change("nothing is raised from outside: call current_job().check_timeout() in loops"),
    "TimeoutError": change("get() raises the built-in TimeoutError"),
    "TimeLimitExceeded": change("a job over its time_limit fails with kiqcluster.errors.JobTimedOut"),
    "get_task_logger": change("write logging.getLogger(__name__); lines of a job have its id and name"),
    "crontab": change(BEAT),
    "schedule": change(BEAT),
    "solar": none("no cron entry follows the sun; let a job compute the time and call apply_async(eta=…)"),
    "current_task": change(CURRENT),
    "current_app": change("import the app, or the task"),
    "chain": change(CHAINS),
    "group": change(BATCHES),
    "chord": change(BATCHES),
    "chunks": change(f"call the job for each slice, or write an IterableJob ({page('guides/iterable')})"),
    "signature": none("enqueue the job where the signature was used; " + CHAINS),
    "subtask": none("enqueue the job where the signature was used; " + CHAINS),
    "Signature": none("enqueue the job where the signature was used; " + CHAINS),
    "maybe_signature": none("enqueue the job where the signature was used; " + CHAINS),
    "xmap": none("push the jobs: for each in …: task.delay(each)"),
    "xstarmap": none("push the jobs: for each in …: task.delay(*each)"),
    "group_result": none(BATCHES),
    "GroupResult": none(BATCHES),
    "ResultSet": none("wait for each result: [each.get() for each in results]"),
    "EagerResult": change("task.apply(…) returns one"),
    "Task": none("a base class of tasks: move its attributes to the module; " + HOOKS),
    "Ignore": change("return from the job: it is done"),
    "Reject": change("raise an error with max_retries=0: the job goes to the dead set"),
    "NotRegistered": change("a job of an unknown name waits, and is then dead; nothing is raised in the caller"),
    "bootsteps": none("a worker has no boot steps; " + EVENTS),
    "signals": change(EVENTS),
    "uuid": change("an id is made by the push; task_id=… gives another one"),
    "states": change("compare .status with the text, such as 'SUCCESS'"),
    "beat": none(BEAT),
    "worker": none(FLAGS),
    "send_task": change("import the app, and call app.send_task"),
    "control": none(REMOTE),
    "inspect": none(REMOTE),
}

DECLARATION: Mapping[str, Entry] = {  # options of @shared_task and @app.task
    "name": works(),
    "bind": works(),
    "queue": works(),
    "max_retries": works(),
    "default_retry_delay": works("autoretry_for adds jitter, 0 to 9 s for each attempt so far; self.retry does not"),
    "autoretry_for": works(),
    "dont_autoretry_for": works(),
    "retry_kwargs": works("with max_retries and countdown"),
    "retry_backoff": works(),
    "retry_backoff_max": works(),
    "retry_jitter": works("True only: the delay of an automatic retry always has jitter"),
    "acks_late": works("True only: a job leaves Redis when it has ended"),
    "acks_on_failure_or_timeout": works("True only"),
    "reject_on_worker_lost": works("True only: a job whose worker dies runs again"),
    "rate_limit": works("it holds for the whole fleet, not for each worker"),
    "time_limit": works("the process of the job is replaced, and the job has failed"),
    "soft_time_limit": change("nothing is raised from outside: call current_job().check_timeout() in loops"),
    "ignore_result": works(),
    "expires": works("from the time at which the job is due"),
    "serializer": works("json only"),
    "typing": works("True only"),
    "track_started": change("kiqctl jobs show ID says where a job is"),
    "base": none(HOOKS),
    "throws": change("raise kiqcluster.RetryError for a failure that nobody is told of"),
    "priority": none(WEIGHTS),
    "compression": change(
        f"set size_limiter.mode: the size limiter compresses large arguments ({page('guides/large_arguments')})"
    ),
    "routing_key": none(QUEUES),
    "exchange": none(QUEUES),
    "store_errors_even_if_ignored": change("remove it: the dead set has the errors of all jobs that failed"),
    "pydantic": none("the arguments of a task are JSON; validate them in the function"),
    "on_failure": none(HOOKS),
    "on_success": none(HOOKS),
    "on_retry": none(HOOKS),
    "after_return": none(HOOKS),
    "before_start": none(HOOKS),
    "trail": change("remove it: results have no trail"),
    "send_events": change(f"remove it: metrics count all jobs ({page('metrics')})"),
    "resultrepr_maxsize": change("remove it: logs do not show results"),
    "lazy": change("remove it: tasks are declared at once"),
    "shared": change("remove it: the registry is one for the process"),
}

CALL: Mapping[str, Entry] = {  # options of apply_async and send_task
    "args": works(),
    "kwargs": works("they travel at their positions"),
    "countdown": works(),
    "eta": works("an aware datetime"),
    "expires": works("seconds, or an aware datetime"),
    "queue": works(),
    "task_id": works("a label: two pushes with one id are two jobs"),
    "serializer": works("json only"),
    "retry": none(ONE_WAY),
    "retry_policy": none(ONE_WAY),
    "priority": none(WEIGHTS),
    "link": none(CALLBACK),
    "link_error": none(f"declare retries_exhausted, or a death_handler ({page('guides/middleware')})"),
    "chain": none(CHAINS),
    "chord": none(BATCHES),
    "group_id": none(BATCHES),
    "routing_key": none(QUEUES),
    "exchange": none(QUEUES),
    "delivery_mode": none("Redis keeps jobs as its persistence says"),
    "compression": none(
        f"set size_limiter.mode: the size limiter compresses large arguments ({page('guides/large_arguments')})"
    ),
    "headers": none(f"add keys to the payload in a client middleware ({page('guides/middleware')})"),
    "shadow": none("a job has the name of its task"),
    "producer": none(f"name another Redis: with Client.via(store): … ({page('guides/write_jobs')})"),
    "connection": none(f"name another Redis: with Client.via(store): … ({page('guides/write_jobs')})"),
    "publisher": none(f"name another Redis: with Client.via(store): … ({page('guides/write_jobs')})"),
    "add_to_parent": none("results have no parents"),
    "ignore_result": none("declare ignore_result=… with the task"),
    "time_limit": none(TIMING),
    "soft_time_limit": none(TIMING),
    "reply_to": none("ask the result: task.AsyncResult(id).get()"),
    "user_id": none(f"add keys to the payload in a client middleware ({page('guides/middleware')})"),
}

TASK: Mapping[str, Entry] = {  # attributes of a task
    "delay": works(),
    "apply_async": works(),
    "apply": works(),
    "run": works(),
    "name": works(),
    "request": works(),
    "retry": works(),
    "max_retries": works(),
    "default_retry_delay": works(),
    "AsyncResult": works(),
    "MaxRetriesExceededError": works(),
    "job": works("the verbs of kiqcluster"),
    "s": change(SIGNATURE),
    "si": change(SIGNATURE),
    "signature": change(SIGNATURE),
    "subtask": change(SIGNATURE),
    "map": none("push the jobs: for each in …: task.delay(each)"),
    "starmap": none("push the jobs: for each in …: task.delay(*each)"),
    "chunks": none(f"write an IterableJob ({page('guides/iterable')})"),
    "update_state": none(f"call current_job().progress(done, total) ({page('guides/results')})"),
    "replace": none(CHAINS),
    "add_to_chord": none(BATCHES),
    "add_trail": none("results have no trail"),
    "send_event": none(f"call current_job().log(text) ({page('guides/batches')})"),
    "signature_from_request": none("arguments of a retry are those of the job"),
    "app": none("import the app"),
    "backend": none("ask the result: task.AsyncResult(id)"),
    "on_failure": none(HOOKS),
    "on_success": none(HOOKS),
    "on_retry": none(HOOKS),
    "after_return": none(HOOKS),
    "before_start": none(HOOKS),
}

VERBS = frozenset(
    {
        "then",
        "set",
        "options",
        "enqueue",
        "aenqueue",
        "perform_async",
        "perform_in",
        "perform_at",
        "perform_bulk",
        "perform_inline",
    }
)  # of kiqcluster: Task.job has them
BASE = none("an attribute of a base class is none here; keep it in the module, or in a function")

REQUEST: Mapping[str, Entry] = {  # attributes of self.request
    "id": works(),
    "retries": works(),
    "args": works(),
    "kwargs": works("{}: keywords have become positions"),
    "task": works(),
    "called_directly": works(),
    "delivery_info": none("call current_job().queue"),
    "hostname": none(f"add it to log lines: they have the process of the job ({page('guides/logs')})"),
    "eta": none("call current_job().payload"),
    "expires": none("current_job().payload['expiry'] has the epoch second"),
    "headers": none("current_job().payload has all keys of the job"),
    "is_eager": none("in tests a job does not know its mode"),
    "root_id": none(
        f"current_job().correlation_id is the id of the request that led to the job ({page('guides/logs')})"
    ),
    "parent_id": none(
        f"current_job().correlation_id is the id of the request that led to the job ({page('guides/logs')})"
    ),
    "correlation_id": none("call current_job().correlation_id"),
    "origin": none("call current_job().meta"),
    "chain": none(CHAINS),
    "chord": none(BATCHES),
    "group": none(BATCHES),
    "timelimit": none("call current_job().seconds_left"),
    "reply_to": none("nobody waits in a reply queue"),
    "callbacks": none(CALLBACK),
    "errbacks": none(f"declare retries_exhausted, or a death_handler ({page('guides/middleware')})"),
}

RETRY: Mapping[str, Entry] = {  # options of self.retry
    "exc": works(),
    "countdown": works(),
    "eta": works("an aware datetime"),
    "max_retries": works("at most the max_retries of the declaration"),
    "args": none("a retry has the arguments of its job; enqueue another job and return"),
    "kwargs": none("a retry has the arguments of its job; enqueue another job and return"),
    "throw": works(),
    "queue": none("a retry goes to the queue of its job; retry_queue of @kiqcluster.job names another one"),
    **{
        name: none(f"a retry keeps the options of its push; {name} belongs to apply_async or the declaration")
        for name in ("expires", "priority", "link", "link_error", "time_limit", "soft_time_limit", "routing_key")
    },
}

APPLY: Mapping[str, Entry] = {  # options of apply
    "args": works(),
    "kwargs": works(),
    "throw": change("call apply(…).get(), which raises the error of the task"),
    "link": none(CALLBACK),
    "link_error": none(f"declare retries_exhausted, or a death_handler ({page('guides/middleware')})"),
}

GET: Mapping[str, Entry] = {  # options of AsyncResult.get
    "timeout": works(),
    "propagate": works(),
    "interval": change("remove it: get() is told of the result"),
    "no_ack": change("remove it: results are in Redis"),
    "follow_parents": change("remove it: results have no parents"),
    "disable_sync_subtasks": change("remove it: a task may wait for another one with get(timeout=…)"),
    "callback": none("call get(), then the function"),
    "on_message": none(f"call current_job().progress(done, total) in the task ({page('guides/results')})"),
    "on_interval": none("call get(timeout) in a loop"),
}

REVOKE: Mapping[str, Entry] = {  # options of AsyncResult.revoke
    "terminate": works("False only: a job that runs is told, and may end itself"),
    "signal": change("remove it: no process gets a signal"),
    "wait": change("remove it: revoke() returns whether the job was found"),
    "timeout": change("remove it: nobody is waited for"),
    "connection": change("remove it: the job is in the Redis of its queue"),
}

RESULT: Mapping[str, Entry] = {  # attributes of AsyncResult
    "id": works(),
    "task_id": works(),
    "get": works("within a task with a timeout; a failure raises kiqcluster.errors.JobFailed, not the task's error"),
    "ready": works(),
    "successful": works(),
    "failed": works(),
    "status": works("PENDING, SUCCESS, FAILURE, REVOKED"),
    "state": works("PENDING, SUCCESS, FAILURE, REVOKED"),
    "result": works("the value, or JobFailed"),
    "revoke": works("without terminate: a job that runs is told, and may end itself"),
    "wait": change("call get(timeout)"),
    "then": none(CALLBACK),
    "forget": none("a result goes after result_expires seconds"),
    "traceback": none("kiqctl dead show ID has the error; declare backtrace with @kiqcluster.job"),
    "info": change(f"handle.status().progress is what the job said of its progress ({page('guides/results')})"),
    "date_done": none("the line of the log that says how the job ended has the time"),
    "children": none(BATCHES),
    "parent": none(CHAINS),
    "graph": none(CHAINS),
    "collect": none(BATCHES),
    "iterdeps": none(BATCHES),
    "join": none(BATCHES),
    "get_leaf": none(CHAINS),
    "as_tuple": none("keep the id"),
    "backend": none("results are in the Redis of the jobs"),
    "retries": none("kiqctl jobs show ID has the number"),
}
