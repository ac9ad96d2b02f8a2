-- server_clock: Redis' own time, to limit callers whose clock is wrong.  Not a script of its own: others include it by
-- `-- include server_clock`.

local MAX_AHEAD_SECONDS = 30 -- clocks that NTP keeps differ by milliseconds; beyond this, the caller's clock is wrong

-- Returns epoch seconds as text.  TIME returns microseconds, and %.6f keeps them.
local function server_time()
  local time = redis.call('TIME')
  return string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
end

-- Returns the caller's time, or Redis' own when the caller is ahead of it: no entry becomes due, or too old, too early.
local function not_ahead(now)
  local here = server_time()
  if tonumber(now) > tonumber(here) + MAX_AHEAD_SECONDS then return here end
  return now
end
