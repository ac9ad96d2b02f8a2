#!lua flags=allow-oom
-- publish: write a process to Sidekiq's registry, in one step, so that no reader sees half of it.
--
-- KEYS[1]  processes              set     identities of live processes
-- KEYS[2]  <identity>             hash    description of the process
-- KEYS[3]  kiq:strikes            hash    id -> strike (features/strikes.py), read
-- KEYS[4]  kiq:cancelled          zset    jid of a cancelled job by when (features/cancellation.py), read
-- KEYS[5]  kiq:batches:cancelled    zset    id of a cancelled batch by when (batches.lua), read
-- KEYS[6+] <identity>:work, <identity>:workers   hashes   thread -> running job; only when there are or were some
-- ARGV[1]  identity   ARGV[2] seconds that the hashes are kept   ARGV[3] number of words that the fields have
-- ARGV[4+] fields of the process and their values, then threads and their jobs, which replace those in KEYS[6+]
--
-- Returns {number of fields that are new, the server's time: seconds, microseconds, {id, strike, id, strike, ...}, why
-- these are not all strikes, "" if they are, {jids of cancelled jobs} or why they cannot be read, the same of the ids of cancelled batches}.  More than
-- MOST_STRIKES can only be forged: it then returns some of them, the same ones at each beat.  A strike of more than MOST_BYTES is returned as "".
-- Cost: O(words), and O(MOST_STRIKES) and O(cancelled jobs and batches), of which few are kept.
-- Like all scripts here it may run when Redis is out of memory: it writes little, and operators need the registry then.

local MOST = 1000 -- words of one command: Lua's stack holds a few thousand; marks of cancelled jobs (mark_cancelled.lua) and batches (batches.lua)
local MOST_STRIKES, MOST_BYTES = 200, 10000 -- twice what `kiqctl strike` allows: two may add one at the same time

local last = 3 + tonumber(ARGV[3])
local added = redis.call('HSET', KEYS[2], unpack(ARGV, 4, last))
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('SADD', KEYS[1], ARGV[1])

for at = 6, #KEYS do
  redis.call('UNLINK', KEYS[at])
  for first = last + 1, #ARGV, MOST do
    redis.call('HSET', KEYS[at], unpack(ARGV, first, math.min(first + MOST - 1, #ARGV)))
  end
  if #ARGV > last then redis.call('EXPIRE', KEYS[at], ARGV[2]) end
end
local time = redis.call('TIME')

local count, strikes, why = redis.pcall('HLEN', KEYS[3]), {}, ''
if type(count) ~= 'number' then count, why = 0, count.err end

local function add_strike(id)
  if #strikes == 2 * MOST_STRIKES or #id > MOST_BYTES then return end
  local strike = redis.call('HGET', KEYS[3], id)
  strikes[#strikes + 1] = id
  strikes[#strikes + 1] = #strike <= MOST_BYTES and strike or ''
end

if count > MOST_STRIKES then
  why = 'it has ' .. count .. ' fields, and ' .. MOST_STRIKES .. ' are read'
  local page = redis.call('HSCAN', KEYS[3], 0, 'COUNT', MOST_STRIKES)[2]
  for at = 1, #page, 2 do add_strike(page[at]) end
elseif count > 0 then
  for _, id in ipairs(redis.call('HKEYS', KEYS[3])) do add_strike(id) end
end

local function read_marks(key)
  local found = redis.pcall('ZRANGE', key, 0, MOST - 1, 'REV')
  return found.err or found
end
return {added, tonumber(time[1]), tonumber(time[2]), strikes, why, read_marks(KEYS[4]), read_marks(KEYS[5])}
