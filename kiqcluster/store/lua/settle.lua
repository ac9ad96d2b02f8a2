#!lua flags=allow-oom
-- settle: write the outcomes of a batch of units, each only if its token is still held (rules R4, R5).
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[2]  stat:processed   KEYS[3] stat:processed:<date>   KEYS[4] stat:failed   KEYS[5] stat:failed:<date>
-- KEYS[6+] the keys that effects name by their index
-- ARGV[1]  seconds that a day's counters are kept
-- ARGV[2]  n, then the fields of n units that are done: processed, without effects
-- then for each other unit:
--   field, 1 if it counts as processed else 0, 1 if failed else 0, number of effects, then for each effect:
--   operation, index into KEYS, number of arguments, arguments...
--
-- Operations (the table of effects; features add rows):
--   give_back              RPUSH the payload as it was reserved: it is fetched next
--   give_back_suspect queue   the same to a wake list, which only a reserve reads; to the queue if that has a wrong type
--   rpush payload          the same with a changed payload
--   lpush payload          to the back of the queue
--   sadd member            (the set of queue names)
--   zadd score member      schedule and retry
--   release                 releases the keys that the unit holds besides its payload (holds.lua), kiq:held:<id>
--   park queue largest [name]   the payload waits for room in a set (parked.lua); the first of those that wait goes to
--                           its queue if there is room by now
--   pass_on largest [name]  the unit has ended before a begin that would have asked for a place in a set: its grant
--                           ends, and the first of those that wait go to their queues if there is room (parked.lua)
--   clear jid              the key is deleted if its value is this jid (claims.lua)
--   extend jid seconds     the key lasts for so many seconds at least, if its value is this jid
--   hand_on jid marked next seconds queues queue name payload
--                          as clear; but if the key `marked` has this jid, a push was refused for it, and the payload
--                          goes to the back of its queue: the key is then held by the jid `next`, for so many seconds.
--                          Nothing of that happens if another job holds the key by now
--   absolve digest         a suspect has ended without killing its process: its count is cleared, where
--                          the key is a hash
--   record score member timeout largest   a log of jobs: add, and drop what is too old or too many (dead_set.lua)
--   tell value seconds     a list gets this value as its only element, for so many seconds: who waits for it is told
--   note event seconds     one more event in the history of a job, which is kept for so many seconds; one that cannot be
--                          written keeps no unit
--   forget                 the key is deleted; one that cannot be keeps no unit
--   unmark member          removed from a sorted set; one that cannot be written keeps no unit
--   increment field        a counter in a hash; one that cannot be written keeps no unit
--   iteration ex c rt seconds   the state of an iterable job; one that cannot be written keeps no unit
--   event jid status messages kind last   the job has this status in its batch (batches.lua); nothing where the key is no batch
--   bury score member timeout largest   dead set: add; once per script, drop what is older than timeout seconds at
--                                       that score, and all but the newest largest - 1 (dead_set.lua)
--
-- Returns {number of units that were held, {field, error, field, error, ...},
--          {dead entries dropped because they were too old, because they were too many}}.
-- A unit may still lie in a hand list (hand_lists.lua).  Units that were not held changed nothing.  A unit whose effect Redis refuses (WRONGTYPE, OOM) stays held; the others
-- are still settled.
-- Cost: O(units + effects), O(log n) for each entry of a sorted set.

-- include server_clock
-- include hand_lists
-- include dead_set
-- include parked
-- include holds
-- include claims
-- include results
-- include batches

local buried -- arguments of the last bury, for the trim

local effects = {
  give_back = function(key, _, payload) redis.call('RPUSH', key, payload) end,
  give_back_suspect = function(key, arguments, payload)
    if type(redis.pcall('RPUSH', key, payload)) ~= 'number' then redis.call('RPUSH', arguments[1], payload) end
  end,
  rpush = function(key, arguments) redis.call('RPUSH', key, arguments[1]) end,
  lpush = function(key, arguments) redis.call('LPUSH', key, arguments[1]) end,
  absolve = function(key, arguments)
    if redis.call('TYPE', key).ok == 'hash' then redis.call('HDEL', key, arguments[1]) end
  end,
  park = function(key, arguments, payload)
    park_job(key, arguments[1], payload)
    fill(key, limit_in_force(key, arguments[2], arguments[3]) or 0)
  end,
  pass_on = function(key, arguments, payload)
    end_grant(key, function() return redis.sha1hex(payload) end, false)
    fill(key, limit_in_force(key, arguments[1], arguments[2]) or 0)
  end,
  release = function(key, _, _, field) release_holds(key, field) end,
  clear = function(key, arguments) clear(key, arguments[1]) end,
  extend = function(key, arguments) extend(key, arguments[1], arguments[2]) end,
  hand_on = function(key, arguments)
    local jid, marked, next_jid, seconds, queues, queue, name, payload = unpack(arguments)
    local holder = redis.pcall('GET', key)
    if is_held_by(marked, jid) and (holder == jid or not holder) then
      redis.call('LPUSH', queue, payload) -- first: what follows can be made good, a run cannot
      redis.pcall('SADD', queues, name)
      redis.call('SET', key, next_jid, 'EX', seconds)
    else
      clear(key, jid)
    end
    clear(marked, jid)
  end,
  sadd = function(key, arguments) redis.call('SADD', key, arguments[1]) end,
  zadd = function(key, arguments) redis.call('ZADD', key, arguments[1], arguments[2]) end,
  record = function(key, arguments)
    redis.call('ZADD', key, arguments[1], arguments[2])
    pcall(trim_dead, key, arguments[1], arguments[3], arguments[4])
  end,
  tell = function(key, arguments) tell(key, arguments[1], arguments[2]) end,
  note = function(key, arguments) note(key, arguments[1], arguments[2]) end,
  forget = function(key) redis.pcall('UNLINK', key) end,
  unmark = function(key, arguments) redis.pcall('ZREM', key, arguments[1]) end,
  increment = function(key, arguments) redis.pcall('HINCRBY', key, arguments[1], 1) end,
  iteration = function(key, arguments)
    local written = redis.pcall('HSET', key, 'ex', arguments[1], 'c', arguments[2], 'rt', arguments[3])
    if type(written) == 'number' then redis.pcall('EXPIRE', key, arguments[4]) end
  end,
  event = function(key, arguments) change_status(key, unpack(arguments)) end,
  bury = function(key, arguments)
    redis.call('ZADD', key, arguments[1], arguments[2])
    buried = {key, arguments[1], arguments[3], arguments[4]}
  end,
}

local types = {
  give_back = 'list', rpush = 'list', lpush = 'list', sadd = 'set', zadd = 'zset', bury = 'zset', absolve = false,
  give_back_suspect = false, release = false, park = 'set', pass_on = false, record = 'zset', increment = false, tell = false,
  clear = false, extend = false, hand_on = false, event = false, unmark = false, iteration = false, forget = false,
  note = false,
}

-- Returns why an effect cannot be written, nil when it can.  All effects of a unit are checked before the first one is
-- written: a unit whose second effect is refused is tried again, and its first effect must not be written each time.
local function refusal(operation, key)
  local wanted = types[operation]
  if wanted == nil then return 'ERR there is no effect ' .. operation end
  local found = wanted and redis.call('TYPE', key).ok or 'none'
  if found ~= 'none' and found ~= wanted then
    return 'WRONGTYPE ' .. operation .. ' needs a ' .. wanted .. ', but ' .. key .. ' is a ' .. found
  end
end

local held, processed, failed, refused = 0, 0, 0, {}
local at = 3

local done = tonumber(ARGV[2])
while done > 0 do
  local count = math.min(done, 1000)
  local removed = redis.call('HDEL', KEYS[1], unpack(ARGV, at, at + count - 1))
  held, processed = held + removed, processed + removed
  at, done = at + count, done - count
end

while at <= #ARGV do
  local field, is_processed, is_failed, effect_count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  at = at + 4
  local payload, fine, reason, ahead = redis.call('HGET', KEYS[1], field), true, nil, at
  if not payload then fine, payload = pcall(take_over, KEYS[1], field) end
  if not fine then payload, reason = nil, payload end -- its hand list has a wrong type, or is forbidden
  for _ = 1, payload and effect_count or 0 do
    reason = reason or refusal(ARGV[ahead], KEYS[tonumber(ARGV[ahead + 1])])
    ahead = ahead + 3 + tonumber(ARGV[ahead + 2])
  end
  fine = reason == nil
  for _ = 1, effect_count do
    local operation, key, argument_count = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
    if payload and fine then
      fine, reason = pcall(effects[operation], key, {unpack(ARGV, at + 3, at + 2 + argument_count)}, payload, field)
    end
    at = at + 3 + argument_count
  end
  if not fine then
    refused[#refused + 1] = field
    refused[#refused + 1] = type(reason) == 'table' and reason.err or tostring(reason)
  elseif payload then
    redis.call('HDEL', KEYS[1], field)
    held = held + 1
    processed = processed + tonumber(is_processed)
    failed = failed + tonumber(is_failed)
  end
end

-- Settle first, count second: a counter that cannot be written must not keep a unit.
local function count(total, day, number)
  if number == 0 then return end
  redis.pcall('INCRBY', total, number)
  redis.pcall('INCRBY', day, number)
  redis.pcall('EXPIRE', day, ARGV[1])
end
count(KEYS[2], KEYS[3], processed)
count(KEYS[4], KEYS[5], failed)

-- Trim last, and ignore errors: a unit must not stay held because of a dead set that cannot be trimmed.
local old, excess = 0, 0
if buried then
  local fine
  fine, old, excess = pcall(trim_dead, unpack(buried))
  if not fine then old, excess = 0, 0 end
end
return {held, refused, {old, excess}}
