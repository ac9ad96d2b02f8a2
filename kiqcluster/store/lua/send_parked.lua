#!lua flags=allow-oom
-- send_parked: look at one line of parked jobs: send on what has room, forget what is over.
--
-- KEYS[1]  the set of limited size; the keys beside it are in parked.lua
-- KEYS[2]  kiq:members            hash    identity -> "epoch ..."; read by holders.lua
-- ARGV[1]  limit, "" for the one that a worker has used last   ARGV[2] name of the limit
--
-- For a limit that was raised or is over, and as a safety net once a minute: a job that was sent back may be gone (deleted
-- by hand, run by Ruby), and somebody may have deleted the set.  Holders without a unit are removed (holders.lua).
--
-- Returns {jobs sent back, jobs that still wait, holders removed}.  May be sent again.  Cost: O(members of the set).

-- include parked
-- include holders

local GRANT_KEPT_MS = 600000 -- from then on a job that was sent back counts as gone
local MAX_POSITIONS = 10000 -- remembered of jobs that were sent back
local PAGE = 1000

local key, removed = KEYS[1], 0
local members = redis.pcall('SCARD', key)
if type(members) == 'number' and members <= PAGE then
  for _, holder in ipairs(redis.call('SMEMBERS', key)) do
    if not has_unit(prefix_of(key), holder) then removed = removed + redis.call('SREM', key, holder) end
  end
end

local late = redis.pcall('ZRANGEBYSCORE', grants_at(key), '-inf', server_ms() - GRANT_KEPT_MS, 'LIMIT', 0, PAGE)
for _, digest in ipairs(late.err and {} or late) do redis.call('ZREM', grants_at(key), digest) end
local positions = redis.pcall('HLEN', positions_at(key))
if type(positions) == 'number' and positions > MAX_POSITIONS then redis.call('UNLINK', positions_at(key)) end

local largest = limit_in_force(key, ARGV[1], ARGV[2])
-- Without a limit many go at once, for what goes later is fetched before them.
local sent = largest and fill_with(largest == 0 and PAGE or MAX_SENT, key, largest) or 0
local left = redis.pcall('ZCARD', parked_at(key))
if left == 0 and redis.call('EXISTS', grants_at(key)) == 0 then
  redis.call('DEL', positions_at(key))
  redis.pcall('SREM', key_with_prefix_of(key, 'parked'), key)
end
return {sent, type(left) == 'number' and left or 0, removed}
