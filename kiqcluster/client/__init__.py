"""What is written when a job is pushed, and when it is pushed again.

Read in this order:
router      the queue of a job class, by the routing rules
items       what the item of a push says, and what it lacks
draft       what a caller wants pushed
preparation  a draft becomes a job that is ready to be written: client middleware, checks, features
sending     a draft is prepared, and written to its destination
client      Client: pushes jobs that need no class here, by items
destination    where the jobs of a push go: Redis, an outbox, the memory of a test
writes      pushed jobs to Redis, many in one round trip
cron_jobs   what a cron entry enqueues
async_writes   pushes of coroutines: one thread writes for all of them
chains      jobs that run one after the other
handle      a job that was enqueued: waits for its result
results     what Redis keeps of a job that has ended, or has said how far it is
result_waits   waits of coroutines for results: one thread waits for all of them
store_service  such a thread: one of each kind for each Redis
reenqueue   a due entry, or a job retried by hand, becomes a job of a queue: client middleware again
"""
