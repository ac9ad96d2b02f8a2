"""The boundary between the application's code and ours.

Read in this order:
calls        how code of the application is called, whatever it raises, and how its values are looked at
forms        whether code of the application can be called as we are going to call it
once         a fault that many jobs share is reported once a minute
process_state   what all threads share, and a job can change for the others
beat_guard   handlers of the application that a thread on which a beat depends would call
"""
