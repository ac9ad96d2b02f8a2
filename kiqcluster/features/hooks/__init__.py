"""Hooks: where features take part in a push and in a run, and which features a job uses.

push_hooks   the points of a push
run_hooks    the points of a run
job_start    a run that starts, as a feature sees it; job_end: one that has ended
known_jobs   which features a job uses, found once for each class
"""
