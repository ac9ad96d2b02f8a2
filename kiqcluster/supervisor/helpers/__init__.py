"""Processes of the supervisor that are not workers.

Read in this order:
helper_processes  which of them there are: starts, reaps and ends them
embedded_server   the guardian of `--embedded`, which runs the private server
watch             looks for changed files, for `--watch`
"""
