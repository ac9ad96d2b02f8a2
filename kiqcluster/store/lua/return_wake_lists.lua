#!lua flags=allow-oom
-- return_wake_lists: move the jobs of wake lists back to the end of their queues that is fetched next, in order (rule R6).
--
-- KEYS[1+2i], KEYS[2+2i]          lists   kiq:wake:<queue>, queue:<queue>
-- ARGV[1]  most payloads of each list
--
-- If a list cannot be moved (one of the two keys is not a list), it stays as it is, and the others are still moved.
-- Returns the number of payloads moved back.  Cost: O(queues + payloads).

local returned = 0
for at = 1, #KEYS, 2 do
  for _ = 1, tonumber(ARGV[1]) do
    local moved = redis.pcall('LMOVE', KEYS[at], KEYS[at + 1], 'LEFT', 'RIGHT')
    if type(moved) ~= 'string' then break end
    returned = returned + 1
  end
end
return returned
