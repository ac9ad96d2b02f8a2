#!lua flags=no-writes
-- find_held: the units of a process whose payloads contain a text, in its hash or in hand lists (hand_lists.lua).
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[2]  kiq:hands:<id>         hash    its fields are those of units that may lie in hand lists
-- ARGV[1]  the text   ARGV[2] what the keys of its hand lists begin with
--
-- Returns the payloads.  Cost: O(units in flight), a few thousand at most.

local found = {}
local function look(payload)
  if payload and string.find(payload, ARGV[1], 1, true) then found[#found + 1] = payload end
end

local payloads = redis.pcall('HVALS', KEYS[1])
for _, payload in ipairs(payloads.err and {} or payloads) do look(payload) end
local fields = redis.pcall('HKEYS', KEYS[2])
for _, field in ipairs(fields.err and {} or fields) do
  local payload = redis.pcall('LINDEX', ARGV[2] .. field, 0)
  if type(payload) == 'string' then look(payload) end
end
return found
