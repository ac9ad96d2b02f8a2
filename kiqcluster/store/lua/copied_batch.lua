#!lua flags=allow-oom
-- copied_batch: forget changes of a batch that were copied to a database, unless they have changed again.
--
-- KEYS[1]  kiq:batch:<id>          hash    (batches.lua)
-- KEYS[2]  kiq:batch:<id>:changed  set     jids of the jobs that have changed
-- KEYS[3]  kiq:batches:changed      zset    ids of the batches that have changed
-- ARGV[1]  id   ARGV[2] its score in KEYS[3] when it was read
-- then for each job that was copied: jid, its status with its changes, bytes of its messages
--
-- A complete batch whose changes are all copied is kept for its shorter time from now on.
-- Returns 1 if there are no more changes of the batch, else 0.  May be sent again.  Cost: O(jobs).

-- include server_clock
-- include batches

local jids = {}
for at = 3, #ARGV, 3 do
  local found = redis.call('HMGET', KEYS[1], ':' .. ARGV[at], 'm' .. ARGV[at])
  if found[1] == ARGV[at + 1] and #(found[2] or '') == tonumber(ARGV[at + 2]) then jids[#jids + 1] = ARGV[at] end
end
for first = 1, #jids, 1000 do redis.call('SREM', KEYS[2], unpack(jids, first, math.min(first + 999, #jids))) end
local batch = read_batch(KEYS[1], 'completed_at', 'kept')
if batch and redis.call('SCARD', KEYS[2]) > 0 then return 0 end
if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or nil) ~= tonumber(ARGV[2]) then return 0 end
if batch and batch.completed_at then
  redis.call('HSET', KEYS[1], 'ttl', batch.kept)
  keep_complete(KEYS[1], batch.kept)
end
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
