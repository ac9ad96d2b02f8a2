"""Sidekiq's formats and words.  Pure: nothing here does I/O or knows of processes.

Read in this order:
payload        the job hash: builds, checks, writes and reads it
ruby_entries   a job as an entry that Ruby can show and enqueue; all keys that are not ours carried on byte for byte
ruby_json      JSON as Ruby's json gem writes it, byte for byte; ruby_float: both forms of its floats
backtraces     error_backtrace of a payload, with Python's tracebacks in it
conversions    advice for values that JSON cannot represent
active_job     Rails' envelope around a job
compression    large arguments in GitLab's form
encryption     an encrypted argument: its form, and the keys
keys           every Redis key
selectors      the grammar of selectors: expressions over the attributes of job classes
routing        the forms of routing rules, and which one matches a class
schedules      cron expressions and their ticks; cron_entries: what is enqueued at them
queue_groups   the grammar of the command line's queue groups; the queues that a selector stands for
outcome        the possible results of a unit
"""
