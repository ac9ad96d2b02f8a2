"""Reserve and settle: how units get from Redis to the processors, and their outcomes back.

Read in this order:
fetch          takes units, hands in outcomes, runs the round trips
coordinator    which thread flushes, which waits, what is asked for; no I/O
prefetch       how many units to ask for
in_flight      the units that are held until Redis has their outcomes
membership     who this process is in Redis, and whether it knows what it holds
fencing        whether this process still holds what it runs
wakeups        how an idle process learns of a push
queue_order    in which order queues are looked at
redis_health   whether Redis answers
"""
