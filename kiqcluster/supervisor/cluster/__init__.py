"""What the supervisor knows of its cluster, and decisions about it.

state         what is true of the cluster as a whole
slots         the slots and the children in them
respawn       when a slot gets its next process; pure
expansion     queue arguments → slots; pure
quiet_lease   whether the cluster fetches, who asked for quiet, and until when; pure
liveness      which children do not respond
recycling     which children have run enough jobs or use too much memory
"""
