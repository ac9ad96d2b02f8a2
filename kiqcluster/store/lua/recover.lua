#!lua flags=allow-oom
-- recover: end a membership and give its units back, a batch at a time (rules R1, R5, R7).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    token -> "<length of queue>:<queue><payload>"
-- KEYS[3]  kiq:beats              hash    identity -> number of beats
-- KEYS[4]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- ARGV[1]  identity   ARGV[2] prefix of queue keys, "queue:" included   ARGV[3] units at most in this batch
-- ARGV[4]  seconds that suspects are remembered
-- ARGV[5+] tokens of the units that were running when the process died, or "*" where nobody knows
--
-- The first batch takes the epoch away, so a reserve of that process finds itself fenced from here on; the last one
-- removes the identity.
-- Returns {units given back, units left, units that their queue's key refuses, Redis' words about them}; call again
-- while others are left.  May be sent again, by anybody.
-- Cost: O(u log u) for u units in flight.

-- Fenced, but not forgotten until everything is given back: whoever takes over from here must find it.
local record = redis.call('HGET', KEYS[1], ARGV[1])
if record and string.match(record, '^%d') then
  redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(record, '^%d+', 'fenced', 1)))
end

local tokens = redis.call('HKEYS', KEYS[2])
table.sort(tokens)

local running = {}
for i = 5, #ARGV do running[ARGV[i]] = true end

local given, refused, words = 0, 0, ''
for i = #tokens, 1, -1 do -- newest first, so that the oldest is fetched next
  if given == tonumber(ARGV[3]) then break end
  local unit = redis.call('HGET', KEYS[2], tokens[i])
  local length = string.match(unit, '^%d+')
  local name_from = #length + 2
  local payload_from = name_from + tonumber(length)
  local queue, payload = string.sub(unit, name_from, payload_from - 1), string.sub(unit, payload_from)
  local fine, reason = pcall(redis.call, 'RPUSH', ARGV[2] .. queue, payload)
  if fine then
    if running[tokens[i]] or running['*'] then
      redis.call('HINCRBY', KEYS[4], redis.sha1hex(payload), 1)
      redis.call('EXPIRE', KEYS[4], ARGV[4])
    end
    redis.call('HDEL', KEYS[2], tokens[i])
    given = given + 1
  else
    refused = refused + 1
    words = type(reason) == 'table' and reason.err or tostring(reason)
  end
end
if given == #tokens then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
end
return {given, #tokens - given - refused, refused, words}
