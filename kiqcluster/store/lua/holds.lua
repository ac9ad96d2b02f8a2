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
  local fine, row = pcall(cjson.decode, known or '')
  row = fine and type(row) == 'table' and row or {holder}
  row[#row + 1] = key
  redis.call('HSET', held, field, cjson.encode(row))
end

local MAX_TRIED = 10 -- parked entries of one release

-- Sends one parked job back to its queue.  An entry that cannot go, for its queue is broken or it is not a job, goes to
-- the end of the list: it must not hold up the others.
local function unpark(key)
  for _ = 1, MAX_TRIED do
    local entry = redis.pcall('LINDEX', parked_at(key), 0)
    if type(entry) ~= 'string' then return end
    local queue, payload = string.match(entry, '^([^%z]*)%z(.*)$')
    if queue and pcall(redis.call, 'RPUSH', queue, payload) then
      redis.call('LTRIM', parked_at(key), 1, -1)
      return
    end
    redis.call('LMOVE', parked_at(key), parked_at(key), 'LEFT', 'RIGHT')
  end
end

-- Releases all keys that are registered under a field.  A key that is no longer a set has no members, and a field that
-- somebody else wrote names no keys.
local function release_holds(held, field)
  local known = redis.pcall('HGET', held, field)
  if type(known) ~= 'string' then return end
  local fine, row = pcall(cjson.decode, known)
  for index = 2, fine and type(row) == 'table' and #row or 0 do
    if type(row[index]) == 'string' then
      redis.pcall('SREM', row[index], tostring(row[1]))
      unpark(row[index]) -- also where the place was gone already: a begin looks again whether there is room
    end
  end
  redis.call('HDEL', held, field)
end
