#!lua flags=allow-oom
-- beat: say that processes live, and see what moves while others do.
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:beats              hash    identity -> number of beats
-- ARGV[1+] identities that live
--
-- Returns {identity, beat, identity, beat, ...} of all that recovery has to do with: members, and beats that a process
-- has left behind whose membership is over.  The beat of a membership whose recovery was begun is "fenced": its process
-- has no say any more, and who began may have died.
-- Cost: O(members).

for _, identity in ipairs(ARGV) do
  redis.call('HINCRBY', KEYS[2], identity, 1)
end

local beats, found = {}, {}
local counted = redis.call('HGETALL', KEYS[2])
for i = 1, #counted, 2 do beats[counted[i]] = counted[i + 1] end
local members = redis.call('HGETALL', KEYS[1])
for i = 1, #members, 2 do
  local is_fenced = not string.match(members[i + 1], '^%d')
  beats[members[i]] = is_fenced and 'fenced' or beats[members[i]] or '0'
end
for identity, beat in pairs(beats) do
  found[#found + 1] = identity
  found[#found + 1] = beat
end
return found
