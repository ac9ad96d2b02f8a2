#!lua
-- write_cron: add, change, remove, enable and disable cron entries.
--
-- KEYS[1]  kiq:cron               hash    name of an entry -> JSON
-- KEYS[2]  kiq:cron:ticks         zset    name of an enabled entry by its next tick
-- KEYS[3]  kiq:cron:disabled      set     names of disabled entries
-- KEYS[4]  kiq:cron:applications  hash    application -> digest of what it has declared, or "writing <token>"
-- KEYS[5+] further keys, which rows name by their index
-- ARGV[1]  application that declares the entries, "" for a change by hand
-- ARGV[2]  token with which the application has begun to write, "" for a change by hand
-- then for each row: verb, name, two words
--
--   put JSON next         the entry is this one.  It keeps the tick that it awaits as long as schedule and time zone are
--                         the same; else, and if it is new, it awaits `next`.  A disabled entry awaits none
--   enable next "", disable "" "", remove "" ""
--   take_over JSON "next key"   put, and the record of sidekiq-cron in the hash KEYS[key] becomes disabled
--   finish digest ""      the application has written all its entries; the name is not used
--
-- A change by hand of an entry that an application declares is refused, but for enable and disable.
-- Returns {"SUPERSEDED"} when another process writes for this application by now, and then changes nothing; else a word
-- for each row: DONE, ABSENT (there is no such entry), DECLARED (refused).
-- May be sent again.  Cost: O(rows x log n).

if ARGV[2] ~= '' and redis.call('HGET', KEYS[4], ARGV[1]) ~= 'writing ' .. ARGV[2] then return {'SUPERSEDED'} end

local function decoded(raw)
  local fine, entry = pcall(cjson.decode, raw)
  return fine and type(entry) == 'table' and entry or {}
end

local function await(name, tick)
  if redis.call('SISMEMBER', KEYS[3], name) == 1 then
    redis.call('ZREM', KEYS[2], name)
  else
    redis.call('ZADD', KEYS[2], tick, name)
  end
end

local verbs = {
  put = function(name, raw, tick)
    local before, entry = decoded(redis.call('HGET', KEYS[1], name) or ''), decoded(raw)
    local is_same = before.schedule == entry.schedule and before.tz == entry.tz
    local awaited = is_same and redis.call('ZSCORE', KEYS[2], name)
    await(name, awaited or tick) -- before the entry: one that is written but awaits nothing would never run
    redis.call('HSET', KEYS[1], name, raw)
  end,
  enable = function(name, tick)
    redis.call('SREM', KEYS[3], name)
    redis.call('ZADD', KEYS[2], 'NX', tick, name)
  end,
  disable = function(name)
    redis.call('SADD', KEYS[3], name)
    redis.call('ZREM', KEYS[2], name)
  end,
  remove = function(name)
    redis.call('ZREM', KEYS[2], name)
    redis.call('HDEL', KEYS[1], name)
    redis.call('SREM', KEYS[3], name)
    redis.call('UNLINK', (string.gsub(KEYS[2], 'ticks$', 'history:')) .. name)
  end,
  finish = function(_, digest) redis.call('HSET', KEYS[4], ARGV[1], digest) end,
}

verbs.take_over = function(name, raw, words)
  local tick, key = string.match(words, '^(%S+) (%d+)$')
  verbs.put(name, raw, tick)
  redis.call('HSET', KEYS[tonumber(key)], 'status', 'disabled')
end

local needs_entry = {enable = true, disable = true, remove = true}
local reply = {}
for at = 3, #ARGV, 4 do
  local verb, name = ARGV[at], ARGV[at + 1]
  local raw = redis.call('HGET', KEYS[1], name)
  local owner = raw and decoded(raw).application
  local is_declared = type(owner) == 'string' and owner ~= ''
  local word = 'DONE'
  if needs_entry[verb] and not raw then
    word = 'ABSENT'
  elseif ARGV[1] == '' and is_declared and verb ~= 'enable' and verb ~= 'disable' then
    word = 'DECLARED'
  else
    verbs[verb](name, ARGV[at + 2], ARGV[at + 3])
  end
  reply[#reply + 1] = word
end
return reply
