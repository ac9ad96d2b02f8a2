#!lua flags=allow-oom
-- recover: end a membership and give its units back, a batch at a time (rules R1, R5, R7).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[3]  kiq:beats              zset    identity by the server's time of its last beat
-- KEYS[4]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[5]  kiq:held:<id>          hash    "<token>:<queue>" -> what the unit holds (holds.lua)
-- KEYS[6]  kiq:hands              zset    identity by when its hand lists are looked at next (stale_hands.lua)
-- ARGV[1]  identity   ARGV[2] prefix of queue keys, "queue:" included   ARGV[3] units at most in this batch
-- ARGV[4]  bytes of payloads at which the batch stops (at least one unit)   ARGV[5] seconds that suspects are remembered
-- ARGV[6]  score with which the caller was handed the member (beat.lua), "" when it knows that the process is gone
-- ARGV[7+] tokens of the units that were running when the process died, or "*" when they are not known
--
-- What lies in its hand lists is in flight as well; a late command may still move a payload there (stale_hands.lua).
-- Suspects go to the wake list of their queue, which only a reserve reads.
--
-- The first batch removes the epoch, so a later reserve of that process is fenced.  The last one removes the identity.
-- Returns {"ALIVE"}, and changes nothing, when the process has beaten since, or nothing is left of it; else {units
-- given back, units left, units that their queue's key refuses, Redis' errors about them}.  Call again while units are
-- left.
-- Any process may send it again: the beat of a fenced process no longer counts.
-- Cost: O(u log u) for u units in flight.

-- include parked
-- include holds
-- include hand_lists
-- include unit

local record = redis.call('HGET', KEYS[1], ARGV[1])
local is_fenced = record and not string.match(record, '^%d')
if ARGV[6] ~= '' and not is_fenced then
  if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or '0') ~= tonumber(ARGV[6]) then return {'ALIVE'} end
end

-- The member is fenced, but stays in the hash until everything is given back: another process may have to continue.
if record and not is_fenced then
  redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(record, '^%d+', 'fenced', 1)))
end

take_over_all(KEYS[2])
local fields = redis.call('HKEYS', KEYS[2])
table.sort(fields)

local running = {}
for i = 7, #ARGV do running[ARGV[i]] = true end

-- Ruby does not clear the count of a job that ends there, so under steady crashes the hash would grow without end.
local MOST_SUSPECTS = 10000
local count = redis.pcall('HLEN', KEYS[4])
if type(count) == 'number' and count > MOST_SUSPECTS then redis.call('UNLINK', KEYS[4]) end

-- A count that cannot be written must neither keep a unit in flight nor leave it in two places.
local is_kept = false -- whether the time to live was set
local function suspect(payload)
  redis.pcall('HINCRBY', KEYS[4], redis.sha1hex(payload), 1)
  if not is_kept then redis.pcall('EXPIRE', KEYS[4], ARGV[5]) end
  is_kept = true
end

local kind = redis.call('TYPE', KEYS[4]).ok
local suspects, can_count = kind == 'hash' and KEYS[4], kind == 'hash' or kind == 'none'
local held = redis.call('EXISTS', KEYS[5]) == 1 and KEYS[5]
local given, refused, words, bytes_left = 0, 0, '', tonumber(ARGV[4])
for i = #fields, 1, -1 do -- newest first, so that the oldest unit is fetched next
  if given == tonumber(ARGV[3]) or bytes_left <= 0 then break end
  local may_have_killed = can_count and (running[read_field(fields[i])] or running['*'])
  local bytes, refusal = put_back(KEYS[2], held, fields[i], ARGV[2], suspects, may_have_killed and suspect or nil)
  if refusal then
    refused, words = refused + 1, refusal
  else
    given, bytes_left = given + 1, bytes_left - bytes
  end
end
if given == #fields then
  if held then release_orphans(held, KEYS[2]) end
  if record then redis.pcall('ZADD', KEYS[6], 'XX', 0, ARGV[1]) end -- the next look comes soon
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.pcall('ZREM', KEYS[3], ARGV[1]) -- a broken key of beats must not keep an ended membership
end
return {given, #fields - given - refused, refused, words}
