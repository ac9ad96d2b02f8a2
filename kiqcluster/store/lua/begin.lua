#!lua flags=allow-oom
-- begin: what must be true before a unit runs, for all features in one step.  All rows are true, or nothing is changed.
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[2]  kiq:held:<id>          hash    "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[3+] the keys that rows name by their index
-- ARGV[1]  field of the unit   ARGV[2] holder: who it is in the sets that it enters
-- then for each row: operation, index into KEYS, number of arguments, arguments...
--
-- Operations (the table of begin rows; features add rows); the last argument says what becomes of the unit otherwise:
-- "drop", "park", or "defer <seconds>":
--   absent otherwise        the key does not exist
--   enter largest otherwise the holder is one of at most `largest` members of a set, or becomes one; it leaves the set
--                           with the unit, whoever moves that
--
-- Returns {"GO"}; {"LOST"} when the unit is not held any more; or {what becomes of it, number of the row}, the first
-- row that is not true.  May be sent again.  Cost: O(rows).

-- include holds

if not redis.call('HGET', KEYS[1], ARGV[1]) then return {'LOST'} end

local holder = ARGV[2]

-- Each returns whether it is true; looked at before any row changes anything.
local is_true = {
  absent = function(key) return redis.call('EXISTS', key) == 0 end,
  enter = function(key, arguments)
    return redis.call('SMISMEMBER', key, holder)[1] == 1 or redis.call('SCARD', key) < tonumber(arguments[1])
  end,
}

local change = {
  enter = function(key)
    if redis.call('SMISMEMBER', key, holder)[1] == 1 then return end
    register_hold(KEYS[2], ARGV[1], holder, key) -- first: what is registered and not held is released without harm
    redis.call('SADD', key, holder)
  end,
}

local rows, at = {}, 3
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local row = {ARGV[at], KEYS[tonumber(ARGV[at + 1])], {unpack(ARGV, at + 3, at + 2 + count)}}
  if not is_true[row[1]] then return redis.error_reply('ERR there is no begin row ' .. row[1]) end
  rows[#rows + 1] = row
  at = at + 3 + count
end

for number, row in ipairs(rows) do
  if not is_true[row[1]](row[2], row[3]) then return {row[3][#row[3]], number} end
end
for _, row in ipairs(rows) do
  if change[row[1]] then change[row[1]](row[2], row[3]) end
end
return {'GO'}
