#!lua flags=allow-oom
-- publish: write a process to Sidekiq's registry, in one step, so that no reader sees half of it.
--
-- KEYS[1]  processes              set     identities of live processes
-- KEYS[2]  <identity>             hash    description of the process
-- KEYS[3]  kiq:strikes            hash    id -> strike (features/strikes.py), read
-- KEYS[4+] <identity>:work, <identity>:workers   hashes   thread -> running job; only when there are or were some
-- ARGV[1]  identity   ARGV[2] seconds that the hashes are kept   ARGV[3] number of words that the fields have
-- ARGV[4+] fields of the process and their values, then threads and their jobs, which replace those in KEYS[4+]
--
-- Returns {number of fields that are new, the server's time: seconds, microseconds, {id, strike, id, strike, ...}}.
-- Cost: O(words).
-- Like all scripts here it may run when Redis is out of memory: it writes little, and operators need the registry then.

local MOST = 1000 -- words of one command: Lua's stack holds a few thousand

local last = 3 + tonumber(ARGV[3])
local added = redis.call('HSET', KEYS[2], unpack(ARGV, 4, last))
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('SADD', KEYS[1], ARGV[1])

for at = 4, #KEYS do
  redis.call('UNLINK', KEYS[at])
  for first = last + 1, #ARGV, MOST do
    redis.call('HSET', KEYS[at], unpack(ARGV, first, math.min(first + MOST - 1, #ARGV)))
  end
  if #ARGV > last then redis.call('EXPIRE', KEYS[at], ARGV[2]) end
end
local time = redis.call('TIME')
local strikes = redis.pcall('HGETALL', KEYS[3])
return {added, tonumber(time[1]), tonumber(time[2]), strikes.err and {} or strikes}
