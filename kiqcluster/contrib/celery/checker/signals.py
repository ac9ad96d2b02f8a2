"""Signals and packages beside Celery: what each becomes.  Data for the checker; see catalogue.py."""

from __future__ import annotations

from collections.abc import Mapping

from kiqcluster.contrib.celery.catalogue import EVENTS, QUEUES, Entry, change, none
from kiqcluster.words import page

__all__ = ["PACKAGES", "SIGNALS"]

HANDLER = f"use @kiqcluster.error_handler ({page('guides/middleware')})"
AROUND = f"write a server middleware: code around each run ({page('guides/middleware')})"
PUSHED = f"write a client middleware: it sees each push ({page('guides/middleware')})"

SIGNALS: Mapping[str, Entry] = {
    "task_failure": change(HANDLER + ", or @kiqcluster.death_handler for jobs that will not run again"),
    "task_internal_error": change(HANDLER),
    "task_retry": change(HANDLER),
    "task_success": change(AROUND),
    "task_prerun": change(AROUND),
    "task_postrun": change(AROUND),
    "task_received": none("a process takes a job when it can run it; " + AROUND),
    "task_revoked": none(f"kiqctl dropped lists cancelled jobs ({page('reference/kiqctl/index')})"),
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
    "setup_logging": change(f"configure logging when the application is imported ({page('guides/logs')})"),
    "after_setup_logger": change(f"configure logging when the application is imported ({page('guides/logs')})"),
    "after_setup_task_logger": change(f"configure logging when the application is imported ({page('guides/logs')})"),
    "beat_init": none(EVENTS),
    "beat_embedded_init": none(EVENTS),
    "celeryd_init": change('use @kiqcluster.on("startup")'),
    "celeryd_after_setup": change('use @kiqcluster.on("startup")'),
    "import_modules": change("kiqcluster -r names the modules"),
    "user_preload_options": none(f"flags are those of kiqcluster ({page('guides/run')})"),
    "eventlet_pool_started": none(f"jobs run in threads, or as coroutines ({page('guides/async')})"),
}

PACKAGES: Mapping[str, Entry] = {  # packages beside Celery
    "kombu": none(QUEUES),
    "billiard": none(
        f"a job that starts processes uses multiprocessing with spawn ({page('guides/processes_in_jobs')})"
    ),
    "flower": change(f"kiqctl top, the web pages and /metrics ({page('web')})"),
    "django_celery_beat": change(
        f"CronSet().add, or the web pages, for entries that people edit ({page('guides/cron')})"
    ),
    "django_celery_results": change(
        f"kiqcluster.batches.history keeps batches in a database ({page('guides/batches')})"
    ),
    "celery_once": change(f"declare the job with @kiqcluster.job(deduplicate=…) ({page('guides/deduplicate')})"),
    "celery_singleton": change(f"declare the job with @kiqcluster.job(deduplicate=…) ({page('guides/deduplicate')})"),
    "pytest_celery": change(f"use the fixtures kiq_fake, kiq_inline and kiq_cluster ({page('guides/testing')})"),
}
