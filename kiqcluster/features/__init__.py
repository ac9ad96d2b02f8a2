"""Features: guarantees about jobs beyond the engine's own, one file each, with a client half and a server half.

hooks/         the points of a push and a run at which features take part; which features a job uses
stacks         which features are in force, in order, apart from the application's own middleware
expiry         `expires_in`: a job that has not begun in time is dropped
versions       payloads that are newer than the class of this process wait
cancellation   `kiqcluster.cancel`: a job of a cancelled id does not begin
strikes        `kiqctl strike`: an operator defers or drops some jobs for a while
policies       `policy`: code of the application decides before each run: run, defer or drop
batches        jobs of a batch: their status, from the push to the end
limits/        jobs wait while others run, or have run: `rate_limit`, `concurrency_limit`
cron           `cron`: jobs on a schedule; no feature of the stacks, which see their pushes
timeouts       `timeout`, `timeout_hard`: for how long a job may run
iteration      iterable jobs: where one is, written in the step that ends its run
results        `result_ttl`: what a job returned is kept for whoever waits for it
history        the events of a job, for Django's tasks: from the push to the end
progress       how far a running job has come; asked of no job by its class
chains         the next job of a chain is pushed in the step that ends the one before it
payload/       what a push adds to its payload: context, size limiter, encryption
deduplication  equal pushes are dropped while a job waits or runs; equal jobs run one after the other
"""
