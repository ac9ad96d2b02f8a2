#!lua flags=no-writes
-- find_entries: read a slice of a sorted set, and return the entries in it that contain a text.
--
-- KEYS[1]          a sorted set of jobs
-- ARGV[1], ARGV[2] score and payload of the last entry of the previous slice; both empty for the first slice
-- ARGV[3]          entries in the slice
-- ARGV[4…]         texts; an entry is returned if its payload contains one of them
--
-- Reads from the highest score down.  If the last entry was removed, the slice begins with the highest entry of its
-- score, so an entry may be returned twice.
-- Returns {entries read, their bytes, last payload, last score, {payload, score, …}}.
-- Cost: O(log entries + slice).

local start = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[2])
  start = rank and rank + 1 or redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
end

local entries = redis.call('ZRANGE', KEYS[1], start, start + ARGV[3] - 1, 'REV', 'WITHSCORES')
local found, bytes = {}, 0
for at = 1, #entries, 2 do
  bytes = bytes + #entries[at]
  for text = 4, #ARGV do
    if string.find(entries[at], ARGV[text], 1, true) then
      found[#found + 1], found[#found + 2] = entries[at], entries[at + 1]
      break
    end
  end
end
return {#entries / 2, bytes, entries[#entries - 1] or '', entries[#entries] or '', found}
