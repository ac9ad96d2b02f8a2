#!lua flags=allow-oom
-- move_entries: move entries of a sorted set to queues, to the dead set, to another score or name, or away; each as a
-- whole.
--
-- KEYS[1]  schedule, retry, dead  zset    payloads by score
-- KEYS[2]  queues                 set     queue names
-- KEYS[3]  dead                   zset    buried payloads
-- KEYS[4+] queue:<name>           lists
-- ARGV[1]  now, epoch seconds
-- ARGV[2]  highest score of an entry that is moved (now, for what is due); '' moves whatever its score is
-- ARGV[3]  score that an entry gets which cannot be moved; '' leaves it where it is
-- ARGV[4], ARGV[5]  limits of the dead set, heeded when something was buried: score below which entries are dropped,
--          and how many are kept, less one
-- then for each entry: old bytes, verb, index into KEYS, name of the queue, new bytes
--   verb "push": LPUSH the new bytes; "bury": ZADD them to the dead set, as of now; "drop": remove it;
--   "defer": the new bytes are its new score; "rename": it gets the new bytes, and keeps its score (where these are there
--   already, it is left alone: two would become one)
--
-- An entry is moved only if it is still there, and no higher than ARGV[2]: another poller may have been faster, and
-- Ruby's web page may have rescheduled it.  Payloads are never decoded here (cjson mangles numbers).
-- An entry that Redis refuses to move (its queue's key is no list) holds up no other.
-- Returns {{index of each entry moved, from 1}, {Redis' words about those that could not be}}.
-- Cost: O(entries x log n).

local moved, refusals, is_buried = {}, {}, false
local highest = tonumber(ARGV[2])

local verbs = {
  push = function(key, name, new)
    pcall(redis.call, 'SADD', KEYS[2], name) -- without it the job runs all the same
    redis.call('LPUSH', key, new)
  end,
  bury = function(_, _, new, old)
    redis.call('ZADD', KEYS[3], ARGV[1], new)
    is_buried = true
    return KEYS[1] == KEYS[3] and new == old -- then it is there, and must stay
  end,
  drop = function() end,
  defer = function(_, _, new, old)
    redis.call('ZADD', KEYS[1], 'XX', new, old)
    return true
  end,
  rename = function(_, _, new, old, score)
    if new == old then return true end
    local is_added = redis.call('ZADD', KEYS[1], 'NX', score, new) == 1
    return not is_added, not is_added
  end,
}

for at = 6, #ARGV, 5 do
  local old, verb, key, name, new = ARGV[at], ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], ARGV[at + 3], ARGV[at + 4]
  local score = redis.call('ZSCORE', KEYS[1], old)
  if score and (not highest or tonumber(score) <= highest) then
    local fine, stays, is_alone = pcall(verbs[verb], key, name, new, old, score)
    if fine then
      if not stays then redis.call('ZREM', KEYS[1], old) end
      if not is_alone then moved[#moved + 1] = (at - 1) / 5 end
    else
      refusals[#refusals + 1] = type(stays) == 'table' and stays.err or tostring(stays)
      if ARGV[3] ~= '' then redis.call('ZADD', KEYS[1], 'XX', ARGV[3], old) end
    end
  end
end

if is_buried then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[4])
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -tonumber(ARGV[5]))
end
return {moved, refusals}
