-- batches: the status of the jobs of a batch, and what follows when all of them have ended.  Not a script of its own:
-- others include it by `-- include batches`, after server_clock.
--
-- kiq:batch:<id>        hash   all of a batch, so that one HSET changes a job and the counts together:
--   name, worker, parent, created_at, expected, is_open ("1" while jobs are being added), completed_at, succeeded_at,
--   died_at, cancelled_at, reason, problem, ttl, kept, refresh_at, history ("1" if it is copied to a database)
--   total, enqueue, working, finish, failed, error     number of jobs, and of those in each status
--   cancelled            number of the jobs in `error` that were dropped because the batch was cancelled
--   open, lacking        number of child batches that are not complete; that are complete without success
--   on_complete, on_success, on_death                  "<queue> NUL <payload>" of the callbacks
--   ":<jid>" status of a job, newline, its changes   "p<jid>" its arguments: JSON, newline, its class   "m<jid>" its messages: JSON values, with commas between them
--   "c:<id>"  state of a child batch: open, lacking or done
-- kiq:batch:<id>:children  set ids of the child batches
-- kiq:batch:<id>:ended  zset   jids of the jobs in `failed` and `error` by when, epoch seconds
-- kiq:batch:<id>:changed set    jids of the jobs that have changed since they were copied; only with `history`
-- kiq:batches:changed    zset   ids of the batches that have changed since then, by when, microseconds
-- kiq:batches:cancelled  zset   ids of the cancelled batches that are not complete, by when: processes tell running jobs by it
--
-- The changes of a job are <letter><epoch seconds> with commas between them, the oldest first: e enqueue, w working, f finish, F failed,
-- E error.  ":<bytes>" follows where the change has brought messages: the bytes of all messages after it.  Beyond MAX_CHANGES the
-- middle one is left out, and its messages count for the next one.
--
-- A status only goes forward: `finish` and `failed` are final, and `error` is left only for `working`, when somebody
-- retries a dead job.  A job that is unknown here changes nothing: the batch has expired, or the job has another jid.
-- Each function may run again after an error: what it has written already, it finds.

local MAX_MESSAGE_BYTES, MAX_LAST_BYTES = 20000, 10000 -- of all messages of a job; of those about its ends beside them
local REFRESHES = 10 -- times that a batch's time to live is renewed within it, at most
local MAX_ANCESTORS = 100
local MARK_SECONDS, MAX_MARKS = 86400, 1000 -- of cancelled batches; a heartbeat reads all of them (publish.lua)
local MAX_CHANGES = 20 -- of the status of a job that are kept
local STATUSES = {enqueue = 'e', working = 'w', finish = 'f', failed = 'F', error = 'E'} -- with the letters of changes
local STAYS = {finish = STATUSES, failed = STATUSES, error = {enqueue = true, error = true}}

local function ended_at(key) return key .. ':ended' end
local function changed_at(key) return key .. ':changed' end
local function children_at(key) return key .. ':children' end
local function without_batch(key) return string.match(key, '^(.-)kiq:batch:') or '' end

-- Returns these fields of a batch by name, or nil if there is no such batch.
local function read_batch(key, ...)
  local names = {...}
  local found = redis.pcall('HMGET', key, 'created_at', ...)
  if found.err or not found[1] then return nil end
  local batch = {}
  for index, name in ipairs(names) do batch[name] = found[index + 1] end
  return batch
end

-- Returns the id of a batch.
local function id_of(key) return string.sub(key, #without_batch(key) + #'kiq:batch:' + 1) end

local function count_of(value) return tonumber(value or nil) or 0 end

-- Writes to a key beside a batch; one of another type is left alone.
local function write_beside(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
end

-- Remembers that a batch, and jobs of it, are about to change; before they do, so that no change is missed.
local function mark_changed(key, batch, ...)
  if batch.history ~= '1' then return end
  if select('#', ...) > 0 then write_beside('SADD', changed_at(key), ...) end
  local time = redis.call('TIME')
  local changed = without_batch(key) .. 'kiq:batches:changed'
  write_beside('ZADD', changed, string.format('%.0f', time[1] * 1000000 + time[2]), id_of(key))
end

-- Has processes tell the running jobs of a batch that it is cancelled.
local function mark_batch_cancelled(key, now)
  local marks = without_batch(key) .. 'kiq:batches:cancelled'
  write_beside('ZADD', marks, now, id_of(key))
  redis.pcall('ZREMRANGEBYSCORE', marks, '-inf', now - MARK_SECONDS)
  redis.pcall('ZREMRANGEBYRANK', marks, 0, -1 - MAX_MARKS)
end

-- Keeps a batch for its time from now on, if a part of it is over.
local function refresh(key, batch, now)
  if count_of(batch.refresh_at) > now or count_of(batch.ttl) == 0 then return end
  redis.call('HSET', key, 'refresh_at', now + count_of(batch.ttl) / REFRESHES)
  redis.call('EXPIRE', key, batch.ttl)
  redis.pcall('EXPIRE', ended_at(key), batch.ttl)
  redis.pcall('EXPIRE', children_at(key), batch.ttl)
  redis.pcall('EXPIRE', changed_at(key), batch.ttl)
end

-- Keeps a complete batch for its shorter time; one with a history only once that is copied.
local function keep_complete(key, kept)
  for _, each in ipairs({key, ended_at(key), children_at(key)}) do redis.pcall('EXPIRE', each, kept) end
end

-- Returns the queue and the payload of a callback as of now, and the name of the queue; nil if there is none.
local function read_callback(prefix, stored, now)
  local queue, payload = string.match(stored or '', '^(%Z*)%z(.*)}$')
  if not queue then return nil end
  return prefix .. 'queue:' .. queue, payload .. string.format(',"enqueued_at":%.3f}', now), queue
end

-- Returns why a callback cannot be pushed, nil when it can.
local function problem_of(queue)
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'none' and kind ~= 'list' then return queue .. ' is a ' .. kind .. ', and takes no callback of this batch' end
end

local conclude

-- Tells the parent of a batch in which state its child is.
local function tell_parent(key, batch, state, depth)
  if not batch.parent or batch.parent == '' or depth > MAX_ANCESTORS then return end
  local parent_key, child = without_batch(key) .. 'kiq:batch:' .. batch.parent, 'c:' .. id_of(key)
  local parent = read_batch(parent_key, child, 'open', 'lacking')
  if not parent or not parent[child] then return end
  local open, lacking = count_of(parent.open), count_of(parent.lacking)
  if parent[child] == 'open' then open = open - 1 end
  if parent[child] == 'lacking' then lacking = lacking - 1 end
  if state == 'lacking' then lacking = lacking + 1 end
  if parent[child] ~= state then redis.call('HSET', parent_key, child, state, 'open', open, 'lacking', lacking) end
  conclude(parent_key, depth + 1)
end

-- Has a batch wait for a child.
local function add_child(key, id)
  local batch = read_batch(key, 'c:' .. id, 'open', 'ttl')
  redis.call('SADD', children_at(key), id)
  redis.pcall('EXPIRE', children_at(key), batch.ttl)
  if not batch['c:' .. id] then redis.call('HSET', key, 'c:' .. id, 'open', 'open', count_of(batch.open) + 1) end
end

-- Has a batch wait no longer for a child that does not exist any more.
local function lose_child(key, id)
  local field = 'c:' .. id
  local batch = read_batch(key, field, 'open', 'lacking', 'history')
  if not batch or redis.call('EXISTS', without_batch(key) .. 'kiq:batch:' .. id) == 1 then return end
  if batch[field] == 'open' then
    mark_changed(key, batch)
    redis.call('HSET', key, field, 'lacking', 'open', count_of(batch.open) - 1, 'lacking', count_of(batch.lacking) + 1)
  end
  conclude(key)
end

-- Pushes the callbacks that are due now, each once, and writes down that they are.
function conclude(key, depth)
  local batch = read_batch(key, 'parent', 'is_open', 'open', 'lacking', 'total', 'enqueue', 'working', 'finish', 'error',
    'cancelled', 'completed_at', 'succeeded_at', 'died_at', 'cancelled_at', 'on_complete', 'on_success', 'on_death',
    'kept', 'history')
  if not batch then return end
  local pending = count_of(batch.enqueue) + count_of(batch.working)
  local is_over = batch.is_open ~= '1' and pending == 0 and count_of(batch.open) == 0
  local is_success = is_over and batch.finish == batch.total and count_of(batch.lacking) == 0 and not batch.cancelled_at
  local due, fields, now = {}, {}, tonumber(server_time())
  local function settle(is_due, field, callback)
    if not is_due or batch[field] then return end
    fields[#fields + 1], fields[#fields + 2] = field, string.format('%.3f', now)
    due[#due + 1] = batch[callback]
  end
  settle(count_of(batch.error) > count_of(batch.cancelled), 'died_at', 'on_death')
  settle(is_over, 'completed_at', 'on_complete')
  local is_kept_shorter = is_over and not batch.completed_at and batch.history ~= '1'
  if is_kept_shorter then fields[#fields + 1], fields[#fields + 2] = 'ttl', batch.kept end
  settle(is_success, 'succeeded_at', 'on_success')
  if #fields > 0 then
    local prefix, pushed = without_batch(key), {}
    for _, callback in ipairs(due) do
      local queue = read_callback(prefix, callback, now)
      local problem = queue and problem_of(queue)
      if problem then return redis.call('HSET', key, 'problem', problem) end
    end
    mark_changed(key, batch)
    local fine, reason = pcall(function()
      for _, callback in ipairs(due) do
        local queue, payload, name = read_callback(prefix, callback, now)
        if queue then
          redis.call('LPUSH', queue, payload)
          pushed[#pushed + 1] = queue
          redis.pcall('SADD', prefix .. 'queues', name)
        end
      end
      redis.call('HSET', key, 'problem', '', unpack(fields))
    end)
    if not fine then -- the callbacks are pushed again with the next try
      for _, queue in ipairs(pushed) do redis.pcall('LTRIM', queue, 1, -1) end
      error(reason)
    end
    if is_kept_shorter then keep_complete(key, batch.kept) end
  end
  if is_over and batch.cancelled_at then write_beside('ZREM', without_batch(key) .. 'kiq:batches:cancelled', id_of(key)) end
  if is_over then tell_parent(key, batch, is_success and 'done' or 'lacking', depth or 0) end
end

-- Returns the messages of a job with some more, as far as there is room.
local function with_messages(known, more, most)
  if more == '' or #known + #more >= most then return known end
  return known == '' and more or known .. ',' .. more
end

-- Returns a change of a status.  size: bytes of all messages after it, nil if it brings none.
local function change_to(status, now, size)
  return string.format('%s%.3f', STATUSES[status], now) .. (size and ':' .. size or '')
end

-- Returns the status field of a job after one more change.
local function with_change(field, status, change)
  local changes = {}
  for each in string.gmatch(string.match(field, '\n(.*)') or '', '[^,]+') do changes[#changes + 1] = each end
  if #changes >= MAX_CHANGES then table.remove(changes, MAX_CHANGES / 2 + 1) end
  changes[#changes + 1] = change
  return status .. '\n' .. table.concat(changes, ',')
end

-- Gives a job another status.  kind: "cancelled" if the job ends because of that.  messages: JSON values, "" for none.
-- last: the same, of the end itself: it is kept also where the messages have no room.
local function change_status(key, jid, status, messages, kind, last)
  local batch = read_batch(key, ':' .. jid, 'm' .. jid, 'enqueue', 'working', 'finish', 'failed', 'error', 'cancelled',
    'refresh_at', 'ttl', 'history')
  local field = batch and batch[':' .. jid]
  local old = field and string.match(field, '^[^\n]*')
  if not old or not STATUSES[status] then return end
  local now = tonumber(server_time())
  local is_final = STAYS[status] ~= nil
  local may_conclude = old == status -- sent again: what follows may not have been written
  if old ~= status and not (STAYS[old] and STAYS[old][status]) then
    local known = batch['m' .. jid] or ''
    local kept = with_messages(known, messages, MAX_MESSAGE_BYTES)
    kept = with_messages(kept, last or '', MAX_MESSAGE_BYTES + MAX_LAST_BYTES)
    local changed = with_change(field, status, change_to(status, now, kept ~= known and #kept or nil))
    local fields = {':' .. jid, changed, old, count_of(batch[old]) - 1, status, count_of(batch[status]) + 1}
    if kept ~= known then fields[7], fields[8] = 'm' .. jid, kept end
    if kind == 'cancelled' then
      fields[#fields + 1], fields[#fields + 2] = 'cancelled', count_of(batch.cancelled) + 1
    end
    mark_changed(key, batch, jid)
    redis.call('HSET', key, unpack(fields))
    batch[old], batch[status] = fields[4], fields[6]
    may_conclude = status == 'error' or count_of(batch.enqueue) + count_of(batch.working) == 0
    if old == 'error' then write_beside('ZREM', ended_at(key), jid) end
    old = status
  end
  if is_final and old == status then
    if status ~= 'finish' then write_beside('ZADD', ended_at(key), 'NX', now, jid) end
    if may_conclude then conclude(key) end
  end
  refresh(key, batch, now)
end

-- Returns why no job can be added to a batch, nil when it can.
local function refusal_of_batch(key)
  local batch = read_batch(key, 'completed_at', 'cancelled_at')
  if not batch then return 'UNKNOWN' end
  if batch.cancelled_at then return 'CANCELLED' end
  if batch.completed_at then return 'COMPLETE' end
end

-- Counts jobs that were pushed: jid and arguments of each, 200 at most; those that are known already are left out.
local function add_jobs(key, jids, arguments)
  local batch = read_batch(key, 'total', 'enqueue', 'history')
  local fields = {'total', count_of(batch.total) + #jids, 'enqueue', count_of(batch.enqueue) + #jids}
  local added = with_change('', 'enqueue', change_to('enqueue', tonumber(server_time())))
  for index, jid in ipairs(jids) do
    fields[#fields + 1], fields[#fields + 2] = ':' .. jid, added
    fields[#fields + 1], fields[#fields + 2] = 'p' .. jid, arguments[index]
  end
  mark_changed(key, batch, unpack(jids))
  redis.call('HSET', key, unpack(fields))
end
