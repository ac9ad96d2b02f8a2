-- unit: how a unit in flight goes back to its queue.  No script of its own: others take it in by `-- include unit`.
--
-- In the hash of its holder, a unit is "<token>:<queue>" -> payload (written by reserve).  No token has a colon.

-- Returns token and queue.
local function read_field(field)
  return string.match(field, '^([^:]*):(.*)$')
end

local refusals = {} -- queue -> Redis' words: no second payload is read for a queue that refused one

-- Moves a unit to the end of its queue that is fetched next, and releases what it holds.  `before_removal` is told its
-- payload once it is there.  held: the hash of what units hold, false where there is none.
-- Returns the payload's bytes, or nil and Redis' words when the queue's key refuses it; it stays in flight then.
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
