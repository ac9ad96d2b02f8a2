#!lua flags=allow-oom
-- return_rung: put what lies in wake lists back to where it is fetched next, in order (rule R6).
--
-- KEYS[1+2i], KEYS[2+2i]          lists   kiq:wake:<queue>, queue:<queue>
-- ARGV[1]  payloads at most of each list
--
-- A list that cannot be moved (one of the two keys is no list) stays as it is, and holds up no other.
-- Returns the number of payloads that went back.  Cost: O(queues + payloads).

local returned = 0
for at = 1, #KEYS, 2 do
  for _ = 1, tonumber(ARGV[1]) do
    local moved = redis.pcall('LMOVE', KEYS[at], KEYS[at + 1], 'LEFT', 'RIGHT')
    if type(moved) ~= 'string' then break end
    returned = returned + 1
  end
end
return returned
