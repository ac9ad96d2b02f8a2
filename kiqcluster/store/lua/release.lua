#!lua flags=allow-oom
-- release: release what units hold whose runs have ended, and whose outcomes are not written yet.
--
-- KEYS[1]  kiq:held:<id>          hash    "<token>:<queue>" -> what the unit holds (holds.lua)
-- ARGV     the fields of these units
--
-- Outcomes wait for others to share their batch; a place does not.  The settle of such a unit releases what is left.
-- May be sent again.  Cost: O(fields).

-- include parked
-- include holds

for _, field in ipairs(ARGV) do release_holds(KEYS[1], field) end
return #ARGV
