#!lua flags=allow-oom
-- move_due: move due entries of a sorted set to their queues, or to the dead set; no window between the two.
--
-- KEYS[1]  schedule or retry      zset    payloads by due second
-- KEYS[2]  queues                 set     queue names
-- KEYS[3]  dead                   zset    buried payloads
-- KEYS[4+] queue:<name>           lists
-- ARGV[1]  now, epoch seconds
-- then for each entry: old bytes, verb, index into KEYS, name of the queue, new bytes
--   verb "push": LPUSH the new bytes; "bury": ZADD them to the dead set; "drop": client middleware stopped it;
--   "defer": look again in DEFERRAL seconds
--
-- An entry is moved only if it is still there and still due: another poller may have been faster, and Ruby's
-- web page may have rescheduled it.  Payloads are never decoded here (cjson mangles numbers).
-- An entry that cannot be pushed (its queue's key is no list) is deferred, and holds up no other.
-- Returns {entries moved, Redis' words about those that could not be}.  Cost: O(entries x log n).

local DEFERRAL = 60
local moved, refusals = 0, {}
for at = 2, #ARGV, 5 do
  local old, verb, key, name, new = ARGV[at], ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], ARGV[at + 3], ARGV[at + 4]
  local score = redis.call('ZSCORE', KEYS[1], old)
  if score and tonumber(score) <= tonumber(ARGV[1]) then
    local fine, refusal = true, nil
    if verb == 'push' then
      pcall(redis.call, 'SADD', KEYS[2], name) -- without it the job runs all the same
      fine, refusal = pcall(redis.call, 'LPUSH', key, new)
    elseif verb == 'bury' then
      fine, refusal = pcall(redis.call, 'ZADD', KEYS[3], ARGV[1], new)
    end
    if not fine then
      refusals[#refusals + 1] = type(refusal) == 'table' and refusal.err or tostring(refusal)
    end
    if not fine or verb == 'defer' then
      redis.call('ZADD', KEYS[1], 'XX', tonumber(ARGV[1]) + DEFERRAL, old)
    else
      redis.call('ZREM', KEYS[1], old)
      moved = moved + 1
    end
  end
end
return {moved, refusals}
