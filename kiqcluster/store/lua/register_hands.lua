#!lua flags=allow-oom
-- register_hands: register hand lists before a process has pushes moved into them (hand_lists.lua), and tell for which queues it may.
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:hands:<id>         hash    "<token>:<queue>" -> id of the connection that waits
-- KEYS[3]  kiq:hands              zset    identity by when its hand lists are looked at next, in milliseconds
-- KEYS[4]  kiq:beats              zset    identity by the server's time of its last beat, in milliseconds
-- KEYS[5]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[6]  paused                 set     names of paused queues
-- ARGV[1]  identity   ARGV[2] epoch   ARGV[3] milliseconds: a process whose last beat is older may not wait so
-- ARGV[4]  milliseconds until its lists are looked at
-- then for each list: its field, its queue, id of the connection that will wait
--
-- Returns {"FENCED"} when the member was recovered or its epoch raised, and then changes nothing; else {"OK", and for
-- each list 1 if it is registered, 0 if the queue must be asked by a reserve: it is paused, or there are suspects, which
-- only a reserve knows, or the last beat is old}.
-- May be sent again.  Cost: O(lists).

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record or string.match(record, '^%d+') ~= ARGV[2] then return {'FENCED'} end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local beat = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[1]) or '0')
local may_wait = now - beat <= tonumber(ARGV[3]) and redis.call('EXISTS', KEYS[5]) == 0

local reply = {'OK'}
for at = 5, #ARGV, 3 do
  local is_open = may_wait and redis.call('SMISMEMBER', KEYS[6], ARGV[at + 1])[1] == 0
  if is_open then redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 2]) end
  reply[#reply + 1] = is_open and 1 or 0
end
redis.call('ZADD', KEYS[3], 'NX', now + tonumber(ARGV[4]), ARGV[1])
return reply
