#!lua flags=allow-oom
-- recover: end a membership and give its units back, a batch at a time (rules R1, R5, R7).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[3]  kiq:beats              hash    identity -> number of beats
-- KEYS[4]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- ARGV[1]  identity   ARGV[2] prefix of queue keys, "queue:" included   ARGV[3] units at most in this batch
-- ARGV[4]  seconds that suspects are remembered
-- ARGV[5]  beat that the caller has seen standing still, "" where it knows that the process is gone
-- ARGV[6+] tokens of the units that were running when the process died, or "*" where nobody knows
--
-- The first batch takes the epoch away, so a reserve of that process finds itself fenced from here on; the last one
-- removes the identity.
-- Returns {"ALIVE"}, and changes nothing, when the beat has moved since; else {units given back, units left, units that
-- their queue's key refuses, Redis' words about them}; call again while others are left.  May be sent again, by anybody:
-- once the process is fenced its beat counts no more.
-- Cost: O(u log u) for u units in flight.

-- include unit

local record = redis.call('HGET', KEYS[1], ARGV[1])
local is_fenced = record and not string.match(record, '^%d')
if ARGV[5] ~= '' and not is_fenced and (redis.call('HGET', KEYS[3], ARGV[1]) or '0') ~= ARGV[5] then
  return {'ALIVE'}
end

-- Fenced, but not forgotten until everything is given back: whoever takes over from here must find it.
if record and not is_fenced then
  redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(record, '^%d+', 'fenced', 1)))
end

local fields = redis.call('HKEYS', KEYS[2])
table.sort(fields)

local running = {}
for i = 6, #ARGV do running[ARGV[i]] = true end

-- Ruby takes no count back for what ends there: under steady crashes the counts would grow without end.
local MOST_SUSPECTS = 10000
local suspects = redis.pcall('HLEN', KEYS[4])
if type(suspects) == 'number' and suspects > MOST_SUSPECTS then redis.call('UNLINK', KEYS[4]) end

-- A count that cannot be written must not keep a unit, nor leave it in two places.
local function suspect(payload)
  redis.pcall('HINCRBY', KEYS[4], redis.sha1hex(payload), 1)
  redis.pcall('EXPIRE', KEYS[4], ARGV[4])
end

local given, refused, words = 0, 0, ''
for i = #fields, 1, -1 do -- newest first, so that the oldest is fetched next
  if given == tonumber(ARGV[3]) then break end
  local may_have_killed = running[read_field(fields[i])] or running['*']
  local refusal = put_back(KEYS[2], fields[i], ARGV[2], may_have_killed and suspect)
  if refusal then
    refused, words = refused + 1, refusal
  else
    given = given + 1
  end
end
if given == #fields then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
end
return {given, #fields - given - refused, refused, words}
