"""Words: names that people know from elsewhere, what each is called here, and where its page is.  Imports nothing.

WORDS    (place, word) → Word: the form to write, its page, and who calls it so
page     where a page of the documentation is, for the end of a message
hint_of  the sentence of an error for a word, None for one that nobody uses
answers  a class whose objects answer such a name with its hint

All checks of options, settings, variables, flags, commands, selectors and attributes read this table, so that an
unknown name is answered by its counterpart, not by the name that is spelt most like it.  A test looks for each target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, NoReturn, TypeVar

__all__ = ["PLACES", "WORDS", "Foreign", "Place", "Word", "answers", "hint_of", "page"]

C = TypeVar("C", bound=type)

Place = Literal["option", "setting", "flag", "command", "selector", "job", "context", "name"]
PLACES: Mapping[Place, str] = {
    "option": "options of a job, also in set(…) and cron entries",
    "setting": "settings; as KIQ_NAME also variables",
    "flag": "flags of kiqcluster",
    "command": "commands of kiqctl",
    "selector": "attributes in a selector",
    "job": "attributes of a job class, of a function with @job, and of self in perform",
    "context": "attributes of current_job()",
    "name": "names of the package kiqcluster",
}


class Word(NamedTuple):
    """A counterpart.  form: what to write.  target: our name in it, "" for none.  page: below docs/.  origin: whose."""

    form: str
    target: str
    page: str
    origin: str


NOBODYS = ("other systems", "former")  # origins that no sentence names: several systems, and ourselves
# place, whose words they are, our name, what to write ("" for that name), page, the words
ROWS: tuple[tuple[Place, str, str, str, str, str], ...] = (
    ("option", "other systems", "retry", "", "guides/retries", "retries max_retries retry_count retry_limit attempts"),
    ("option", "other systems", "queue", "", "reference/job_options", "queue_name routing_key exchange channel"),
    ("option", "other systems", "tags", "", "reference/job_options", "tag labels"),
    ("option", "other systems", "wait_replicas", "", "reference/job_options", "replicas"),
    ("option", "other systems", "queue", "queue=…; urgent jobs get a queue of their own, with a larger weight",
     "guides/queue_groups", "priority"),
    ("option", "Celery", "timeout_hard", "", "guides/timeouts", "time_limit"),
    ("option", "Celery", "timeout", "", "guides/timeouts", "soft_time_limit"),
    ("option", "RQ", "timeout_hard", "", "guides/timeouts", "job_timeout"),
    ("option", "Celery", "expires_in", "", "guides/expire", "expires"),
    ("option", "RQ", "expires_in", "", "guides/expire", "ttl"),
    ("option", "Dramatiq", "expires_in", "", "guides/expire", "max_age"),
    ("option", "Celery", "retry_in", "retry_in=…, a function of count, error and payload", "guides/retries",
     "default_retry_delay autoretry_for retry_backoff retry_backoff_max retry_jitter retry_kwargs"),
    ("option", "Dramatiq", "retry_in", "retry_in=…, a function of count, error and payload", "guides/retries",
     "min_backoff max_backoff retry_when"),
    ("option", "Huey", "retry_in", "retry_in=…, a function of count, error and payload", "guides/retries",
     "retry_delay"),
    ("option", "Sidekiq", "retry_in", "", "guides/retries", "sidekiq_retry_in"),
    ("option", "Sidekiq", "retries_exhausted", "", "guides/retries", "sidekiq_retries_exhausted"),
    ("option", "Dramatiq", "retries_exhausted", "", "guides/retries", "on_retry_exhausted"),
    ("option", "RQ", "retries_exhausted", "", "guides/retries", "on_failure"),
    ("option", "Dramatiq", "RetryError", "raise RetryError", "guides/retry_error", "throws"),
    ("option", "Celery", "result_ttl", "result_ttl=…; without it no result is kept", "guides/results",
     "ignore_result store_result store_results result_expires"),
    ("option", "Celery", "current_job", "current_job(), called in the job", "guides/write_jobs", "bind base"),
    ("option", "Django", "current_job", "current_job(), called in the job", "guides/write_jobs", "takes_context"),
    ("option", "Celery", "", "nothing: a job leaves Redis when it has ended", "reliability",
     "acks_late reject_on_worker_lost acks_on_failure_or_timeout"),
    ("option", "Dramatiq", "name", "", "reference/job_options", "actor_name"),
    ("option", "other systems", "perform_in", "perform_in(seconds, …)", "guides/enqueue", "delay countdown wait"),
    ("option", "other systems", "perform_at", "perform_at(time, …)", "guides/enqueue", "eta at run_after wait_until"),
    ("option", "RQ", "then", "first.then(second)", "guides/chains", "depends_on on_success link"),
    ("option", "Sidekiq", "deduplicate", "", "guides/deduplicate", "unique_until lock unique"),
    ("option", "Sidekiq", "deduplicate_ttl", "", "guides/deduplicate", "unique_for lock_ttl"),
    ("option", "GitLab", "reschedule_once", "", "guides/deduplicate", "if_deduplicated"),
    ("option", "GitLab", "deduplicate_scheduled", "", "guides/deduplicate", "including_scheduled"),
    ("option", "GitLab", "version", "", "guides/versions", "job_version"),
    ("option", "GitLab", "policies", "policy=policies.health_signal(…)", "guides/policies",
     "defer_on_database_health_signal"),
    ("option", "GitLab", "policy", "", "guides/policies", "pause_control"),
    ("option", "GitLab", "feature_category", "", "guides/attributes", "category"),
    ("option", "GitLab", "resource_boundary", "", "guides/attributes", "boundary worker_resource_boundary"),
    ("option", "GitLab", "external_dependencies", "", "guides/attributes",
     "has_external_dependencies worker_has_external_dependencies"),
    ("option", "GitLab", "batches", "kiqcluster.batches.Batch: it counts its jobs", "guides/batches", "use_task_event"),
    # settings
    ("setting", "Celery", "redis", "", "reference/settings", "broker_url broker result_backend backend"),
    ("setting", "other systems", "redis", "", "reference/settings", "redis_url url"),
    ("setting", "Celery", "concurrency", "", "reference/settings", "worker_concurrency threads workers_per_process"),
    ("setting", "other systems", "groups", "groups=[…]: a worker process for each", "guides/queue_groups",
     "processes workers worker_processes"),
    ("setting", "Celery", "recycle.jobs", "", "guides/recycle", "worker_max_tasks_per_child max_tasks_per_child"),
    ("setting", "Celery", "recycle.memory", "recycle.memory, with a unit: 600MB", "guides/recycle",
     "worker_max_memory_per_child max_memory_per_child"),
    ("setting", "other systems", "log.level", "", "guides/logs", "loglevel verbose logging_level"),
    ("setting", "other systems", "require", "", "guides/run", "app include imports"),
    ("setting", "other systems", "watch", "", "guides/run", "reload"),
    ("setting", "other systems", "stop.timeout", "", "guides/run",
     "graceful_timeout shutdown_timeout soft_shutdown_timeout"),
    ("setting", "other systems", "drain", "", "guides/modes", "burst"),
    ("setting", "Celery", "health.recover_after", "health.recover_after: a job of a silent process runs again then",
     "concepts/recovery", "visibility_timeout"),
    ("setting", "Celery", "cron", "", "guides/cron", "beat_schedule"),
    ("setting", "Celery", "tz", "tz=… of a cron entry", "guides/cron", "timezone"),
    ("setting", "Celery", "routing", "", "guides/route", "task_routes"),
    ("setting", "Sidekiq", "average_scheduled_poll_interval", "", "reference/settings",
     "poll_interval_average poll_interval"),
    ("setting", "Sidekiq", "dead.timeout", "", "reference/settings", "dead_timeout_in_seconds"),
    ("setting", "former", "log.jobs", "", "guides/logs", "job_log"),
    ("setting", "former", "size_limiter.compression_threshold",
     "size_limiter.compression_threshold, with a unit: 100kB", "guides/large_arguments",
     "size_limiter_compression_threshold_bytes"),
    ("setting", "former", "size_limiter.limit", "size_limiter.limit, with a unit: 5MB", "guides/large_arguments",
     "size_limiter_limit_bytes"),
    ("setting", "former", "recycle.jobs", "", "guides/recycle", "max_jobs"),
    ("setting", "former", "recycle.memory", "recycle.memory, with a unit: 600MB", "guides/recycle", "max_rss"),
    ("setting", "former", "recycle.memory_hard", "recycle.memory_hard, with a unit: 600MB", "guides/recycle",
     "max_rss_hard"),
    ("setting", "former", "roll.bake_time", "", "concepts/roll", "bake_time"),
    ("setting", "former", "roll.min_serving", "", "guides/recycle", "min_serving"),
    ("setting", "former", "health.boot_timeout", "", "guides/operate", "boot_timeout"),
    ("setting", "former", "health.silence_timeout", "", "concepts/supervisor_and_slots", "silence_timeout"),
    ("setting", "former", "health.recover_after", "", "concepts/recovery", "recover_after"),
    ("setting", "former", "health.respawn_burst", "", "reference/settings", "respawn_burst"),
    ("setting", "former", "health.ready_quorum", "", "guides/operate", "ready_quorum"),
    ("setting", "former", "stop.timeout", "", "guides/run", "timeout"),
    ("setting", "former", "stop.platform_timeout", "", "guides/deploy", "platform_timeout"),
    # flags of kiqcluster
    ("flag", "former", "--set", "--set recycle.jobs=N", "guides/recycle", "--max-jobs"),
    ("flag", "former", "--set", "--set recycle.memory=600MB", "guides/recycle", "--max-rss"),
    ("flag", "former", "--set", "--set log.jobs=WORD", "guides/logs", "--job-log"),
    ("flag", "Celery", "--require", "-r APP", "guides/run", "--app -A"),
    ("flag", "Celery", "--queue", "-q NAME, or a group: kiqcluster -r APP a,b", "guides/queue_groups", "-Q --queues"),
    ("flag", "Celery", "--log-level", "", "guides/logs", "--loglevel -l"),
    ("flag", "Celery", "--set", "--set recycle.jobs=N", "guides/recycle", "--max-tasks-per-child"),
    ("flag", "Celery", "--concurrency", "-c N: jobs run in threads of each process", "guides/run",
     "--pool --threads --autoscale"),
    ("flag", "other systems", "--queue", "a group for each process: kiqcluster -r APP a b", "guides/queue_groups",
     "--processes -p --workers -w"),
    ("flag", "Celery", "", "nothing: workers enqueue the cron entries", "guides/cron", "--beat -B"),
    ("flag", "RQ", "--drain", "", "guides/modes", "--burst -b"),
    ("flag", "other systems", "--watch", "", "guides/run", "--reload --autoreload"),
    ("flag", "Sidekiq", "--log-level", "--log-level debug", "guides/logs", "--verbose -v"),
    ("flag", "GitLab", "", "nothing: a death is seen at once", "concepts/recovery", "--interval -i"),
    # commands of kiqctl
    ("command", "Celery", "busy", "", "reference/kiqctl/index", "inspect active running"),
    ("command", "Celery", "ps", "", "reference/kiqctl/index", "control status workers worker processes clusters"),
    ("command", "Celery", "queues", "queues clear", "reference/kiqctl/index", "purge clear empty"),
    ("command", "RQ", "stats", "", "reference/kiqctl/index", "info"),
    ("command", "other systems", "queues", "", "reference/kiqctl/index", "queue"),
    ("command", "other systems", "queues", "queues pause", "reference/kiqctl/index", "pause suspend"),
    ("command", "other systems", "queues", "queues resume", "reference/kiqctl/index", "unpause"),
    ("command", "other systems", "jobs", "", "reference/kiqctl/index", "job"),
    ("command", "other systems", "batches", "", "reference/kiqctl/index", "batch"),
    ("command", "former", "batches", "", "reference/kiqctl/index", "tasks task"),
    ("command", "other systems", "retries", "", "reference/kiqctl/index", "failed retrying"),
    ("command", "RQ", "dead", "dead retry", "reference/kiqctl/index", "requeue"),
    ("command", "other systems", "retries", "retries retry", "reference/kiqctl/index", "retry"),
    ("command", "Sidekiq", "dead", "", "reference/kiqctl/index", "morgue"),
    ("command", "other systems", "scheduled", "", "reference/kiqctl/index", "schedule"),
    ("command", "Celery", "cron", "", "reference/kiqctl/index", "beat periodic"),
    ("command", "Celery", "web", "", "reference/kiqctl/index", "flower dashboard ui"),
    ("command", "Celery", "cancel", "", "reference/kiqctl/index", "revoke"),
    ("command", "other systems", "limits", "", "reference/kiqctl/index", "limit"),
    ("command", "other systems", "strike", "", "reference/kiqctl/index", "strikes"),
    ("command", "other systems", "enqueue", "", "reference/kiqctl/index", "call push run send"),
    ("command", "other systems", "roll", "", "reference/kiqctl/index", "restart"),
    ("command", "other systems", "signal", "signal TERM", "reference/kiqctl/index", "stop shutdown"),
    # attributes in selectors
    ("selector", "other systems", "worker_name", "", "guides/attributes", "class job worker"),
    ("selector", "other systems", "queue_namespace", "", "guides/attributes", "namespace"),
    ("selector", "other systems", "feature_category", "", "guides/attributes", "category"),
    ("selector", "other systems", "resource_boundary", "", "guides/attributes", "boundary"),
    ("selector", "other systems", "urgency", "", "guides/attributes", "priority"),
    ("selector", "other systems", "tags", "", "guides/attributes", "tag"),
    # attributes of jobs
    ("job", "Celery", "perform_async", "perform_async(…); Celery's names are in kiqcluster.contrib.celery",
     "guides/enqueue", "delay apply_async"),
    ("job", "Celery", "then", "first.then(second), or a batch with callbacks", "guides/chains",
     "s si signature subtask chain"),
    ("job", "Celery", "perform_inline", "perform_inline(…)", "guides/enqueue", "apply call_local perform_now"),
    ("job", "Dramatiq", "perform_async", "perform_async(…)", "guides/enqueue", "send send_with_options"),
    ("job", "Rails", "perform_async", "perform_async(…)", "guides/enqueue", "perform_later deliver_later"),
    ("job", "Rails", "perform_at", "perform_at(time, …)", "guides/enqueue", "wait_until enqueue_at"),
    ("job", "RQ", "perform_in", "perform_in(seconds, …)", "guides/enqueue", "enqueue_in schedule"),
    ("job", "Sidekiq", "current_job", "current_job().jid", "guides/write_jobs", "jid provider_job_id"),
    ("job", "Celery", "current_job", "current_job(), called in the job", "guides/write_jobs", "request"),
    ("job", "Sidekiq", "current_job", "logging.getLogger(__name__), or current_job().log(text)", "guides/logs",
     "logger"),
    # attributes of current_job()
    ("context", "other systems", "jid", "", "guides/write_jobs", "id job_id task_id"),
    ("context", "other systems", "payload", "payload[\"args\"]", "guides/write_jobs", "args arguments kwargs"),
    ("context", "other systems", "payload", "payload.get(\"retry_count\")", "guides/write_jobs",
     "retries retry_count attempt attempts executions"),
    ("context", "RQ", "meta", "", "guides/context", "headers"),
    # names of the package
    ("name", "GitLab", "Job", "class MyJob(kiqcluster.Job)", "guides/write_jobs", "ApplicationWorker"),
    ("name", "Sidekiq", "Job", "class MyJob(kiqcluster.Job)", "guides/write_jobs", "Worker Sidekiq ApplicationJob"),
    ("name", "other systems", "job", "@kiqcluster.job", "guides/write_jobs", "actor Huey RedisHuey"),
    ("name", "Celery", "contrib", "kiqcluster.contrib.celery", "guides/migrate_from_celery",
     "Celery shared_task chain group chord crontab"),
    ("name", "RQ", "current_job", "kiqcluster.current_job", "guides/write_jobs", "get_current_job"),
    ("name", "Sidekiq", "batches", "kiqcluster.batches.Batch", "guides/batches", "Batch"),
    ("name", "former", "batches", "kiqcluster.batches.Batch", "guides/batches", "tasks Task"),
    ("name", "former", "batches", "kiqcluster.batches.current_batch", "guides/batches", "current_task"),
    ("name", "Celery", "RetryError", "kiqcluster.RetryError", "guides/retry_error", "Retry"),
    ("name", "Sidekiq", "limits", "kiqcluster.limits", "guides/limit_rates", "Limiter"),
)  # fmt: skip


def _words() -> Iterator[tuple[tuple[Place, str], Word]]:
    for place, origin, target, form, page, names in ROWS:
        for name in names.split():
            yield (place, name), Word(form or target, target, page, origin)


WORDS: Mapping[tuple[Place, str], Word] = dict(_words())


def page(name: str) -> str:
    """Return where a page of the documentation is: `page("guides/redis")`.

    A wheel has no pages, and there is no public site yet (ADR 55): the source distribution of the release has them.
    """
    return f"docs/{name}.md in the sdist"


def hint_of(place: Place, word: str, name: str = "") -> str | None:
    """Return `time_limit of Celery is here: timeout_hard (…)` with the page, None for no word of the table.

    name: another spelling of our name, such as that of a variable.
    """
    found = WORDS.get((place, word))
    if found is None:
        return None
    owner = word if found.origin in NOBODYS else f"{word} of {found.origin}"
    form = found.form.replace(found.target, name) if name else found.form
    return f"{owner} is here: {form} ({page(found.page)})"


class Foreign:
    """A name that a class and its objects do not have: who asks for it is told what it is called here."""

    def __init__(self, place: Place, word: str) -> None:
        self._place, self._word = place, word

    def __get__(self, _: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__qualname__} has no {self._word}: {hint_of(self._place, self._word)}")


def answers(place: Place) -> Callable[[C], C]:
    """Return a class decorator: the class and its objects answer the words of a place with their hints.

    They still lack these attributes: hasattr says so, and a subclass may have one of its own.
    """

    def decorate(cls: C) -> C:
        for where, word in WORDS:
            if where == place:
                setattr(cls, word, Foreign(place, word))
        return cls

    return decorate
