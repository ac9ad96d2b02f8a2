#!lua flags=allow-oom
-- write_batch: create a batch, or change one by hand.
--
-- KEYS[1]  kiq:batch:<id>          hash    (batches.lua)
-- KEYS[2]  kiq:batches              zset    ids of batches by the time of their creation
-- ARGV[1]  verb:
--   create id most parent field value ...   a batch without jobs, which are added next; its id is kept among the `most`
--                          youngest.  parent: id of a batch that is not complete before this one, "" for none
--   close                  no more jobs are added from outside: the batch is complete once all of its jobs have ended
--   cancel reason          jobs that have not begun are dropped when they are to begin, and running ones are told by
--                          kiq:batches:cancelled; the batch takes no more jobs
--   lose id ...            these child batches are waited for no longer if they do not exist any more
--   mark status messages jid ...            these jobs get another status by hand
--
-- Returns {"DONE"}; or why nothing has changed: {"UNKNOWN"},
-- {"CANCELLED"}, {"COMPLETE"}, the last two also of a parent.  May be sent again.  Cost: O(jobs and batches named), O(log batches).

-- include server_clock
-- include batches

local now = tonumber(server_time())

local function create(id, most, parent, ...)
  local parent_key = without_batch(KEYS[1]) .. 'kiq:batch:' .. parent
  local refusal = parent ~= '' and refusal_of_batch(parent_key)
  if refusal then return {refusal} end
  local fields = {...}
  local batch = {}
  for at = 1, #fields, 2 do batch[fields[at]] = fields[at + 1] end
  local ttl = batch.ttl
  mark_changed(KEYS[1], batch)
  redis.call('HSET', KEYS[1], 'created_at', string.format('%.3f', now), 'parent', parent, 'is_open', '1', 'refresh_at',
    now + ttl / REFRESHES, ...)
  redis.call('EXPIRE', KEYS[1], ttl)
  redis.pcall('ZADD', KEYS[2], now, id)
  redis.pcall('ZREMRANGEBYRANK', KEYS[2], 0, -most - 1)
  if parent == '' then return {'DONE'} end
  local fine, failure = pcall(add_child, parent_key, id)
  if not fine then
    redis.call('UNLINK', KEYS[1])
    error(failure)
  end
  return {'DONE'}
end

local function close()
  local batch = read_batch(KEYS[1], 'history')
  if not batch then return {'UNKNOWN'} end
  mark_changed(KEYS[1], batch)
  redis.call('HSET', KEYS[1], 'is_open', '0')
  conclude(KEYS[1])
  return {'DONE'}
end

local function cancel(reason)
  local batch = read_batch(KEYS[1], 'completed_at', 'cancelled_at', 'history')
  if not batch then return {'UNKNOWN'} end
  if batch.completed_at then return {'COMPLETE'} end
  if not batch.cancelled_at then
    mark_changed(KEYS[1], batch)
    redis.call('HSET', KEYS[1], 'cancelled_at', string.format('%.3f', now), 'reason', reason, 'is_open', '0')
  end
  conclude(KEYS[1])
  if not read_batch(KEYS[1], 'completed_at').completed_at then mark_batch_cancelled(KEYS[1], now) end
  return {'DONE'}
end

local function mark(status, messages, ...)
  if not read_batch(KEYS[1]) then return {'UNKNOWN'} end
  for _, jid in ipairs({...}) do change_status(KEYS[1], jid, status, '', '', messages) end
  return {'DONE'}
end

local function lose(...)
  if not read_batch(KEYS[1]) then return {'UNKNOWN'} end
  for _, id in ipairs({...}) do lose_child(KEYS[1], id) end
  return {'DONE'}
end

local verbs = {create = create, close = close, cancel = cancel, lose = lose, mark = mark}
return verbs[ARGV[1]](unpack(ARGV, 2))
