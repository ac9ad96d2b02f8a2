"""Signals and packages beside Celery: what each becomes.  Data for the checker; see catalogue.py."""

from __future__ import annotations

from collections.abc import Mapping

from kiqcluster.contrib.celery.catalogue import EVENTS, QUEUES, Entry, change, none

__all__ = ["PACKAGES", "SIGNALS"]

HANDLER = "use @kiqcluster.error_handler (docs/guides/middleware.md)"
AROUND = "write a server middleware: code around each run (docs/guides/middleware.md)"
PUSHED = "write a client middleware: it sees each push (docs/guides/middleware.md)"

SIGNALS: Mapping[str, Entry] = {
    "task_failure": change(HANDLER + ", or @kiqcluster.death_handler for jobs that will not run again"),
    "task_internal_error": change(HANDLER),
    "task_retry": change(HANDLER),
    "task_success": change(AROUND),
    "task_prerun": change(AROUND),
    "task_postrun": change(AROUND),
    "task_received": none("a process takes a job when it can run it; " + AROUND),
    "task_revoked": none("kiqctl dropped lists cancelled jobs (docs/reference/kiqctl/index.md)"),
    "task_rejected": change("a job that cannot run is in the dead set: @kiqcluster.death_handler"),
    "task_unknown": change("a job of an unknown class waits, and is then dead: @kiqcluster.death_handler"),
    "before_task_publish": change(PUSHED),
    "after_task_publish": change(PUSHED),
    "task_sent": change(PUSHED),
    "worker_init": change('use @kiqcluster.on("startup")'),
    "worker_process_init": change('use @kiqcluster.on("fork")'),
    "worker_ready": change('use @kiqcluster.on("ready")'),
    "worker_shutting_down": change('use @kiqcluster.on("quiet")'),
    "worker_shutdown": change('use @kiqcluster.on("shutdown")'),
    "worker_process_shutdown": change('use @kiqcluster.on("exit")'),
    "heartbeat_sent": change('use @kiqcluster.on("beat")'),
    "setup_logging": change("configure logging when the application is imported (docs/guides/logs.md)"),
    "after_setup_logger": change("configure logging when the application is imported (docs/guides/logs.md)"),
    "after_setup_task_logger": change("configure logging when the application is imported (docs/guides/logs.md)"),
    "beat_init": none(EVENTS),
    "beat_embedded_init": none(EVENTS),
    "celeryd_init": change('use @kiqcluster.on("startup")'),
    "celeryd_after_setup": change('use @kiqcluster.on("startup")'),
    "import_modules": change("kiqcluster -r names the modules"),
    "user_preload_options": none("flags are those of kiqcluster (docs/guides/run.md)"),
    "eventlet_pool_started": none("jobs run in threads, or as coroutines (docs/guides/async.md)"),
}

PACKAGES: Mapping[str, Entry] = {  # packages beside Celery
    "kombu": none(QUEUES),
    "billiard": none("a job that starts processes uses multiprocessing with spawn (docs/guides/processes_in_jobs.md)"),
    "flower": change("kiqctl top, the web pages and /metrics (docs/web.md)"),
    "django_celery_beat": change("CronSet().add, or the web pages, for entries that people edit (docs/guides/cron.md)"),
    "django_celery_results": change("kiqcluster.tasks.history keeps tasks in a database (docs/guides/tasks.md)"),
    "celery_once": change("declare the job with @kiqcluster.job(deduplicate=…) (docs/guides/deduplicate.md)"),
    "celery_singleton": change("declare the job with @kiqcluster.job(deduplicate=…) (docs/guides/deduplicate.md)"),
    "pytest_celery": change("use the fixtures kiq_fake, kiq_inline and kiq_cluster (docs/guides/testing.md)"),
}
