#!lua flags=allow-oom
-- send: append a message to a list for a reader that polls it.
--
-- KEYS[1]  the list   ARGV[1] the message   ARGV[2] seconds until the list expires
--
-- Like all scripts here it may run when Redis is out of memory: operators must be able to quiet and stop workers then.
-- Returns the length of the list.  Cost: O(1).

local length = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return length
