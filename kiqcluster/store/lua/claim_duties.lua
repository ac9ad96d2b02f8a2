#!lua flags=allow-oom
-- claim_duties: claim those of some duties of the fleet that are due.
--
-- KEYS[1]  kiq:polls              hash    duty -> when somebody has begun it last, the server's time in milliseconds
-- KEYS[2]  kiq:members            hash    identity -> "epoch ..."
-- ARGV[1]  how many duties   ARGV[2+] their names, then for each the milliseconds after which it is due again
--
-- Returns {number of members, milliseconds until the first duty is due, ...}; 0 when the caller has claimed it now.
-- Due is also a duty that nobody has begun, and one begun later than now: the server's clock was set back.
-- A key of a wrong type is overwritten: it holds nothing but times.  Names of earlier releases stay there; beyond
-- MOST_NAMES the times begin anew.
-- Cost: O(duties).

local MOST_NAMES = 1000

local count = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local members = redis.pcall('HLEN', KEYS[2])
local reply, claimed = {type(members) == 'number' and members or 1}, nil

local begun = redis.pcall('HMGET', KEYS[1], unpack(ARGV, 2, count + 1))
if begun.err then
  redis.call('UNLINK', KEYS[1])
  begun = {}
end
for i = 1, count do
  local at = tonumber(begun[i])
  local left = at and at <= now and at + ARGV[count + i + 1] - now or 0
  if left >= 1 then
    reply[i + 1] = left
  else
    reply[i + 1] = 0
    claimed = claimed or {}
    claimed[#claimed + 1] = ARGV[i + 1]
    claimed[#claimed + 1] = string.format('%d', now)
  end
end
if claimed then
  if redis.call('HLEN', KEYS[1]) > MOST_NAMES then redis.call('UNLINK', KEYS[1]) end
  redis.call('HSET', KEYS[1], unpack(claimed))
end
return reply
