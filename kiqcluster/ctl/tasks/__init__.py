"""Commands about tasks: many jobs with one status.

tasks    list, show, cancel, close, mark
"""
