#!lua flags=no-writes
-- find_held: the units of a process whose payloads contain a text, in its hash or in hand lists (hand_lists.lua).
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[2]  kiq:hands:<id>         hash    its fields are those of units that may lie in hand lists
-- ARGV[1]  the text   ARGV[2] what the keys of its hand lists begin with
--
-- Returns the payloads.  Cost: O(units in flight), a few thousand at most.

-- include read_or

local found = {}
local function look(payload)
  if payload and string.find(payload, ARGV[1], 1, true) then found[#found + 1] = payload end
end

for _, payload in ipairs(redis.call('HVALS', KEYS[1])) do look(payload) end
for _, field in ipairs(read_or({}, 'HKEYS', KEYS[2])) do look(read_or(false, 'LINDEX', ARGV[2] .. field, 0)) end
return found
