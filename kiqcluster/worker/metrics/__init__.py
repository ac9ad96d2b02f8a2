"""The metrics of a worker's jobs, for its supervisor and for Sidekiq's metrics page.

worker_metrics        all series of a worker
metrics_delta         the series that have changed, as frames for the supervisor
application_metrics   collectors of the application, asked by a thread of their own
execution_metrics     executions by minute, for Sidekiq's metrics page
overflow              what a full dead set drops
throttle              a limit to the time that repeated work takes
"""
