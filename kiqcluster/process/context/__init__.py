"""What running jobs are told from outside.

cancel_marks   which jobs somebody has cancelled
"""
