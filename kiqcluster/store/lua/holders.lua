-- holders: whether a member of a set of places still has its unit.  Not a script of its own: others include it by
-- `-- include holders`.
--
-- A place that is registered under its unit (holds.lua) ends with it.  Where the registration is lost (somebody deleted
-- kiq:held:<identity>, or wrote another type there), nobody would ever release the place.

-- Returns whether a holder, "<identity>/<token>", is a unit of a process that is a member of the fleet, and registered
-- or in flight there.  prefix: of all keys.  Cost: O(units with places of that process); O(its units in flight) where it is not registered.
local function has_unit(prefix, holder)
  local identity, token = string.match(holder, '^(.*)/([^/]*)$')
  if not identity or not redis.call('HGET', prefix .. 'kiq:members', identity) then return false end
  for _, name in ipairs({'kiq:held:', 'kiq:inflight:'}) do
    local fields = redis.pcall('HKEYS', prefix .. name .. identity)
    for _, field in ipairs(fields.err and {} or fields) do
      if string.match(field, '^[^:]*') == token then return true end
    end
  end
  return false
end
