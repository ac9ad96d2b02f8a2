"""Log lines.

Read in this order:
log          log lines from events and from logging, in two formats; the level of a job
wording      level and text of each event
handlers     the output of lines, with a reader that is slow or gone
own_logger   kiqcluster's logger, which code of the application does not silence by accident
job_logger   a class of the application around every run, as Sidekiq's job_logger
"""
