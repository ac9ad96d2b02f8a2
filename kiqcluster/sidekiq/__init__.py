"""Sidekiq's formats and words.  Pure: nothing here does I/O or knows of processes.

Read in this order:
payload        the job hash: what is in it, how it is checked, written and read
ruby_json      JSON as Ruby's json gem writes it, byte for byte; ruby_float: both forms of its floats
conversions    what to pass instead of a value that JSON cannot hold
active_job     Rails' envelope around a job
keys           every Redis key
queue_groups   the grammar of the command line's queue groups
outcome        what may become of a unit
"""
