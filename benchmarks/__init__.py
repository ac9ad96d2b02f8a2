"""Benchmarks: kiqcluster beside its peers, in the same run, on the same Redis.  `make bench` runs them all.

__main__   the command: which workloads, peers and rounds; interleaves them
workloads  the table of what is measured · measure: what these share
           throughput, conduct, guarantees, batches, cron, export, web, fleet, typed_arguments: one function
           for each
targets    what a figure has to reach, by issue 3 · report: the tables, ratios first
peers      who takes part, and how each is started · apps/, ruby/: their jobs
stage      the server, workers and pusher of a run · pusher: the program that enqueues
server     the Redis of a run, its counters, and a slow way to it · processes: CPU and memory of a process tree
ledger     what jobs tell of themselves, in a file outside Redis

How the figures are made, and how to read them: docs/reference/performance.md.
"""
