"""Commands about batches: many jobs with one status.

batches  list, show, cancel, close, mark
"""
