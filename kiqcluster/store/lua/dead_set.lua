-- dead_set: trims the dead set.  Not a script of its own: others include it by `-- include dead_set`, after
-- `-- include server_clock`.

local MAX_DROPPED = 1000 -- entries that one script drops: dropping a million would block Redis for seconds

-- Drops the oldest entries: those older than `timeout` seconds, and those beyond the newest `largest` - 1 (as Sidekiq
-- does).  Returns the numbers dropped as too old and as too many; a sum of MAX_DROPPED means that there may be more.
local function trim_dead(key, now, timeout, largest)
  local cutoff = tonumber(not_ahead(now)) - tonumber(timeout)
  local old = redis.call('ZCOUNT', key, '-inf', string.format('%.6f', cutoff))
  local excess = redis.call('ZCARD', key) - (tonumber(largest) - 1)
  local dropped = math.min(math.max(old, excess), MAX_DROPPED)
  if dropped <= 0 then return 0, 0 end
  redis.call('ZREMRANGEBYRANK', key, 0, dropped - 1)
  old = math.min(old, dropped)
  return old, dropped - old
end
