"""The bare loop: what a worker would reach that did nothing but fetch, decode and call; the upper bound.

It keeps kiqcluster's promise: what it has taken stays in Redis under a token of its own until it is done.  It knows no
outcomes, errors, context, middleware, statistics, signals, idle wait or second thread.
"""

from __future__ import annotations

import os

import msgspec
import redis

from benchmarks.apps import jobs

BATCH_JOBS = 100

# KEYS: queue, in-flight hash.  ARGV: how many, head of the tokens, then the tokens that are done.
RESERVE = """
if #ARGV > 2 then redis.call('HDEL', KEYS[2], unpack(ARGV, 3)) end
local batch = redis.call('RPOP', KEYS[1], ARGV[1])
if not batch then return {} end
local fields = {}
for i, payload in ipairs(batch) do
  fields[2 * i - 1] = ARGV[2] .. i
  fields[2 * i] = payload
end
redis.call('HSET', KEYS[2], unpack(fields))
return batch
"""


def main() -> None:
    reserve = redis.Redis.from_url(os.environ["REDIS_URL"]).register_script(RESERVE)
    keys = ["queue:default", f"inflight:{os.getpid()}"]
    functions = {function.__name__: function for function in jobs.ALL}
    done: list[str] = []
    call = 0
    while True:
        call += 1
        batch = reserve(keys, [BATCH_JOBS, f"{call}.", *done])
        for payload in batch:
            job = msgspec.json.decode(payload)
            functions[job["class"]](*job["args"])
        done = [f"{call}.{i}" for i in range(1, len(batch) + 1)]


if __name__ == "__main__":
    main()
