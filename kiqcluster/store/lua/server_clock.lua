-- server_clock: Redis' own time, against callers whose clock is wrong.  No script of its own: others take it in by
-- `-- include server_clock`.

local MAX_AHEAD_SECONDS = 30 -- clocks that NTP keeps differ by milliseconds; beyond this, the caller's is not believed

-- Returns epoch seconds as text.  TIME says microseconds, which %.6f keeps.
local function server_time()
  local time = redis.call('TIME')
  return string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
end

-- Returns the caller's time, or Redis' own where the caller is ahead of it: nothing becomes due, or old, too early.
local function not_ahead(now)
  local here = server_time()
  if tonumber(now) > tonumber(here) + MAX_AHEAD_SECONDS then return here end
  return now
end
