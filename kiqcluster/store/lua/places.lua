-- places: at most so many holders of a name at once.  Not a script of its own: others include it by `-- include places`,
-- after holds, rates and holders.
--
-- kiq:rate:<name>           hash   `limit`: "concurrent <largest>", for those who look (rates.lua)
-- kiq:rate:<name>:running   set    the holders.  Nobody waits in a line for it: what is refused comes back later
--
-- A place is registered under its unit (holds.lua), so each script that moves the unit releases it.

local PLACE_KEPT_SECONDS = 7 * 86400 -- that a name stays listed after the last one took a place

-- Returns whether a holder has a place, or may take one.  A full set forgets a holder, chosen at random, that has no
-- unit (holders.lua).
local function has_place(key, largest, holder)
  local running = key .. ':running'
  if redis.call('SCARD', running) < largest or redis.call('SMISMEMBER', running, holder)[1] == 1 then return true end
  local prefix, other = string.match(key, '^(.-)kiq:rate:'), redis.call('SRANDMEMBER', running)
  if has_unit(prefix or '', other) then return false end
  redis.call('SREM', running, other)
  return redis.call('SCARD', running) < largest
end

-- Takes a place, of a holder that may.
local function take_place(key, largest, holder, held, field)
  local running = key .. ':running'
  if redis.call('SMISMEMBER', running, holder)[1] == 1 then return end
  register_hold(held, field, holder, running) -- register first: releasing what is not held does no harm
  redis.call('SADD', running, holder)
  local found = redis.call('HMGET', key, 'limit', 'kept_until')
  local rate = {key = key, now = rate_time(), limit = found[1], kept_until = found[2]}
  write_rate(rate, 'concurrent ' .. largest, PLACE_KEPT_SECONDS)
end
