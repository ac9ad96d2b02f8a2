-- holds: the keys that a unit holds besides its payload, registered under its holder.  Not a script of its own:
-- others include it by `-- include holds`.
--
-- The hash kiq:held:<identity> has for such a unit "<token>:<queue>" -> JSON [holder, key, key, ...].  Each key is a
-- set that has the holder as a member.  Each script that moves the unit releases these keys.

-- A job that finds such a set full may be parked: the list <key>:parked has "<queue key> NUL <payload>", the next job to
-- run at its left end.  Each release moves one parked job back to its queue.

-- Returns the list of jobs that wait for room in a set.
local function parked_at(key)
  return key .. ':parked'
end

-- Registers a key under the unit's field.
local function register_hold(held, field, holder, key)
  local known = redis.call('HGET', held, field)
  local row = known and cjson.decode(known) or {holder}
  row[#row + 1] = key
  redis.call('HSET', held, field, cjson.encode(row))
end

-- Releases all keys that are registered under a field.  A key that is no longer a set has no members.
local function release_holds(held, field)
  local known = redis.pcall('HGET', held, field)
  if type(known) ~= 'string' then return end
  local row = cjson.decode(known)
  for index = 2, #row do
    local left = redis.pcall('SREM', row[index], row[1])
    local parked = left == 1 and redis.pcall('LINDEX', parked_at(row[index]), 0)
    if type(parked) == 'string' then
      local queue, payload = string.match(parked, '^([^%z]*)%z(.*)$')
      local fine = pcall(redis.call, 'RPUSH', queue, payload)
      if fine then redis.call('LTRIM', parked_at(row[index]), 1, -1) end -- else it stays parked until the next release
    end
  end
  redis.call('HDEL', held, field)
end
