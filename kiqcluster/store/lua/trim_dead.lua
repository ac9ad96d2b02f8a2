#!lua flags=allow-oom
-- trim_dead: drop the oldest entries of the dead set, at most 1 000 (dead_set.lua).
--
-- KEYS[1]  dead                   zset    buried payloads by time of death
-- ARGV[1]  now, epoch seconds
-- ARGV[2]  seconds that an entry is kept
-- ARGV[3]  how many are kept, less one
-- Returns {how many were too old, how many were too many}.  Cost: O(entries dropped x log n).

-- include server_clock
-- include dead_set

return {trim_dead(KEYS[1], ARGV[1], ARGV[2], ARGV[3])}
