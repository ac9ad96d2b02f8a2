-- unit: how a unit in flight goes back to its queue.  No script of its own: others take it in by `-- include unit`.
--
-- A record is "<length of queue>:<queue><payload>" (written by reserve).

-- Returns queue and payload.
local function read_unit(record)
  local length = string.match(record, '^%d+')
  local name_from = #length + 2
  local payload_from = name_from + tonumber(length)
  return string.sub(record, name_from, payload_from - 1), string.sub(record, payload_from)
end

-- Moves a unit to the end of its queue that is fetched next.  `before_removal` is told its payload once it is there.
-- Returns nil, or Redis' words when the queue's key refuses it; it stays in flight then.
local function put_back(inflight, token, prefix, before_removal)
  local queue, payload = read_unit(redis.call('HGET', inflight, token))
  local fine, reason = pcall(redis.call, 'RPUSH', prefix .. queue, payload)
  if not fine then
    return type(reason) == 'table' and reason.err or tostring(reason)
  end
  if before_removal then before_removal(payload) end
  redis.call('HDEL', inflight, token)
end
