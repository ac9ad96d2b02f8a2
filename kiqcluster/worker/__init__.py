"""The worker process: runs the jobs of one queue group.

Threads, from birth to death:
main         child.py           signals, the socket to the supervisor, one beat a second
manager      run/manager.py     wakeups of idle queues, overdue outcomes, dead processors
processor/N  run/processor.py   take a unit → execute → outcome; flushes outcomes and reserves when nothing is left
poller       poller.py          due entries of the schedule and retry set → queues
heartbeat    heartbeat.py       Sidekiq's process registry, remote signals, new queues
recovery     recovery.py        units of dead processes → queues
job log      run/job_log.py     lines of jobs that have ended

Read in this order: child with redis_wait, launcher, run/ (manager, processor, execution, decision, retry), fetch/
(fetch, coordinator).  Then poller with due_times and limit_upkeep, heartbeat with process_entry and fleet_checks,
recovery with failure_detector, inbox, identity, memory, metrics/.  Last orphan_alarm, descriptors and exit_handlers:
faults that a process meets inside.
"""
