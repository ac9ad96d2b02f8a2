#!lua flags=allow-oom
-- resync: after a lost reply, fence the reserve that may still be under way, and give back the units it took (rule R3).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[3]  kiq:held:<id>          hash    "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[4]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[5]  kiq:beats              zset    identity by the server's time of its last beat, in milliseconds
-- ARGV[1]  identity   ARGV[2] epoch that the caller knows
-- ARGV[3]  new epoch, higher than that of every resync that the caller has sent before
-- ARGV[4]  prefix of queue keys, "queue:" included
-- ARGV[5]  units at most in this batch   ARGV[6] bytes of payloads at which it stops (at least one unit)
-- ARGV[7+] tokens that the caller holds
--
-- Returns {"FENCED"} when the member was recovered, or has an epoch at or above ARGV[3]; else {"OK", units given back,
-- units left}.  The caller continues once none are left.  A unit that its queue's key refuses stays in flight until the
-- next resync, and counts as neither.
-- May be sent again with a higher epoch: an epoch that an earlier try raised is accepted.  If the earlier try arrives
-- after its caller has continued, its epoch is already reached, and it takes nothing away.
-- What lies in hand lists is in flight as well (hand_lists.lua).  A resync counts as a beat (R8).
-- Cost: O(units in flight + tokens held), both at most a few thousand.

-- include parked
-- include holds
-- include hand_lists
-- include unit
-- include old_beat

local record = redis.call('HGET', KEYS[1], ARGV[1])
local epoch = record and string.match(record, '^%d+')
if not epoch or tonumber(epoch) < tonumber(ARGV[2]) or tonumber(epoch) >= tonumber(ARGV[3]) then
  return {'FENCED'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. string.sub(record, #epoch + 1))
renew_old_beat(KEYS[5], ARGV[1])
take_over_all(KEYS[2])

local held, strays = {}, {}
for i = 7, #ARGV do held[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not held[read_field(field)] then strays[#strays + 1] = field end
end
table.sort(strays)

local holds = redis.call('EXISTS', KEYS[3]) == 1 and KEYS[3]
local suspects = redis.call('TYPE', KEYS[4]).ok == 'hash' and KEYS[4]
local given, refused, bytes_left = 0, 0, tonumber(ARGV[6])
for i = #strays, 1, -1 do -- newest first, so that the oldest unit is fetched next
  if given == tonumber(ARGV[5]) or bytes_left <= 0 then break end
  local bytes = put_back(KEYS[2], holds, strays[i], ARGV[4], suspects)
  if bytes then
    given, bytes_left = given + 1, bytes_left - bytes
  else
    refused = refused + 1
  end
end
if holds then release_orphans(holds, KEYS[2]) end
return {'OK', given, #strays - given - refused}
