"""What a worker says of its jobs, to its supervisor and to Sidekiq's metrics page.

metrics_delta         the series that have changed, as frames for the supervisor
application_metrics   collectors of the application, asked by a thread of their own
execution_metrics     executions by minute, for Sidekiq's metrics page
throttle              how often something may be said
"""
