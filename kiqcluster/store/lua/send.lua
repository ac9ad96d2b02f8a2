#!lua flags=allow-oom
-- send: leave a message in a list, for somebody who reads it soon.
--
-- KEYS[1]  the list   ARGV[1] the message   ARGV[2] seconds after which nobody needs it any more
--
-- Like all scripts here it may run when Redis is out of memory: that is when workers are to be quieted, or stopped.
-- Returns the length of the list.  Cost: O(1).

local length = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return length
