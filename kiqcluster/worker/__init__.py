"""The worker process: runs the jobs of one queue group.

Threads, from birth to death:
main         child.py                  signals, the socket to the supervisor, one beat a second
manager      run/manager.py            wakeups of idle queues, overdue outcomes, dead processors
processor/N  run/processor.py          take a unit → execute → outcome; flushes and reserves when nothing is left
async        run/async_processor.py    the event loop of async jobs
poller       maintenance/poller.py     due entries of the schedule and retry set → queues
heartbeat    heartbeat.py              Sidekiq's process registry, remote signals, new queues
recovery     maintenance/recovery.py   units of dead processes → queues
job log      run/job_log.py            lines of jobs that have ended
progress     maintenance/progress.py   what running jobs say of their progress; starts with the first one that does

Read in this order: child with child_spec and redis_wait, launcher with leaving, parts, run/ (manager, processor,
execution, endings, retry), fetch/ (fetch, coordinator).  Then maintenance/ (poller, recovery), heartbeat with
process_entry, fleet_checks and interventions, inbox, identity, memory, metrics/.  Last orphan_alarm, descriptors and
exit_handlers: faults that a process meets inside.
"""
