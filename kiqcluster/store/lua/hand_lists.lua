-- hand_lists: the lists into which idle processes have a push moved.  Not a script of its own: others include it by
-- `-- include hand_lists`.
--
-- An idle process waits with `BLMOVE queue:<queue> kiq:hand:<id>:<token>:<queue>`, and runs at once what comes.  Each
-- such list takes one payload at most: a wait of its own has a token of its own.  The payload is in flight from that
-- moment.  Whoever needs the unit in the in-flight hash takes it over from the list: the unit has the same field there,
-- and nobody else has to know of the lists.
-- The hash kiq:hands:<id> has a field "<token>:<queue>" for each list that a wait may still fill (register_hands.lua).

-- Returns the key beside the in-flight hash of a process that begins otherwise.
local function key_beside(inflight, name)
  return (string.gsub(inflight, 'kiq:inflight:', function() return name end, 1))
end

-- Moves a unit from its hand list to the in-flight hash; returns its payload, or nil when it is not there.
local function take_over(inflight, field)
  local list = key_beside(inflight, 'kiq:hand:') .. ':' .. field
  local payload = redis.call('LINDEX', list, 0)
  if not payload then return nil end
  redis.call('HSET', inflight, field, payload) -- record before it is removed
  redis.call('DEL', list)
  redis.pcall('HDEL', key_beside(inflight, 'kiq:hands:'), field)
  return payload
end

-- Takes over whatever lies in the hand lists of a process.
local function take_over_all(inflight)
  local fields = redis.pcall('HKEYS', key_beside(inflight, 'kiq:hands:'))
  for _, field in ipairs(fields.err and {} or fields) do
    if string.find(field, ':', 1, true) then pcall(take_over, inflight, field) end
  end
end

-- Returns whether a process has nothing in flight, neither in its hash nor in a hand list.
local function is_empty(inflight)
  if redis.call('TYPE', inflight).ok == 'hash' then return false end
  local fields = redis.pcall('HKEYS', key_beside(inflight, 'kiq:hands:'))
  for _, field in ipairs(fields.err and {} or fields) do
    local list = key_beside(inflight, 'kiq:hand:') .. ':' .. field
    if string.find(field, ':', 1, true) and redis.call('TYPE', list).ok == 'list' then return false end
  end
  return true
end
