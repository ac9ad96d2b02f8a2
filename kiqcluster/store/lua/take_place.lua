#!lua flags=allow-oom
-- take_place: a job that runs takes a place of a concurrent limit (places.lua).
--
-- KEYS[1]  kiq:inflight:<id>   hash   "<token>:<queue>" -> payload
-- KEYS[2]  kiq:held:<id>       hash   "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[3]  kiq:rate:<name>     hash
-- ARGV[1]  field of the unit   ARGV[2] holder   ARGV[3] largest
--
-- Returns "GO"; "FULL" while others have all places; "LOST" when the unit is no longer held.  May be sent again.
-- Cost: O(1).

-- include parked
-- include holds
-- include hand_lists
-- include rates
-- include holders
-- include places

if not (redis.call('HGET', KEYS[1], ARGV[1]) or take_over(KEYS[1], ARGV[1])) then return 'LOST' end
if not has_place(KEYS[3], tonumber(ARGV[3]), ARGV[2]) then return 'FULL' end
take_place(KEYS[3], ARGV[3], ARGV[2], KEYS[2], ARGV[1])
return 'GO'
