#!lua flags=allow-oom
-- beat: record that processes are alive, and hand out members that have been silent for too long (rule R8).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:beats              zset    identity by the server's time of its last beat, in milliseconds
-- KEYS[3]  kiq:audit              string  "<cursor in kiq:members> <when>"
-- KEYS[4]  kiq:watch              hash    ARGV[1] -> "<ARGV[4] of the last beat> <since when> <when the last beat was>"
-- ARGV[1]  milliseconds of silence after which a member is handed out
-- ARGV[2]  how many are handed out at most
-- ARGV[3]  milliseconds after which a member that was not recovered is handed out again
-- ARGV[4]  id of the process of Redis that answers, as the caller knows it; "" when it does not
-- ARGV[5]  "1" when the caller's own beats have arrived for long enough, whatever others have done
-- ARGV[6+] identities of live processes
--
-- Returns {the server's time in milliseconds, {those of ARGV[6+] that are no longer members}, {identity, score, ...}}.
-- The last list holds the members handed out.
-- Members are handed out while it is certain that those alive could beat: somebody's beats have arrived for ARGV[1]
-- without a gap of a third of it, from one process of Redis whose clock was not set back (KEYS[4]), or the caller's own
-- have.  Callers that wait for a different time do not count for one another.
-- Handing a member out moves its score, so that no other caller gets it at the same time.  If the caller dies, the
-- member is handed out again.  Recovery compares the score again.
-- The beat of a process that was fenced does not count.
-- A score ahead of the server's time (its clock was set back) becomes that time.
-- The audit gives a score to members that have none, as after KEYS[2] was lost or could not be written: else nobody
-- would recover them.
-- Cost: O(log n) for n members, and a page of PAGE members each AUDIT_PAUSE over the whole fleet.

local PAGE, AUDIT_PAUSE = 100, 100

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local silence, most, pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local strangers = {}
for i = 6, #ARGV do
  if string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^%d') then
    redis.call('ZADD', KEYS[2], now, ARGV[i])
  else
    strangers[#strangers + 1] = ARGV[i]
  end
end

for _, identity in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%d', now), '+inf', 'LIMIT', 0, PAGE)) do
  redis.call('ZADD', KEYS[2], now, identity)
end

-- Takes note of a beat that was written; returns whether somebody's have arrived for long enough.
local function has_watched()
  local seen = redis.pcall('HGET', KEYS[4], ARGV[1])
  if type(seen) == 'table' then redis.call('UNLINK', KEYS[4]) end -- of a wrong type
  local server, since, last = string.match(type(seen) == 'string' and seen or '', '^(%S+) (%d+) (%d+)$')
  since, last = tonumber(since), tonumber(last)
  if server ~= ARGV[4] or now < last or now - last > silence / 3 then since = now end
  if since == now or now - last >= silence / 60 then -- a large fleet beats more often than that
    redis.call('HSET', KEYS[4], ARGV[1], string.format('%s %d %d', ARGV[4], since, now))
  end
  return now - since >= silence
end

local is_certain = ARGV[5] == '1'
if ARGV[4] ~= '' and #ARGV >= 6 then is_certain = has_watched() or is_certain end

local handed = {}
if most > 0 and is_certain then
  local silent = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - silence, 'LIMIT', 0, most)
  local score = now - silence + pause
  for _, identity in ipairs(silent) do
    redis.call('ZADD', KEYS[2], score, identity)
    handed[#handed + 1] = identity
    handed[#handed + 1] = score
  end
end

local function audit(cursor)
  local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', PAGE)
  local members = {}
  for i = 1, #page[2], 2 do members[#members + 1] = page[2][i] end
  for first = 1, #members, PAGE do
    local part = {unpack(members, first, math.min(first + PAGE - 1, #members))}
    for i, score in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(part))) do
      if not score then redis.call('ZADD', KEYS[2], now, part[i]) end
    end
  end
  redis.call('SET', KEYS[3], string.format('%s %d', page[1], now))
end

local mark = redis.pcall('GET', KEYS[3]) -- a key of a wrong type is overwritten
local cursor, audited_at = string.match(type(mark) == 'string' and mark or '', '^(%d+) (%d+)$')
if not cursor or math.abs(now - audited_at) >= AUDIT_PAUSE then audit(cursor or '0') end

return {now, strangers, handed}
