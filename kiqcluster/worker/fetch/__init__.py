"""Reserve and settle: how units get from Redis to the processors, and their outcomes back.

Read in this order:
fetch              takes units, hands in outcomes, makes the round trips
batch              one settle + reserve, and its states
supply             the units at hand and who waits for more; what is known of those in Redis
coordinator        who takes, who waits, who flushes the next batch; no I/O
prefetch           how many units to reserve
concurrency_limit  how many threads run units at once
stalls             whether the process could run while units waited
in_flight          the units that are held until Redis has their outcomes
last_settle        the outcomes that a stopping worker writes
membership         who this process is in Redis, and whether it knows what it holds
fencing            whether this process still holds what it runs
wakeups            how an idle process learns of a push, or receives it
hand_lists         the lists into which pushes are moved that come to this process
wake_lists         returns the jobs of wake lists to their queues after a recovery
queue_order        in which order queues are asked
redis_health       whether Redis answers
"""
