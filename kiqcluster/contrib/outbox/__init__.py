"""Outbox and inbox: what the modules for SQLAlchemy and Django share.  No SQL, and no library.

Read in this order:
verbs    `outbox(…, job)`: the verbs of a job, whose pushes become rows
rows     a job as a row, and back
relay    rows → Redis: which rows go, which stay and why; the source that workers serve (Setup.due_sources)
sender   the same for rows that this process has just committed, in a thread
inbox    the key of `once`
metrics  rows that wait, as gauges
__main__ relay, status and retry for hosts without workers
"""
