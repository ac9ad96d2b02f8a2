#!lua
-- push: write one job and its rows if all guards among the rows are true.  All of it happens, or nothing.
--
-- KEYS[1]  queues        set            KEYS[2]  queue:<name> (list) or schedule (zset)
-- KEYS[3+] the keys that rows name by their index
-- ARGV[1]  payload   ARGV[2] name of the queue   ARGV[3] epoch seconds of a scheduled job, "" for a job that is due
-- then for each row: operation, index into KEYS, number of arguments, arguments...
--
-- Operations (the table of push rows; features add rows):
--   absent                 guard: the key does not exist
--   claim value seconds    guard: the key does not exist; it is set, and expires after so many seconds
--   sadd member            written with the job
--   unmark member          removed from a sorted set with the job
--   tick name from to      guard: this member of a sorted set has the score `from`; its score becomes `to`, also when a
--                          later guard refuses the job
--   event jid arguments    guard: the batch takes jobs (batches.lua); the job is counted in it
--   unknown jid            guard: the batch does not know the job yet
--   log text most          pushed to a list, of which the first so many are kept; when a guard other than a tick
--                          refuses the job, with a newline and the value of that guard's key behind it
--   note event seconds     one more event in the history of the job, which is kept for so many seconds (results.lua)
--   count_refused field    when the guard before it refuses the job: one more in this field of a hash
--   mark_refused seconds   when the guard before it refuses the job: the key gets the value of the guard's key, and
--                          expires after so many seconds
--
-- Returns {"PUSHED"}, or {"REFUSED", number of the row, value of its key}: the first guard that is not true.
-- Cost: O(rows), O(log n) for a scheduled job.

-- include server_clock
-- include batches
-- include results

local function value_of(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and value or ''
end

local guards = {
  absent = function(key) return redis.call('EXISTS', key) == 0 end,
  claim = function(key) return redis.call('EXISTS', key) == 0 end,
  tick = function(key, arguments)
    return tonumber(redis.call('ZSCORE', key, arguments[1]) or nil) == tonumber(arguments[2])
  end,
  event = function(key) return not refusal_of_batch(key) end,
  unknown = function(key, arguments) return redis.call('HEXISTS', key, ':' .. arguments[1]) == 0 end,
}
local types = {sadd = 'set'} -- required type of a key that exists
local locks = {absent = true, claim = true} -- guards of keys that hold a jid; a key of another type is no lock

-- What a list cannot take keeps no job from its queue.
local function log(key, text, most)
  redis.pcall('LPUSH', key, text)
  redis.pcall('LTRIM', key, 0, tonumber(most) - 1)
end

local changes = {
  claim = function(key, arguments) redis.call('SET', key, arguments[1], 'EX', arguments[2]) end,
  tick = function(key, arguments) redis.call('ZADD', key, arguments[3], arguments[1]) end,
  sadd = function(key, arguments) redis.call('SADD', key, arguments[1]) end,
  event = function(key, arguments) add_jobs(key, {arguments[1]}, {arguments[2]}) end,
  unmark = function(key, arguments) redis.pcall('ZREM', key, arguments[1]) end,
  log = function(key, arguments) log(key, arguments[1], arguments[2]) end,
  note = function(key, arguments) note(key, arguments[1], arguments[2]) end,
}

local BEHIND = {tick = true, log = true, event = true, note = true} -- changes that are made once the job is written

local refusals = {
  count_refused = function(key, arguments) redis.pcall('HINCRBY', key, arguments[1], 1) end,
  mark_refused = function(key, arguments, held) redis.call('SET', key, held, 'EX', arguments[1]) end,
}

local rows, at = {}, 4
while at <= #ARGV do
  local operation, key, count = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  if not guards[operation] and not changes[operation] and not refusals[operation] then
    return redis.error_reply('ERR there is no push row ' .. operation)
  end
  rows[#rows + 1] = {operation, key, {unpack(ARGV, at + 3, at + 2 + count)}}
  at = at + 3 + count
end

-- Returns why a key cannot be written to, nil when it can.  All keys are checked before anything is written.
local function refusal(operation, key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= wanted then
    return 'WRONGTYPE ' .. operation .. ' needs a ' .. wanted .. ', but ' .. key .. ' is a ' .. found
  end
end

-- The guard of this row is not true.  The answer is the refusal, whether it can be counted or not; but without its mark
-- the job that holds the key would not run again for this one, so then the caller gets the error.
local function refuse(number)
  local held = value_of(rows[number][2])
  if held == '' and locks[rows[number][1]] then
    local reason = refusal(rows[number][1], rows[number][2], 'string')
    if reason then return redis.error_reply(reason) end
  end
  for after = number + 1, #rows do
    local operation, key, arguments = unpack(rows[after])
    if guards[operation] then break end
    if refusals[operation] then refusals[operation](key, arguments, held) end
  end
  local is_over = false -- whether this push had a tick, which is over without a job
  for before = 1, number - 1 do
    if rows[before][1] == 'tick' then
      changes.tick(rows[before][2], rows[before][3])
      is_over = true
    end
  end
  for _, row in ipairs(is_over and rows or {}) do
    if row[1] == 'log' then log(row[2], row[3][1] .. '\n' .. held, row[3][2]) end
  end
  return {'REFUSED', number, held}
end

local reason = refusal('push', KEYS[2], ARGV[3] == '' and 'list' or 'zset') or refusal('push', KEYS[1], 'set')
if reason then return redis.error_reply(reason) end
for number, row in ipairs(rows) do
  local operation, key, arguments = unpack(row)
  if guards[operation] and not guards[operation](key, arguments) then return refuse(number) end
  reason = types[operation] and refusal(operation, key, types[operation])
  if reason then return redis.error_reply(reason) end
end

-- Claims come before the job: a failed claim leaves no job without its lock.  A failed push gives its claims back, which
-- would keep out equal jobs for their whole time.  The tick comes after the job: one that is over always has its job.
local claimed, is_pushed = {}, false
local function write_rows(is_behind)
  for _, row in ipairs(rows) do
    if changes[row[1]] and (BEHIND[row[1]] or false) == is_behind then changes[row[1]](row[2], row[3]) end
    if row[1] == 'claim' and not is_behind then claimed[#claimed + 1] = row[2] end
  end
end
local function write()
  write_rows(false)
  if ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  else
    redis.pcall('SADD', KEYS[1], ARGV[2]) -- on failure the job still runs
    redis.call('LPUSH', KEYS[2], ARGV[1])
  end
  is_pushed = true
  write_rows(true)
end

local fine, failure = pcall(write)
if not fine then
  for _, key in ipairs(claimed) do redis.pcall('DEL', key) end
  if is_pushed and ARGV[3] == '' then redis.pcall('LREM', KEYS[2], 1, ARGV[1]) end
  if is_pushed and ARGV[3] ~= '' then redis.pcall('ZREM', KEYS[2], ARGV[1]) end
  return redis.error_reply(type(failure) == 'table' and failure.err or tostring(failure))
end
return {'PUSHED'}
