"""From a unit to its outcome.

Read in this order:
manager      the processors of a worker, and what is due once a second
processors   all threads that run jobs: what runs now, and the outcomes at a stop
processor    one thread: take a unit, execute it, hand in the outcome
async_processor   async jobs, many at once on one event loop
execution    payload → job → run → outcome
read_job     a job as its unit says it, and its bytes with changes
feature_rows what features say of a unit before it begins, and when it has ended
begins       one round trip for many begins
job_hooks    what the application says of a failed job, and is told
run_report   logs and counts what became of units
job_run      one unit while a processor runs it; its job, and what that sees of itself
endings      how a run ended → outcome; asks the job's hooks, and writes nothing
timed_out    units of a process that was killed because they ran too long
retry        what a failure writes into the payload, and when the job is tried again
job_log      the lines of jobs that have ended
job_lines    the fields of all lines of a job, where log.jobs is full
"""
