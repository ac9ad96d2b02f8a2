"""Limits: what waits for a place, and places that running jobs take.

Read in this order:
parking   the lines of jobs that wait for a place in a limit, and overrides of limits
places    a running job takes and leaves places of concurrent limits
"""
