"""What jobs are told from outside.

application_context   who enqueues a job, and for which request
cancel_marks          which jobs somebody has cancelled
"""
