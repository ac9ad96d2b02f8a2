#!lua flags=allow-oom
-- resync: after a lost reply, fence the reserve that may still be under way, and give back what it took (rule R3).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    token -> "<length of queue>:<queue><payload>"
-- ARGV[1]  identity   ARGV[2] epoch that the caller knows   ARGV[3] epoch to go on with, one higher
-- ARGV[4]  prefix of queue keys, "queue:" included
-- ARGV[5+] tokens that the caller holds
--
-- Returns {"FENCED"} when the member was recovered; else {"OK", number of units given back}.  A unit that its
-- queue's key refuses stays where it is until the next resync.
-- May be sent again: an epoch that is already raised is accepted.
-- Cost: O(units in flight + tokens held), both at most a few thousand.

local record = redis.call('HGET', KEYS[1], ARGV[1])
local epoch = record and string.match(record, '^%d+')
if epoch ~= ARGV[2] and epoch ~= ARGV[3] then
  return {'FENCED'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. string.sub(record, #epoch + 1))

local held, strays = {}, {}
for i = 5, #ARGV do held[ARGV[i]] = true end
for _, token in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not held[token] then strays[#strays + 1] = token end
end
table.sort(strays)

for i = #strays, 1, -1 do -- newest first, so that the oldest is fetched next
  local unit = redis.call('HGET', KEYS[2], strays[i])
  local length = string.match(unit, '^%d+')
  local name_from = #length + 2
  local payload_from = name_from + tonumber(length)
  local queue, payload = string.sub(unit, name_from, payload_from - 1), string.sub(unit, payload_from)
  if pcall(redis.call, 'RPUSH', ARGV[4] .. queue, payload) then
    redis.call('HDEL', KEYS[2], strays[i])
  end
end
return {'OK', #strays}
