#!lua flags=allow-oom
-- stale_hands: find processes that are gone, and into whose hand lists a late command may still move a payload.
--
-- KEYS[1]  kiq:hands              zset    identity by when its hand lists are looked at next, in milliseconds
-- KEYS[2]  kiq:members            hash    identity -> "epoch ..."
-- ARGV[1]  prefix of the keys kiq:inflight:<id>   ARGV[2] most processes that are looked at
-- ARGV[3]  milliseconds until a live process is looked at again, and the most for one that is gone
-- ARGV[4]  milliseconds for which one that is gone is remembered
--
-- Returns the identities that the caller should recover once more.  One that is gone is returned again after as long
-- as it has been gone, so often at first; and then forgotten, unless anything lies in its lists: only the caller's
-- recovery takes that out, and finds it by the hash.  The field `gone` of its hash says since when.
-- Cost: O(log n) for n processes while nothing is due.

-- include hand_lists

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
for _, identity in ipairs(due) do
  local inflight = ARGV[1] .. identity
  local hands = key_beside(inflight, 'kiq:hands:')
  if redis.call('HGET', KEYS[2], identity) then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), identity)
  else
    local kind = redis.call('TYPE', hands).ok
    local is_known = kind == 'hash' or kind == 'none' -- else nothing tells of its lists any more
    if is_known then redis.call('HSETNX', hands, 'gone', string.format('%d', now)) end
    local age = is_known and now - (tonumber(redis.call('HGET', hands, 'gone')) or now) or math.huge
    found[#found + 1] = identity
    if age > tonumber(ARGV[4]) and is_empty(inflight) then
      redis.call('ZREM', KEYS[1], identity)
      redis.call('UNLINK', hands)
    else
      redis.call('ZADD', KEYS[1], now + math.min(math.max(age, 1000), tonumber(ARGV[3])), identity)
    end
  end
end
return found
