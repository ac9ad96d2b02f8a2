"""Limits: features that hold jobs back while others run, or have run.

concurrency_limit   `concurrency_limit`: at most so many jobs of a class or key run at once
rate_limits         `rate_limit`: at most so many starts in a period
"""
