"""Between the processes of one host: supervisor, workers, and the processes that jobs fork.

Read in this order:
frames          messages on the socketpair between supervisor and child
running_jobs    shared memory: which job each thread of a child runs, and since when
thread_stacks   the stacks of a child's threads, also while a job holds the interpreter lock
thread_frames   the frames of this process' own threads
local_http      one request to a supervisor on this host
negotiation     the format of metrics that a scraper gets
forks           what a process that a job has forked must not do
signal_pipe     signals as bytes in a pipe, for a main loop
operating_system  what Linux has and macOS lacks
site_hooks      agents that Python starts before any program, and threads of others (no_hooks: no agent)
exits           how a process ends
stdio           standard input, output and error
console         runs a click command to its exit code
"""
