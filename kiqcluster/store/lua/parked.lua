-- parked: the line of jobs that wait for room in a set of limited size.  Not a script of its own: others include it by
-- `-- include parked`, before holds.
--
-- <key>           set    the holders of places (begin.lua, enter)
-- <key>:parked    zset   "<queue key> NUL <payload>" by the time of its first parking, microseconds
-- <key>:turns     zset   grants: SHA-1 of a payload that was sent back to its queue, by when, milliseconds
-- <key>:places    hash   positions: the same -> time of its first parking
-- kiq:parked      set    the keys in whose lines jobs wait, or have waited a short time ago (send_parked.lua)
-- kiq:suspects    hash   SHA-1 of a payload -> processes that died while they ran it
-- kiq:limits      hash   name -> limit that a worker has used last; "<name>|override" -> "<limit> <until, milliseconds>"
--
-- A job that was sent back is granted a place for GRANT_MS: no job that came later overtakes it on its way.  If it is
-- parked again, it keeps its position.  A limit of 0 is none; one below 0 lets nobody in.
-- A job whose queue is paused goes back to it without a place: it would keep others from theirs for nothing.

local GRANT_MS = 10000
local MAX_TRIED = 10 -- times that one script looks for entries that can go
local MAX_SENT = 10 -- jobs that one script sends back to each set; each of them sends on
local MAX_PASSED = 1000 -- jobs of paused queues that one script sends back without a place

local function parked_at(key) return key .. ':parked' end
local function grants_at(key) return key .. ':turns' end
local function positions_at(key) return key .. ':places' end

-- Returns whether anybody waits for a set, is on the way, or is remembered: most sets have no such keys.
local function has_line(key) return redis.call('EXISTS', parked_at(key), grants_at(key), positions_at(key)) > 0 end

-- Returns how many jobs wait for a set; 0 where the line has a wrong type.
local function line_length(key)
  local length = redis.pcall('ZCARD', parked_at(key))
  return type(length) == 'number' and length or 0
end

-- Returns what goes before the names of all keys.  It may contain `kiq:`.
local function prefix_of(key) return string.match(key, '^(.-)kiq:slots:') or '' end

-- Returns the key of this name under the same prefix.
local function key_with_prefix_of(key, name) return prefix_of(key) .. 'kiq:' .. name end

local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the limit in force: an override that has not ended, else `largest`.  name: of the limit, nil if it has none.
-- The second value says whether a worker has to write down its own.
local function limit_in_force(key, largest, name)
  largest = tonumber(largest)
  if not name or name == '' then return largest, false end
  local found = redis.pcall('HMGET', key_with_prefix_of(key, 'limits'), name, name .. '|override')
  if found.err then return largest, false end
  local override, ends = string.match(found[2] or '', '^(%-?%d+) (%d+)$')
  local is_new = largest and found[1] ~= tostring(largest)
  if override and tonumber(ends) > server_ms() then return tonumber(override), is_new end
  return largest or tonumber(found[1] or nil), is_new
end

-- Returns how many more may enter a set, beside those for whom a place is kept.
local function room_of(key, largest)
  if largest == 0 then return math.huge end
  local members = redis.pcall('SCARD', key)
  if type(members) ~= 'number' or members >= largest then return 0 end
  local granted = redis.pcall('ZCOUNT', grants_at(key), server_ms() - GRANT_MS, '+inf')
  return largest - members - (type(granted) == 'number' and granted or 0)
end

-- Returns the position behind all others.
local function last_position(key)
  local time = redis.call('TIME')
  local last = redis.pcall('ZRANGE', parked_at(key), -1, -1, 'WITHSCORES')
  return math.max(time[1] * 1000000 + time[2], (tonumber(last[2] or nil) or 0) + 1)
end

-- Appends a payload to its queue; a suspect to the wake list, as in unit.lua: from the queue it might run beside others.
local function append_parked(key, queue, payload, digest)
  local head = prefix_of(key) .. 'queue:'
  local is_suspect = type(redis.pcall('HGET', key_with_prefix_of(key, 'suspects'), digest)) == 'string'
  if is_suspect and string.sub(queue, 1, #head) == head then
    redis.call('LLEN', queue) -- an error when it is not a list
    local wake = key_with_prefix_of(key, 'wake:' .. string.sub(queue, #head + 1))
    if type(redis.pcall('RPUSH', wake, payload)) == 'number' then return end
  end
  redis.call('RPUSH', queue, payload)
end

-- Returns whether a queue is paused, so that nobody fetches what goes there.
local function is_paused(key, queue)
  local head = prefix_of(key) .. 'queue:'
  if string.sub(queue, 1, #head) ~= head then return false end
  return redis.pcall('SMISMEMBER', prefix_of(key) .. 'paused', string.sub(queue, #head + 1))[1] == 1
end

-- Sends an entry back to its queue, where it is fetched next; returns "sent", or "passed" if nobody fetches it since its
-- queue is paused.  Returns nil if it cannot go, for its queue is broken or it is not a job.  It then goes to the end of
-- the line: it must not hold up the others.
local function send_entry(key, entry, position)
  local queue, payload = string.match(entry, '^([^%z]*)%z(.*)$')
  local digest = payload and redis.sha1hex(payload)
  if not queue or not pcall(append_parked, key, queue, payload, digest) then
    redis.call('ZADD', parked_at(key), last_position(key), entry)
    return nil
  end
  local has_place = not is_paused(key, queue)
  if has_place then redis.pcall('ZADD', grants_at(key), server_ms(), digest) end
  redis.pcall('HSET', positions_at(key), digest, position)
  redis.call('ZREM', parked_at(key), entry)
  return has_place and 'sent' or 'passed'
end

-- Sends parked jobs back, the first `most` whose queues are not paused; returns how many went.  The first one comes last:
-- it is fetched first.
local function unpark(key, most)
  local sent, passed, tried = 0, 0, 0
  while sent < most and passed < MAX_PASSED and tried < MAX_TRIED do
    local found = redis.pcall('ZRANGE', parked_at(key), 0, most - sent - 1, 'WITHSCORES')
    if #found == 0 then break end
    local before = passed
    for at = #found - 1, 1, -2 do
      local went = send_entry(key, found[at], found[at + 1])
      if went == 'sent' then sent = sent + 1 elseif went == 'passed' then passed = passed + 1 end
    end
    if passed == before then tried = tried + 1 end
  end
  return sent + passed
end

-- Sends parked jobs back while there is room, so many at most; returns how many.
local function fill_with(most, key, largest)
  if redis.call('EXISTS', parked_at(key)) == 0 then return 0 end
  return unpark(key, math.min(most, room_of(key, largest)))
end

local function fill(key, largest) return fill_with(MAX_SENT, key, largest) end

-- Ends the grant of a job that was sent back; unless it is parked again, its position is forgotten as well.  digest:
-- returns the SHA-1 of its payload.
local function end_grant(key, digest, is_parked)
  if redis.call('EXISTS', grants_at(key), positions_at(key)) == 0 then return end
  redis.pcall('ZREM', grants_at(key), digest())
  if not is_parked then redis.pcall('HDEL', positions_at(key), digest()) end
end

-- Returns white space that tells a number: after a payload, it changes its bytes and not what they say.
local function blanks_for(number)
  local bits = {}
  while number > 0 do
    bits[#bits + 1] = number % 2 == 0 and ' ' or '\t'
    number = math.floor(number / 2)
  end
  return table.concat(bits)
end

-- Puts a job into the line: at its old position, or at the end.  Two jobs of the same bytes are two entries.
local function park_job(key, queue, payload)
  local digest = redis.sha1hex(payload)
  local known = redis.pcall('HGET', positions_at(key), digest)
  local position = type(known) == 'string' and tonumber(known) or last_position(key)
  redis.pcall('SADD', key_with_prefix_of(key, 'parked'), key)
  local entry, serial = queue .. '\0' .. payload, nil
  local unlike = entry
  while redis.call('ZADD', parked_at(key), 'NX', position, unlike) == 0 do
    serial = (serial or last_position(key)) + 1
    unlike = entry .. blanks_for(serial)
  end
  redis.pcall('HDEL', positions_at(key), digest)
  redis.pcall('ZREM', grants_at(key), digest)
end
