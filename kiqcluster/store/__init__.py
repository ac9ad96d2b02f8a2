"""Redis: the only folder that knows redis-py.

Read in this order:
store        Store: a shard, with its address, its keys and its free connections
connection   Connection: one exchange at a time
address      parses addresses, and finds the primary that sentinels name; names: look-ups with a timeout
cluster_address parses addresses of a Redis Cluster, and finds the primary of a shard's hash slot
wire         commands and replies as bytes, and the kinds of error replies
replies      an error reply is never taken for a value
scripts      the .lua files in lua/, one per operation, called by digest
rights/      the commands that kiqcluster runs, and whether the user may
engine/      the operations of a worker: join, reserve, settle, resync, recover, move_due
batches      batches: created, changed, read; their jobs pushed
entry_moves  moves entries of sets and jobs of queues; search: finds those that contain a text
guarded_push writes a job only if the guards in its rows are true
limits/      the lines of jobs that wait for a place in a limit; places of running jobs
cron         cron entries: written, read, and taken from one tick to the next
shards       the named Redis servers of the configuration; shard_moves: jobs on their way to another one
embedded     the private server of `--embedded`, its address and its command line

Nothing here retries: only the caller knows whether a command may run twice (rules R2 to R4).
"""

from kiqcluster.store.address import parse_address
from kiqcluster.store.connection import Connection
from kiqcluster.store.store import Store, risks
from kiqcluster.store.wire import is_outage

__all__ = ["Connection", "Store", "is_outage", "parse_address", "risks"]
