#!lua
-- write_cron: add, change, remove, enable and disable cron entries.
--
-- KEYS[1]  kiq:cron               hash    id of an entry -> JSON
-- KEYS[2]  kiq:cron:ticks         zset    id of an enabled entry by its next tick
-- KEYS[3]  kiq:cron:disabled      set     ids of disabled entries
-- KEYS[4]  kiq:cron:applications  hash    application -> mark of what it has declared (store/cron.py)
-- KEYS[5+] further keys, which rows name by their index
-- ARGV[1]  application that declares the entries, "" for a change by hand
-- ARGV[2]  mark that the application must still have, "" for any
-- ARGV[3]  number of applications that have ended, which ARGV[4+] names
-- then for each row: verb, id, two words
--
--   put JSON next         the entry is this one.  It keeps the tick that it awaits as long as schedule and time zone are
--                         the same; else, and if it is new, it awaits `next`.  A disabled entry awaits none
--   check JSON ""         nothing changes; the word is that of a put
--   enable next "", disable "" "", remove "" ""
--   take_over JSON "next key"   put, and the record of sidekiq-cron in the hash KEYS[key] becomes disabled
--   finish mark ""        the application has written all its entries; the id is not used
--
-- The id of an entry that an application declares is `<name>@<application>`, of another one its name.  Two entries of one
-- name and one queue would have each tick twice.  So a put replaces the other one, tick and history included, if nobody
-- declares it, or an application that has ended; it is refused if the other application goes on.
-- A change by hand of an entry whose name an application declares is refused, but for enable and disable.
--
-- Returns {"SUPERSEDED"} when the application has another mark by now, and then changes nothing; else a word for each
-- row: DONE, ABSENT (there is no such entry), DECLARED (refused by hand), or "HELD <application>" (refused, as that
-- application has the entry, or one of its name and queue).
-- May be sent again.  Cost: O(entries + rows x log n); the look at all ids is short for those of this application.

if ARGV[2] ~= '' and redis.call('HGET', KEYS[4], ARGV[1]) ~= ARGV[2] then return {'SUPERSEDED'} end

local first_row = 4 + tonumber(ARGV[3])
local has_ended = {['']=true}
for at = 4, first_row - 1 do has_ended[ARGV[at]] = true end

local function decoded(raw)
  local fine, entry = pcall(cjson.decode, raw)
  return fine and type(entry) == 'table' and entry or {}
end

-- Returns the application that declares an entry, "" for none.
local function owner_of(entry)
  return type(entry.application) == 'string' and entry.application or ''
end

local function id_of(name, application)
  return application == '' and name or name .. '@' .. application
end

local others_by_name -- name -> ids of entries of that name which are not of this application; read at the first put

local function read_others()
  others_by_name = {}
  local own = '@' .. ARGV[1]
  for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do
    local at = (ARGV[1] == '' or string.sub(id, -#own) ~= own) and #id + 1 or nil
    while at do -- the application may have an @ as well
      local name = string.sub(id, 1, at - 1)
      others_by_name[name] = others_by_name[name] or {}
      table.insert(others_by_name[name], id)
      at = string.find(id, '@', at == #id + 1 and 1 or at + 1, true)
    end
  end
end

-- Returns id and application of another entry of this name and queue; by hand, of this name.
local function other_of(id, queue)
  if not others_by_name then read_others() end
  local name = ARGV[1] == '' and id or string.sub(id, 1, #id - #ARGV[1] - 1)
  for _, other in ipairs(others_by_name[name] or {}) do
    local entry = other ~= id and decoded(redis.call('HGET', KEYS[1], other) or '') or {}
    local application = owner_of(entry)
    local is_same = queue and entry.queue == queue or ARGV[1] == '' and application ~= ''
    if is_same and other == id_of(name, application) then return other, application end
  end
end

local function await(id, tick)
  if redis.call('SISMEMBER', KEYS[3], id) == 1 then
    redis.call('ZREM', KEYS[2], id)
  else
    redis.call('ZADD', KEYS[2], tick, id)
  end
end

local function history_of(id)
  return (string.gsub(KEYS[2], 'ticks$', 'history:')) .. id
end

local function forget(id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[1], id)
  redis.call('SREM', KEYS[3], id)
  redis.call('UNLINK', history_of(id))
end

-- Returns whether the application has an entry already; one that another left in the middle of `inherit` is not its own.
local function is_own(id)
  local raw = redis.call('HGET', KEYS[1], id)
  return raw and owner_of(decoded(raw)) == ARGV[1]
end

-- Has an entry be what another one was: first the new one, so that a failure in between loses no tick.
local function inherit(other, id)
  redis.call('HSET', KEYS[1], id, redis.call('HGET', KEYS[1], other))
  if redis.call('SISMEMBER', KEYS[3], other) == 1 then redis.call('SADD', KEYS[3], id) end
  local tick = redis.call('ZSCORE', KEYS[2], other)
  if tick then redis.call('ZADD', KEYS[2], tick, id) end
  redis.call('UNLINK', history_of(id))
  for _, line in ipairs(redis.call('LRANGE', history_of(other), 0, -1)) do
    redis.call('RPUSH', history_of(id), line)
  end
  forget(other)
end

-- Returns the refusal of a put, nil for none; and the id of the entry that it replaces.
local function refusal_of_put(id, raw)
  local other, application = other_of(id, decoded(raw).queue)
  if not other or has_ended[application] then return nil, other end
  return ARGV[1] == '' and 'DECLARED' or 'HELD ' .. application
end

local verbs = {
  put = function(id, raw, tick)
    local refusal, other = refusal_of_put(id, raw)
    if refusal then return refusal end
    if other then (is_own(id) and forget or inherit)(other, id) end
    local before, entry = decoded(redis.call('HGET', KEYS[1], id) or ''), decoded(raw)
    local is_same = before.schedule == entry.schedule and before.tz == entry.tz
    local awaited = is_same and redis.call('ZSCORE', KEYS[2], id)
    await(id, awaited or tick) -- before the entry: one that is written but awaits nothing would never run
    redis.call('HSET', KEYS[1], id, raw)
  end,
  check = function(id, raw) return (refusal_of_put(id, raw)) end,
  enable = function(id, tick)
    redis.call('SREM', KEYS[3], id)
    redis.call('ZADD', KEYS[2], 'NX', tick, id)
  end,
  disable = function(id)
    redis.call('SADD', KEYS[3], id)
    redis.call('ZREM', KEYS[2], id)
  end,
  remove = forget,
  finish = function(_, mark) redis.call('HSET', KEYS[4], ARGV[1], mark) end,
}

verbs.take_over = function(id, raw, words)
  local tick, key = string.match(words, '^(%S+) (%d+)$')
  local refusal = verbs.put(id, raw, tick)
  if refusal then return refusal end
  redis.call('HSET', KEYS[tonumber(key)], 'status', 'disabled')
end

local needs_entry = {enable = true, disable = true, remove = true}
local by_everybody = {enable = true, disable = true, check = true}
local reply = {}
for at = first_row, #ARGV, 4 do
  local verb, id = ARGV[at], ARGV[at + 1]
  local raw = redis.call('HGET', KEYS[1], id)
  local owner = raw and owner_of(decoded(raw)) or ''
  local word
  if needs_entry[verb] and not raw then
    word = 'ABSENT'
  elseif ARGV[1] == '' and owner ~= '' and not by_everybody[verb] then
    word = 'DECLARED'
  elseif ARGV[1] ~= '' and owner ~= ARGV[1] and not has_ended[owner] then -- x@a of b is x of a@b
    word = 'HELD ' .. owner
  else
    word = verbs[verb](id, ARGV[at + 2], ARGV[at + 3]) or 'DONE'
  end
  reply[#reply + 1] = word
end
return reply
