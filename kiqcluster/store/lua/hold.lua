#!lua
-- hold: take a lock that has an owner and a lease, keep it, or let it go.
--
-- KEYS[1]  the lock  string  its owner
-- ARGV[1]  `take` if it is free or ours already, `force` whoever has it, `drop` if it is ours
-- ARGV[2]  our name
-- ARGV[3]  milliseconds of the lease; one that is longer already stays as it is
--
-- Returns {who has it now, or false; milliseconds that they have left; who had it before, or false}.  Cost: O(1).

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
