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
--   fixed_window, sliding_window, leaky_bucket   largest seconds was_promised
--                           one more start is within the rate (rates.lua), and is counted; else "defer <seconds>"
--   enter largest otherwise the holder is one of at most `largest` members of a set, or becomes one; every script that
--                           moves the unit removes the holder from the set
--
-- A parked job goes back to its queue for each set of these rows that has room afterwards, whatever is decided.  For
-- this unit may have been sent back in its turn; if it does not enter now, it will never release anything.
--
-- Returns {"GO"}; {"LOST"} when the unit is no longer held; or {what happens to the unit, number of the first row that
-- is not true}.  May be sent again.  Cost: O(rows).

-- include holds
-- include hand_lists
-- include rates

if not redis.call('HGET', KEYS[1], ARGV[1]) and not take_over(KEYS[1], ARGV[1]) then return {'LOST'} end

local holder = ARGV[2]

-- Each function returns whether its row is true, and may return what happens to the unit if not.  All rows are checked
-- before any row changes anything, but that a rate promises a later time to a unit that it refuses.
local is_true = {
  absent = function(key) return redis.call('EXISTS', key) == 0 end,
  enter = function(key, arguments)
    return redis.call('SMISMEMBER', key, holder)[1] == 1 or redis.call('SCARD', key) < tonumber(arguments[1])
  end,
}

local change = {
  enter = function(key)
    if redis.call('SMISMEMBER', key, holder)[1] == 1 then return end
    register_hold(KEYS[2], ARGV[1], holder, key) -- register first: releasing a key that is not held does no harm
    redis.call('SADD', key, holder)
  end,
}

for kind in pairs(count_start) do
  is_true[kind] = function(key, arguments)
    local wait = wait_for_start(kind, key, arguments)
    return wait == 0, string.format('defer %.6f', wait)
  end
  change[kind] = function(key, arguments) start(kind, key, arguments, holder) end
end

local rows, at = {}, 3

local function pass_turns_on()
  for _, row in ipairs(rows) do
    local members = row[1] == 'enter' and redis.pcall('SCARD', row[2])
    if type(members) == 'number' and members < tonumber(row[3][1]) then unpark(row[2]) end
  end
end

while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local row = {ARGV[at], KEYS[tonumber(ARGV[at + 1])], {unpack(ARGV, at + 3, at + 2 + count)}}
  if not is_true[row[1]] then return redis.error_reply('ERR there is no begin row ' .. row[1]) end
  rows[#rows + 1] = row
  at = at + 3 + count
end

for number, row in ipairs(rows) do
  local fine, otherwise = is_true[row[1]](row[2], row[3])
  if not fine then
    pass_turns_on()
    return {otherwise or row[3][#row[3]], number}
  end
end
for _, row in ipairs(rows) do
  if change[row[1]] then change[row[1]](row[2], row[3]) end
end
pass_turns_on()
return {'GO'}
