#!lua flags=allow-oom
-- begin: check the conditions of all features before a unit runs, in one step.  No row changes anything unless all are
-- true.
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[2]  kiq:held:<id>          hash    "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[3+] the keys that rows name by their index
-- ARGV[1]  field of the unit   ARGV[2] holder: the member that is added to the sets
-- then for each row: operation, index into KEYS, number of arguments, arguments...
--
-- Operations (the table of begin rows; features add rows).  The last argument, `otherwise`, says what happens to the
-- unit when the row is not true: "drop", "park", or "defer <seconds>":
--   absent otherwise        the key does not exist
--   unmarked member otherwise   a sorted set does not have the member; a key of another type has none
--   fixed_window, sliding_window, leaky_bucket   largest seconds was_promised
--                           one more start is within the rate (rates.lua), and is counted; else "defer <seconds>"
--   concurrent largest otherwise   the holder has one of `largest` places of a rate, or takes one (places.lua)
--   enter largest [name] otherwise
--                           the holder is one of at most `largest` members of a set, or becomes one; every script that
--                           moves the unit removes the holder from the set.  0: no limit; below 0: nobody enters.
--                           name: of a limit that may be overridden (parked.lua); with "" as `largest`, the limit that
--                           a worker has used last
--   working jid otherwise  the batch is not cancelled; the job has begun in it (batches.lua)
-- These are always true, and have no `otherwise`:
--   clear jid               the key is deleted if its value is this jid (claims.lua)
--   note event seconds      one more event in the history of a job, which is kept for so many seconds (results.lua)
--   renew jid seconds       the key lasts for so many seconds at least if its value is this jid; a key that does not
--                           exist is claimed again
--
-- While jobs are parked for a set, only those enter it that were granted a place: the others park behind them.
-- A unit with a grant in one set passes the lines of its other sets, too: at the end of another line it would give
-- up its grant, and the next one would follow it there, and so on, at each begin.
-- Parked jobs go back to their queues for each set of these rows that has room afterwards, whatever is decided.  For
-- this unit may have been granted a place; if it does not enter now, it will never release anything.
--
-- Returns {"GO"}; {"LOST"} when the unit is no longer held; or {what happens to the unit, number of the first row that
-- is not true}.  May be sent again.  Cost: O(rows).

-- include parked
-- include holds
-- include hand_lists
-- include rates
-- include holders
-- include places
-- include claims
-- include server_clock
-- include batches
-- include results

local payload = redis.call('HGET', KEYS[1], ARGV[1]) or take_over(KEYS[1], ARGV[1])
if not payload then return {'LOST'} end

local holder = ARGV[2]
local known_digest
local function digest()
  known_digest = known_digest or redis.sha1hex(payload)
  return known_digest
end

-- Returns whether this job was sent back from the line of a set.
local function is_granted(key)
  if redis.call('EXISTS', grants_at(key)) == 0 then return false end
  return type(redis.pcall('ZSCORE', grants_at(key), digest())) == 'string'
end

local rows, at = {}, 3

-- Returns whether this job was sent back from the line of one of its sets.
local known_grant
local function has_grant()
  if known_grant ~= nil then return known_grant end
  known_grant = false
  for _, row in ipairs(rows) do
    if row[1] == 'enter' and not known_grant then known_grant = is_granted(row[2]) end
  end
  return known_grant
end

-- Each function returns whether its row is true, and may return what happens to the unit if not.  All rows are checked
-- before any row changes anything, but that a rate promises a later time to a unit that it refuses.
local is_true = {
  absent = function(key) return redis.call('EXISTS', key) == 0 end,
  unmarked = function(key, arguments) return type(redis.pcall('ZSCORE', key, arguments[1])) ~= 'string' end,
  enter = function(key, _, largest, has_line)
    if largest == 0 or not has_line and redis.call('SCARD', key) < largest then return true end
    if redis.call('SMISMEMBER', key, holder)[1] == 1 then return true end
    if not has_line then return false end
    if has_grant() then return redis.call('SCARD', key) < largest end
    return room_of(key, largest) > 0 and line_length(key) == 0
  end,
  concurrent = function(key, arguments) return has_place(key, tonumber(arguments[1]), holder) end,
  working = function(key)
    local batch = read_batch(key, 'cancelled_at')
    return not batch or not batch.cancelled_at
  end,
  clear = function() return true end,
  renew = function() return true end,
  note = function() return true end,
}

local change = {
  enter = function(key)
    register_hold(KEYS[2], ARGV[1], holder, key) -- register first: releasing a key that is not held does no harm
    redis.call('SADD', key, holder)
  end,
  concurrent = function(key, arguments) take_place(key, arguments[1], holder, KEYS[2], ARGV[1]) end,
  working = function(key, arguments) change_status(key, arguments[1], 'working', '', '', '') end,
  clear = function(key, arguments) clear(key, arguments[1]) end,
  note = function(key, arguments) note(key, arguments[1], arguments[2]) end,
  renew = function(key, arguments)
    redis.call('SET', key, arguments[1], 'NX', 'EX', arguments[2])
    extend(key, arguments[1], arguments[2])
  end,
}

-- Reads the rate of a row, and returns the same.
local function is_within_rate(row)
  row.rate = read_rate(row[1], row[2], row[3])
  local wait = wait_for_start(row.rate, row[3])
  return wait == 0, string.format('defer %.6f', wait)
end

local function send_next(is_parked)
  for _, row in ipairs(rows) do
    if row[1] == 'enter' then
      if row[6] then
        end_grant(row[2], digest, is_parked)
        fill(row[2], row[4])
      end
      if row[5] then redis.pcall('HSET', key_with_prefix_of(row[2], 'limits'), row[3][2], row[3][1]) end
    end
  end
end

while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local row = {ARGV[at], KEYS[tonumber(ARGV[at + 1])], {unpack(ARGV, at + 3, at + 2 + count)}}
  if not is_true[row[1]] and not RATES[row[1]] then return redis.error_reply('ERR there is no begin row ' .. row[1]) end
  if row[1] == 'enter' then
    row[4], row[5] = limit_in_force(row[2], row[3][1], count > 2 and row[3][2] or nil)
    row[4] = row[4] or 0 -- no worker has known one yet
    row[6] = has_line(row[2])
  end
  rows[#rows + 1] = row
  at = at + 3 + count
end

for number, row in ipairs(rows) do
  local fine, otherwise
  if RATES[row[1]] then fine, otherwise = is_within_rate(row) else fine = is_true[row[1]](row[2], row[3], row[4], row[6]) end
  if not fine then
    otherwise = otherwise or row[3][#row[3]]
    local line = otherwise == 'park' and redis.call('TYPE', parked_at(row[2])).ok or 'none'
    if line ~= 'none' and line ~= 'zset' then -- the settle could not park it, and would keep it
      return redis.error_reply('WRONGTYPE ' .. parked_at(row[2]) .. ' is a ' .. line .. ' and should be a zset')
    end
    send_next(otherwise == 'park')
    return {otherwise, number}
  end
end
for _, row in ipairs(rows) do
  if row.rate then start(row.rate, row[3], holder) elseif change[row[1]] then change[row[1]](row[2], row[3]) end
end
send_next(false)
return {'GO'}
