#!lua
-- change_bulk: change the state of a bulk action, if it is in one of some states; or have a runner take it.
--
-- KEYS[1]  kiq:bulk:<id>  hash
-- ARGV[1]  the states, each in front of a comma, in which this is allowed
-- ARGV[2]  its state then; '' for the same
-- ARGV[3], ARGV[4]  the runner that takes it, and its lease in milliseconds; '' for no runner.  One that another runner
--          has, whose lease goes on, is not taken
-- ARGV[5…]  fields and values that are set with it
--
-- A state without a runner has no lease.  Returns 1, or 0 if nothing was changed.
-- Cost: O(fields).

-- include bulk_state

local key, owner = KEYS[1], ARGV[3]
local state, holder, till = unpack(redis.call('HMGET', key, 'state', 'owner', 'until'))
if not state or not string.find(ARGV[1], state .. ',', 1, true) then return 0 end
if owner ~= '' and holder and holder ~= owner and tonumber(till or 0) > now_ms() then return 0 end
if ARGV[2] ~= '' then redis.call('HSET', key, 'state', ARGV[2]) end
if #ARGV > 4 then redis.call('HSET', key, unpack(ARGV, 5)) end
if owner == '' then redis.call('HDEL', key, 'owner', 'until') end
keep(key, owner, tonumber(ARGV[4]))
return 1
