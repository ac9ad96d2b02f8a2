"""Pages: one module for each group of them, with PAGES and ACTIONS; `routing.table` finds every module here.

dashboard    /: what goes on now, and went on lately
queues       /queues, /queues/<name>: what waits, who listens; pause, resume, clear; delete and move jobs
sets         /scheduled, /retries, /dead, /dropped and their entries: filter, act on those selected
set_kinds    the table of sets, and that of what is done to their entries
filters      which jobs of a set are shown; where a page begins
bulk         /bulk, /bulk/<id>: something is done to all that match, in the background
export       /<set>/export: jobs as JSON lines
jobs         /jobs/<jid>: one job, wherever it is, and its course; cancel
classes      /classes and one of them: runs, failures, times, deploys
cron         /cron and one entry: ticks, latest jobs; enqueue now, disable, enable, remove
batches      /batches and one of them: progress, failed rows, children; cancel, close
limits       /limits, their lines, rates, locks: override, reset, delete parked jobs, release a lock
fleet/       clusters and processes, running jobs, routes, strikes
entries      the keys by which forms name jobs of sets and queues
preferences  language and theme
"""
