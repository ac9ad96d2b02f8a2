"""From a unit to its outcome.

Read in this order:
manager      the processors of a worker, and what is due once a second
processor    one thread: take a unit, execute it, hand in the outcome
execution    payload → job → run → outcome
job_run      one unit while a processor runs it
decision     how a run ended → outcome; pure
timed_out    units of a process that was killed because they ran too long
retry        what a failure writes into the payload, and when the job is tried again
job_log      the lines of jobs that have ended
overflow     what a full dead set drops
"""
