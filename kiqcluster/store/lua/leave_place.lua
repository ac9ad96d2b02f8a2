#!lua flags=allow-oom
-- leave_place: a job that runs on leaves its place of a concurrent limit (places.lua).
--
-- KEYS[1]  kiq:held:<id>       hash   "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[2]  kiq:rate:<name>     hash
-- ARGV[1]  field of the unit   ARGV[2] holder
--
-- Returns whether it had the place, 1 or 0.  May be sent again.  Cost: O(keys that the unit holds).

-- include parked
-- include holds

local running = KEYS[2] .. ':running'
local left = redis.call('SREM', running, ARGV[2])
forget_hold(KEYS[1], ARGV[1], running) -- second: a key that is not held may be registered, not the reverse
return left
