-- holds: the keys that a unit holds besides its payload, registered under its holder.  Not a script of its own:
-- others include it by `-- include holds`, after parked.
--
-- The hash kiq:held:<identity> has for such a unit "<token>:<queue>" -> JSON [holder, key, key, ...].  Each key is a
-- set that has the holder as a member.  Each script that moves the unit releases these keys.  Each release sends one
-- parked job of that set back to its queue (parked.lua).

-- Registers a key under the unit's field.
local function register_hold(held, field, holder, key)
  if redis.call('HSETNX', held, field, cjson.encode({holder, key})) == 1 then return end
  local fine, row = pcall(cjson.decode, redis.call('HGET', held, field))
  row = fine and type(row) == 'table' and row or {holder}
  for index = 2, #row do
    if row[index] == key then return end
  end
  row[#row + 1] = key
  redis.call('HSET', held, field, cjson.encode(row))
end

-- Takes one key back from the unit's field, which has released it.
local function forget_hold(held, field, key)
  local fine, row = pcall(cjson.decode, redis.call('HGET', held, field) or '')
  if not fine or type(row) ~= 'table' then return end
  for index = #row, 2, -1 do
    if row[index] == key then table.remove(row, index) end
  end
  if #row > 1 then redis.call('HSET', held, field, cjson.encode(row)) else redis.call('HDEL', held, field) end
end

-- Releases all keys that are registered under a field.  A key that is no longer a set has no members, and a field that
-- somebody else wrote names no keys.  What Redis refuses to release stays registered, for release_orphans.
local function release_holds(held, field)
  local known = redis.pcall('HGET', held, field)
  if type(known) ~= 'string' then return end
  local fine, row = pcall(cjson.decode, known)
  local left
  for index = 2, fine and type(row) == 'table' and #row or 0 do
    if type(row[index]) == 'string' then
      local removed = redis.pcall('SREM', row[index], tostring(row[1]))
      if type(removed) == 'table' and not string.find(removed.err, 'WRONGTYPE', 1, true) then
        left = left or {row[1]}
        left[#left + 1] = row[index]
      else
        unpark(row[index], 1) -- also where the place was gone already: a begin looks again whether there is room
      end
    end
  end
  if left then redis.pcall('HSET', held, field, cjson.encode(left)) else redis.call('HDEL', held, field) end
end

-- Releases what is registered under units that are no longer in flight: a script failed before it had released all.
local function release_orphans(held, inflight)
  local fields = redis.pcall('HKEYS', held)
  for _, field in ipairs(fields.err and {} or fields) do
    if not redis.call('HGET', inflight, field) then release_holds(held, field) end
  end
end
