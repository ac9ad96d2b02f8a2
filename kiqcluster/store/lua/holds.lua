-- holds: what a unit holds besides its payload, registered under its holder.  Others take it in by `-- include holds`.
--
-- The hash kiq:held:<identity> has for such a unit: "<token>:<queue>" -> JSON [holder, key, key, ...].  Each key is a
-- set that has the holder as a member.  Whoever moves the unit releases them in the same script.

-- Registers a key under the unit's field.
local function register_hold(held, field, holder, key)
  local known = redis.call('HGET', held, field)
  local row = known and cjson.decode(known) or {holder}
  row[#row + 1] = key
  redis.call('HSET', held, field, cjson.encode(row))
end

-- Releases all that is registered under a field.  A key that is no set any more holds nobody.
local function release_holds(held, field)
  local known = redis.pcall('HGET', held, field)
  if type(known) ~= 'string' then return end
  local row = cjson.decode(known)
  for index = 2, #row do redis.pcall('SREM', row[index], row[1]) end
  redis.call('HDEL', held, field)
end
