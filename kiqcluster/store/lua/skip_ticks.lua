#!lua
-- skip_ticks: have cron entries await another tick, without a job.
--
-- KEYS[1]  kiq:cron:ticks         zset    name of an entry by its next tick
-- ARGV     for each entry: its name, the tick that it awaits, the one that it is to await; "" for none any more
--
-- An entry that awaits another tick by now is left as it is.  Returns how many were changed.
-- May be sent again.  Cost: O(entries x log n).

local changed = 0
for at = 1, #ARGV, 3 do
  local awaited = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[at]) or nil)
  if awaited and awaited == tonumber(ARGV[at + 1]) then
    if ARGV[at + 2] == '' then
      redis.call('ZREM', KEYS[1], ARGV[at])
    else
      redis.call('ZADD', KEYS[1], ARGV[at + 2], ARGV[at])
    end
    changed = changed + 1
  end
end
return changed
