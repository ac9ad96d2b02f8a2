-- unit: moves a unit in flight back to its queue.  Not a script of its own: others include it by `-- include unit`.
--
-- In the hash of its holder, a unit is "<token>:<queue>" -> payload (written by reserve).  No token has a colon.

-- Returns token and queue.
local function read_field(field)
  return string.match(field, '^([^:]*):(.*)$')
end

local refusals = {} -- queue -> Redis' error: no second payload is read for a queue that refused one

-- Moves a unit to the end of its queue that is fetched next, and releases the keys that it holds.  Calls
-- `before_removal` with the payload once it is in the queue.  held: the hash of the keys that units hold, or false.
-- Returns the payload's bytes, or nil and Redis' error when the queue's key refuses it; the unit then stays in flight.
local function put_back(inflight, held, field, prefix, before_removal)
  local _, queue = read_field(field)
  if not queue then return nil, 'ERR the unit ' .. field .. ' has no queue: another release wrote it' end
  if refusals[queue] then return nil, refusals[queue] end
  local payload = redis.call('HGET', inflight, field)
  local fine, reason = pcall(redis.call, 'RPUSH', prefix .. queue, payload)
  if not fine then
    refusals[queue] = type(reason) == 'table' and reason.err or tostring(reason)
    return nil, refusals[queue]
  end
  if before_removal then before_removal(payload) end
  redis.call('HDEL', inflight, field)
  if held then release_holds(held, field) end
  return #payload
end
