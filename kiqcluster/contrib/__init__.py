"""Integrations with other libraries; each needs the extra of its name, celery, outbox and statsd none.

celery/      Celery's names on kiqcluster, and a checker of code bases that use Celery
django/      Django: its tasks framework, manage.py, transactions, the web pages with its users
flask        Flask: an application context around each run, settings, commands
otel         OpenTelemetry: a span for each push and each run
sentry       Sentry: errors of jobs, a transaction for each run, a span for each push, check-ins of cron
statsd       StatsD and Datadog: counts and times of runs; the application gives it a client
job_names    by which name they show a job
pyinstaller/ PyInstaller: what a frozen program needs beside modules
run_errors   what otel, sentry and statsd share: errors that are no failures, and errors of their own
sqlalchemy/  jobs in the transaction that enqueues them, runs that take effect once, sessions of jobs
outbox/      what the outboxes share
"""
