#!lua flags=allow-oom
-- join: enter the membership (rule R1); may be sent again, and changes nothing then but the time of the beat.
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:beats:2            zset    identity by the server's time of its last beat, in milliseconds
-- KEYS[3]  kiq:beats              hash    format 1: identity -> number of beats; counted only while it exists
-- KEYS[4]  kiq:format             string  the oldest format that may still join; absent: any
-- ARGV[1]  identity   ARGV[2] record: epoch, boot id, pid namespace, pid, start
-- ARGV[3]  format that the caller writes
--
-- Returns 0, or the format that is asked for where the caller's is too old: then nothing was changed.  Cost: O(log n).
-- Like all scripts here it may run when Redis is out of memory: a queue that nobody may drain stays full.

local oldest = tonumber(redis.call('GET', KEYS[4]) or '0') or 0
if oldest > tonumber(ARGV[3]) then return oldest end

redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) -- one that arrives late must not lower an epoch that was raised since
-- Where a beat cannot be written, as under a key of a wrong type, the first one by beat.lua says so.
local clock = redis.call('TIME')
redis.pcall('ZADD', KEYS[2], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 1 then redis.pcall('HINCRBY', KEYS[3], ARGV[1], 1) end
return 0
