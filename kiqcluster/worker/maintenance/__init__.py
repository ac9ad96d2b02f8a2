"""What each worker does for the whole fleet, so that no process has to be elected.

Read in this order:
duties            what is due in the fleet, and which process does it: nothing of this is kept in a process
poller            due entries of the schedule and retry set → queues; due_times: the wakeups between two looks;
                  poller_inbox: what other threads tell it
cron_ticks        the ticks of cron entries → jobs in queues; cron_sync: what this application declares
outside_sources   jobs in databases → queues, a thread for each source
recovery          units of dead processes → queues
membership_beat   this process' beat, and who is silent; failure_detector: whether this process may recover them
limit_upkeep      the threads of the fleet, and the lines of concurrency limits
queue_names       which queues this worker serves
job_watch         a look at the running jobs once a second; progress: what they say of their progress
"""
