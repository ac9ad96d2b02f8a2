#!lua flags=allow-oom
-- write_task: create a task, or change one by hand.
--
-- KEYS[1]  kiq:task:<id>          hash    (tasks.lua)
-- KEYS[2]  kiq:tasks              zset    ids of tasks by the time of their creation
-- ARGV[1]  verb:
--   create id most parent field value ...   a task without jobs, which are added next; its id is kept among the `most`
--                          youngest.  parent: id of a task that is not complete before this one, "" for none
--   close                  no more jobs are added from outside: the task is complete once all of its jobs have ended
--   cancel reason          jobs that have not begun are dropped when they are to begin, and running ones are told by
--                          kiq:tasks:cancelled; the task takes no more jobs
--   lose id ...            these child tasks are waited for no longer if they do not exist any more
--   mark status messages jid ...            these jobs get another status by hand
--
-- Returns {"DONE"}; or why nothing has changed: {"UNKNOWN"},
-- {"CANCELLED"}, {"COMPLETE"}, the last two also of a parent.  May be sent again.  Cost: O(jobs and tasks named), O(log tasks).

-- include server_clock
-- include tasks

local now = tonumber(server_time())

local function create(id, most, parent, ...)
  local parent_key = without_task(KEYS[1]) .. 'kiq:task:' .. parent
  local refusal = parent ~= '' and refusal_of_task(parent_key)
  if refusal then return {refusal} end
  local fields = {...}
  local task = {}
  for at = 1, #fields, 2 do task[fields[at]] = fields[at + 1] end
  local ttl = task.ttl
  mark_changed(KEYS[1], task)
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
  local task = read_task(KEYS[1], 'history')
  if not task then return {'UNKNOWN'} end
  mark_changed(KEYS[1], task)
  redis.call('HSET', KEYS[1], 'is_open', '0')
  conclude(KEYS[1])
  return {'DONE'}
end

local function cancel(reason)
  local task = read_task(KEYS[1], 'completed_at', 'cancelled_at', 'history')
  if not task then return {'UNKNOWN'} end
  if task.completed_at then return {'COMPLETE'} end
  if not task.cancelled_at then
    mark_changed(KEYS[1], task)
    redis.call('HSET', KEYS[1], 'cancelled_at', string.format('%.3f', now), 'reason', reason, 'is_open', '0')
  end
  conclude(KEYS[1])
  if not read_task(KEYS[1], 'completed_at').completed_at then mark_task_cancelled(KEYS[1], now) end
  return {'DONE'}
end

local function mark(status, messages, ...)
  if not read_task(KEYS[1]) then return {'UNKNOWN'} end
  for _, jid in ipairs({...}) do change_event(KEYS[1], jid, status, '', '', messages) end
  return {'DONE'}
end

local function lose(...)
  if not read_task(KEYS[1]) then return {'UNKNOWN'} end
  for _, id in ipairs({...}) do lose_child(KEYS[1], id) end
  return {'DONE'}
end

local verbs = {create = create, close = close, cancel = cancel, lose = lose, mark = mark}
return verbs[ARGV[1]](unpack(ARGV, 2))
