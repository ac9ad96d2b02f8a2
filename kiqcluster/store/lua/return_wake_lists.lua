#!lua flags=allow-oom
-- return_wake_lists: move the jobs of wake lists back to the end of their queues that is fetched next, in order (rule R6).
--
-- KEYS[1]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[2i], KEYS[1+2i]            lists   kiq:wake:<queue>, queue:<queue>
-- ARGV[1]  most payloads of each list
-- ARGV[2]  1 if suspects stay, else 0: a process that waits with a hand list would run them beside others
--
-- If a list cannot be moved (one of the two keys is not a list), it stays as it is, and the others are still moved.
-- Returns {the number of payloads moved back, the number of suspects that stay}.  Cost: O(queues + payloads).

local may_stay = ARGV[2] == '1' and redis.call('TYPE', KEYS[1]).ok == 'hash'
local returned, stayed = 0, 0
for at = 2, #KEYS, 2 do
  local length = redis.pcall('LLEN', KEYS[at])
  for _ = 1, type(length) == 'number' and math.min(length, tonumber(ARGV[1])) or 0 do
    local stays = may_stay and redis.call('HGET', KEYS[1], redis.sha1hex(redis.call('LINDEX', KEYS[at], 0)))
    local moved = redis.pcall('LMOVE', KEYS[at], stays and KEYS[at] or KEYS[at + 1], 'LEFT', 'RIGHT')
    if type(moved) ~= 'string' then break end
    if stays then stayed = stayed + 1 else returned = returned + 1 end
  end
end
return {returned, stayed}
