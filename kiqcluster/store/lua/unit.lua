-- unit: how a unit in flight goes back to its queue.  No script of its own: others take it in by `-- include unit`.
--
-- In the hash of its holder, a unit is "<token>:<queue>" -> payload (written by reserve).  No token has a colon.

-- Returns token and queue.
local function read_field(field)
  return string.match(field, '^([^:]*):(.*)$')
end

-- Moves a unit to the end of its queue that is fetched next.  `before_removal` is told its payload once it is there.
-- Returns nil, or Redis' words when the queue's key refuses it; it stays in flight then.
local function put_back(inflight, field, prefix, before_removal)
  local _, queue = read_field(field)
  if not queue then return 'ERR the unit ' .. field .. ' has no queue: another release wrote it' end
  local payload = redis.call('HGET', inflight, field)
  local fine, reason = pcall(redis.call, 'RPUSH', prefix .. queue, payload)
  if not fine then
    return type(reason) == 'table' and reason.err or tostring(reason)
  end
  if before_removal then before_removal(payload) end
  redis.call('HDEL', inflight, field)
end
