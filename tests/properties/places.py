"""Help of the walks over guarantees: which jobs there are, and time that passes in lines."""

from __future__ import annotations

from kiqcluster.store import Store
from kiqcluster.worker.maintenance.limit_upkeep import GRANT_MS

__all__ = ["STORED", "pass_time"]

# Returns the payloads of all jobs that have not ended.
STORED = """
local found = {}
local function add(payloads) for _, each in ipairs(payloads) do found[#found + 1] = each end end
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.find(key, '^queue:') or string.find(key, '^kiq:wake:') then add(redis.call('LRANGE', key, 0, -1)) end
  if string.find(key, '^kiq:inflight:') then add(redis.call('HVALS', key)) end
  if key == 'schedule' or key == 'retry' then add(redis.call('ZRANGE', key, 0, -1)) end
  if string.find(key, '^kiq:slots:.*:parked$') then
    for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1)) do add({(string.gsub(entry, '^[^%z]*%z', ''))}) end
  end
end
return found
"""


def pass_time(store: Store) -> None:
    """Have the places be free that were kept for jobs on their way to a queue."""
    for grants in store.call("KEYS", "kiq:slots:*:turns"):
        if store.call("TYPE", grants) == b"zset":
            for digest in store.call("ZRANGE", grants, 0, -1):
                store.call("ZINCRBY", grants, -GRANT_MS, digest)
