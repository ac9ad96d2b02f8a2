#!lua flags=no-writes
-- due: read the entries of a sorted set that are due, the oldest first, up to so many bytes.
--
-- KEYS[1]  schedule, retry        zset    payloads by score
-- ARGV[1]  now, epoch seconds
-- ARGV[2]  most entries
-- ARGV[3]  bytes: the entry that would exceed them is not returned, unless it is the first
--
-- The script reads one entry at a time: otherwise Redis would copy a hundred entries of three megabytes before it could
-- count their bytes.
-- Returns {now, next, entries...}; now is Redis' own time when the caller's clock is ahead of it (server_clock.lua).
-- next: the score of the first entry that is not due yet, 'inf' if there is none; '' when more may be due now.
-- Cost: O(entries x log n).

-- include server_clock

local now = not_ahead(ARGV[1])
local reply, size = {now, ''}, 0
for number = 0, tonumber(ARGV[2]) - 1 do
  local entry = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', number, 1)[1]
  if not entry then
    local later = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    reply[2] = later[2] or 'inf'
    break
  end
  size = size + #entry
  if number > 0 and size > tonumber(ARGV[3]) then break end
  reply[#reply + 1] = entry
end
return reply
