#!lua flags=allow-oom
-- join: enter the membership (rule R1).  May be sent again; a repetition changes only the time of the beat.
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:beats              zset    identity by the server's time of its last beat, in milliseconds
-- KEYS[3]  kiq:format             string  the oldest format that may still join; absent: any
-- ARGV[1]  identity   ARGV[2] record: epoch, boot id, pid namespace, pid, start
-- ARGV[3]  format that the caller writes
--
-- Returns 0, or the required format when the caller's is too old: then nothing was changed.  Cost: O(log n).
-- Like all scripts here it may run when Redis is out of memory: otherwise no worker could drain the queues.

local oldest = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
if oldest > tonumber(ARGV[3]) then return oldest end

redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) -- a late join must not lower an epoch that was raised since
-- When the beat cannot be written (KEYS[2] has a wrong type, say), the first call of beat.lua reports it.
local clock = redis.call('TIME')
redis.pcall('ZADD', KEYS[2], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
return 0
