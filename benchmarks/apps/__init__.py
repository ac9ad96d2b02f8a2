"""The jobs, one file per peer, written as its documentation writes jobs; what pusher.App asks for beside them.

jobs.py holds their bodies, the same for all whose jobs are plain functions.
"""
