"""Settings of Celery: what each becomes.  Data; see catalogue.py for the verdicts, and rules.py for the values.

APP        attributes of the app
BUILD      arguments of Celery(…)
OF_BUILD   those that set a setting
SETTINGS   keys of app.conf, in lower case
"""

from __future__ import annotations

from collections.abc import Mapping

from kiqcluster.contrib.celery.catalogue import (
    BATCHES,
    BEAT,
    CURRENT,
    EAGER,
    EVENTS,
    FLAGS,
    ONE_WAY,
    QUEUES,
    REMOTE,
    TIMING,
    WEIGHTS,
    Entry,
    change,
    none,
    works,
)
from kiqcluster.words import page

__all__ = ["APP", "BUILD", "OF_BUILD", "SETTINGS", "setting_name"]

APP: Mapping[str, Entry] = {
    "task": works(),
    "conf": works(),
    "config_from_object": works("each key is checked"),
    "send_task": works("keyword arguments only where the task is declared in this process"),
    "main": works(),
    "AsyncResult": works(),
    "autodiscover_tasks": change("name the modules: kiqcluster -r shop.tasks, or kiqcluster.contrib.django"),
    "control": change(REMOTE),
    "signature": none("enqueue the job where the signature was used"),
    "tasks": change("kiqctl routes lists all classes"),
    "current_task": change(CURRENT),
    "Task": none(f"declare functions; hooks are options ({page('guides/middleware')})"),
    "on_after_configure": change(BEAT),
    "on_after_finalize": change(BEAT),
    "add_periodic_task": change(BEAT),
    "start": change(FLAGS),
    "worker_main": change(FLAGS),
    "Worker": change(FLAGS),
    "Beat": change(BEAT),
    "connection": none("call kiqcluster.Store(url) for a Redis"),
    "finalize": change("remove it: tasks are declared at once"),
    "set_default": change("remove it: the registry is one for the process"),
    "set_current": change("remove it: the registry is one for the process"),
    "log": change(f"logs are lines of JSON on standard output ({page('guides/logs')})"),
    "events": none(f"scrape /metrics, or read the log ({page('metrics')})"),
    "GroupResult": none(BATCHES),
    "backend": none("ask the result: task.AsyncResult(id)"),
    "amqp": none(QUEUES),
    "loader": none("kiqcluster -r names the modules"),
    "autofinalize": change("remove it"),
    "steps": none(EVENTS),
    "user_options": none(FLAGS),
}

BUILD: Mapping[str, Entry] = {
    "main": works(),
    "broker": works("a URL of Redis"),
    "backend": works("the same Redis: results are kept beside the jobs"),
    "include": change("name the modules: kiqcluster -r shop.tasks"),
    "task_cls": none(f"declare functions; hooks are options ({page('guides/middleware')})"),
    "config_source": change("call app.config_from_object(…)"),
    "namespace": change("call app.config_from_object(…, namespace=…)"),
    "set_as_current": change("remove it: the registry is one for the process"),
    "autofinalize": change("remove it"),
    "changes": change("call app.conf.update(…)"),
    "strict_typing": change("remove it: arguments are always checked against the signature"),
    "tasks": change("remove it"),
}

OF_BUILD = {"broker": "broker_url", "backend": "result_backend"}  # argument → setting

SETTINGS: Mapping[str, Entry] = {
    "broker_url": works("a URL of Redis"),
    "result_backend": works("the same Redis: results are kept beside the jobs"),
    "task_default_queue": works(),
    "task_ignore_result": works(),
    "result_expires": works("whole seconds"),
    "task_default_retry_delay": change("declare default_retry_delay with each task"),
    "task_time_limit": works("the process of the job is replaced, and the job has failed"),
    "task_soft_time_limit": change(TIMING + "; nothing is raised from outside: call current_job().check_timeout()"),
    "task_acks_late": works("True only"),
    "task_reject_on_worker_lost": works("True only"),
    "task_acks_on_failure_or_timeout": works("True only"),
    "task_serializer": works("json only"),
    "result_serializer": works("json only"),
    "accept_content": works("json only"),
    "timezone": works("of the converted schedule; the eta of a call needs its own"),
    "enable_utc": works("True only"),
    "task_create_missing_queues": works("True only"),
    "broker_connection_retry": works("True only"),
    "broker_connection_retry_on_startup": works("True only"),
    "beat_schedule": change(BEAT),
    "beat_scheduler": change(f"entries that people edit: CronSet().add, or the web pages ({page('guides/cron')})"),
    "beat_schedule_filename": change("remove it: the ticks are in Redis"),
    "beat_max_loop_interval": change("remove it: the poller knows the next tick"),
    "task_always_eager": change(EAGER),
    "task_eager_propagates": change(EAGER),
    "task_store_eager_result": change(EAGER),
    "task_routes": works("names, globs and patterns, with a queue"),
    "task_queues": change("name the queues on the command line: kiqcluster default mailers"),
    "task_default_priority": none(WEIGHTS),
    "task_queue_max_priority": none(WEIGHTS),
    "broker_transport_options": change(f"remove it: a job has no visibility timeout ({page('reliability')})"),
    "task_default_exchange": none(QUEUES),
    "task_default_exchange_type": none(QUEUES),
    "task_default_routing_key": none(QUEUES),
    "task_default_delivery_mode": none("Redis keeps jobs as its persistence says"),
    "task_default_rate_limit": change("declare rate_limit with each task"),
    "task_annotations": none("declare the options with each task"),
    "task_compression": change(f"set size_limiter.mode ({page('guides/large_arguments')})"),
    "task_protocol": change("remove it: payloads are Sidekiq's"),
    "task_publish_retry": change(ONE_WAY),
    "task_publish_retry_policy": change(ONE_WAY),
    "task_track_started": change("kiqctl jobs show ID says where a job is"),
    "task_send_sent_event": change(f"scrape /metrics ({page('metrics')})"),
    "task_store_errors_even_if_ignored": change("remove it: the dead set has the errors"),
    "task_allow_error_cb_on_chord_header": none(BATCHES),
    "task_remote_tracebacks": change("remove it: the dead set has the errors"),
    "result_extended": change("remove it: kiqctl jobs show ID has name and arguments"),
    "result_persistent": change("remove it: results are in Redis"),
    "result_compression": none("a result has at most 1 MB of JSON"),
    "result_backend_transport_options": change("remove it: results are in the Redis of the jobs"),
    "result_chord_join_timeout": none(BATCHES),
    "imports": change("name the modules: kiqcluster -r shop.tasks"),
    "include": change("name the modules: kiqcluster -r shop.tasks"),
    "worker_concurrency": change(f"kiqcluster -c THREADS, and a slot for each process ({page('guides/run')})"),
    "worker_prefetch_multiplier": change("remove it: a process takes what it can run"),
    "worker_max_tasks_per_child": change(f"set recycle.jobs ({page('guides/recycle')})"),
    "worker_max_memory_per_child": change(f"set recycle.memory ({page('guides/recycle')})"),
    "worker_pool": change(f"processes and threads: kiqcluster -c THREADS ({page('guides/run')})"),
    "worker_hijack_root_logger": change("remove it: the log of kiqcluster is configured by its flags"),
    "worker_send_task_events": change(f"scrape /metrics ({page('metrics')})"),
    "worker_disable_rate_limits": change("remove rate_limit of the tasks"),
    "worker_enable_remote_control": change(REMOTE),
    "worker_log_format": change(f"logs are lines of JSON on standard output ({page('guides/logs')})"),
    "worker_task_log_format": change(f"logs are lines of JSON on standard output ({page('guides/logs')})"),
    "worker_redirect_stdouts": change("remove it: print goes to standard output"),
    "worker_cancel_long_running_tasks_on_connection_loss": change(
        f"current_job().fenced ({page('guides/write_jobs')})"
    ),
    "worker_soft_shutdown_timeout": change(f"set stop.timeout, or kiqcluster -t SECONDS ({page('guides/run')})"),
    "redis_max_connections": change("remove it: a process opens what its threads need"),
    "security_key": none("use rediss:// and access lists of Redis; encrypt=True hides an argument"),
    "task_cls": none(f"declare functions; hooks are options ({page('guides/middleware')})"),
}

OLD_NAMES = {  # names before Celery 4, in lower case and without the prefix
    "always_eager": "task_always_eager",
    "acks_late": "task_acks_late",
    "ignore_result": "task_ignore_result",
    "default_queue": "task_default_queue",
    "routes": "task_routes",
    "queues": "task_queues",
    "task_result_expires": "result_expires",
    "annotations": "task_annotations",
    "beatschedule": "beat_schedule",
    "celerybeat_schedule": "beat_schedule",
    "celeryd_concurrency": "worker_concurrency",
    "celeryd_max_tasks_per_child": "worker_max_tasks_per_child",
    "celeryd_prefetch_multiplier": "worker_prefetch_multiplier",
    "celeryd_task_time_limit": "task_time_limit",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
}


def setting_name(name: str, prefix: str = "") -> str:
    """Return the present name of a setting: `CELERY_ALWAYS_EAGER` → `task_always_eager`."""
    lower = name.lower()
    if prefix and lower.startswith(prefix.lower() + "_"):
        lower = lower[len(prefix) + 1 :]
    return OLD_NAMES.get(lower, lower)
