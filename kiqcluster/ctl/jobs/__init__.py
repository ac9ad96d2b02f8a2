"""Commands about jobs, wherever they are.

enqueue           a job of any class
queues, jobs      what waits where, and which jobs
limits            concurrency limits: places, parked jobs, overrides
entry_commands    retries, scheduled, dead, dropped; job_sets: the table of these sets
locks             which jobs hold the locks of deduplication
migrate           jobs of a class or queue to another queue
routed_migration  jobs to where they are routed, also in another shard
cron              cron entries: list, show, enqueue, enable, disable; those of sidekiq-cron
strike            which jobs are deferred or dropped for a while
stats             counters and sizes
selection         which jobs a filter means; bulk: many at a time, reported truly
locate            which queues there are, and where a job is; dead_set_limits: how many older dead jobs a kill drops
"""
