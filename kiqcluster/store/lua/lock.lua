#!lua
-- lock: take, renew or release a lock that has an owner and a lease.
--
-- KEYS[1]  the lock  string  its owner
-- ARGV[1]  `take`: only if it is free or already ours; `force`: from any owner; `drop`: release it if it is ours
-- ARGV[2]  our name
-- ARGV[3]  milliseconds of the lease; a lease that already lasts longer is kept
--
-- Returns {owner now, or false; milliseconds left of the lease; owner before, or false}.  Cost: O(1).

local before = redis.call('GET', KEYS[1])
local is_ours = before == ARGV[2]
if ARGV[1] == 'drop' then
  if is_ours then redis.call('DEL', KEYS[1]) end
elseif is_ours then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
elseif not before or ARGV[1] == 'force' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), before}
