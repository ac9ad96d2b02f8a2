#!lua flags=allow-oom
-- join: enter the membership (rule R1); may be sent again, and changes nothing then.
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:beats              hash    identity -> number of beats
-- ARGV[1]  identity   ARGV[2] record: epoch, boot id, pid namespace, pid, start
--
-- Returns 1.  Cost: O(1).
-- Like all scripts here it may run when Redis is out of memory: a queue that nobody may drain stays full.

redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) -- one that arrives late must not lower an epoch that was raised since
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
return 1
