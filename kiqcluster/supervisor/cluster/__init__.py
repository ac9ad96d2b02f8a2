"""What the supervisor knows of its cluster, and decisions about it.

state             what is true of the cluster as a whole
child             one worker process, as the supervisor sees it, and its end
slots             the slots and the children in them
process_observer  what others are told of the children
deadlines         which deadline a child has passed; pure
respawn           when a slot gets its next process; pure
expansion         queue arguments → slots; pure
quiet_lease       whether the cluster fetches, who asked for quiet, and until when; pure
liveness          which children do not respond
reload            how a new configuration changes the slots; pure
job_timeouts      which children run a job for longer than its timeout_hard
recycling         which children have run enough jobs or use too much memory
"""
