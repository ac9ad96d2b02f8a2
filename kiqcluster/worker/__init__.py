"""The worker process: runs the jobs of one queue group.

Threads, from birth to death:
main         child.py       signals, the socket to the supervisor, one beat a second
manager      manager.py     the bells of idle queues, overdue outcomes, dead processors
processor/N  processor.py   take a unit → execute → outcome; leads reserve and settle when nothing is left
poller       poller.py      schedule and retry set → queues
heartbeat    heartbeat.py   Sidekiq's process registry, remote signals, new queues
recovery     recovery.py    units of dead processes → queues

Read in this order: child, launcher, manager, processor, execution, retry, fetch, turns.  Then membership, poller,
heartbeat, recovery, bells, inbox, strategy, queues, identity.
"""
