-- bulk_state: the state of a bulk action (api/bulk/state.py).  Not a script of its own: others include it by
-- `-- include bulk_state`.
--
-- A hash.  `state` is its state, `owner` the runner that works on it, and `until` the end of that runner's lease, in
-- milliseconds by Redis' clock.

local KEPT_SECONDS = 604800 -- after the last write: 7 days

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Keeps the state for as long again, and the runner's lease, if a runner works on it.
local function keep(key, owner, lease)
  if owner ~= '' then redis.call('HSET', key, 'owner', owner, 'until', now_ms() + lease) end
  redis.call('EXPIRE', key, KEPT_SECONDS)
end
