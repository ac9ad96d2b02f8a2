"""Modules that every kind of process uses.

Read in this order:
runtime          Setup (declarations of the application), Runtime (shared objects of a worker)
job_context      the job that runs here, as the application sees it
context/         what jobs are told from outside
delivery         to which Redis pushes go, or which receiver takes them in tests
middleware       the chain of middleware, client and server
in_force         a value of the whole process that tests replace
events           events with fields, and the hooks of the application
logs/            log lines from events, their texts, and the output of lines
config           declares each setting once; config_sources: flags, environment and files give the values;
                 config_checks: which values cannot work
clock            the time, which code receives as an argument; version: alone in a file, for the build
service          a thread that can be stopped and waited for
boundary/        how our code calls the application's, and in which threads it does not
tallies          counters of the processors of a worker; metrics: the series of its jobs
backoff          delays before another try; durations: how people write them
"""
