#!lua flags=allow-oom
-- reserve: move up to k units from queues to the in-flight hash of a member (rules R2, R5, R6).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- KEYS[3]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[4]  kiq:beats              zset    identity by the server's time of its last beat, in milliseconds
-- KEYS[5] to KEYS[4+g]            keys of the gates (paused)
-- then for each queue             lists   kiq:wake:<queue>, queue:<queue>, in the order of preference
-- ARGV[1]  identity   ARGV[2] epoch   ARGV[3] number of this call   (epoch and call are zero-padded)
-- ARGV[4]  bytes at which the batch stops (at least one unit)
-- ARGV[5]  most deaths of a suspect that the caller may take; 0 for no suspects
-- ARGV[6]  g, the number of gates   ARGV[7] to ARGV[6+g] their operations
-- then for each queue: its name, and two limits: how large the batch may become by units of this queue in its turn, and
--          after every queue has had its turn (k; 0 to only empty its wake list)
--
-- Gates (features add rows) close queues to every caller.  An operation returns 1 for each name that is closed.
--   member_of               the names in a set: `paused`, as in Sidekiq
--
-- If a queue reaches a limit lower than that of later queues, and has more jobs, it holds those queues back: they must
-- not be preferred to it.
-- A reserve counts as a beat (R8).
-- Returns {"FENCED"} when the member was recovered or its epoch raised, and then changes nothing; else
-- {"OK", {indexes of queues left alone}, {reasons}, deaths, index, {payloads}, index, {payloads}, ...}, oldest payload
-- first; the n-th payload has the token "<epoch>.<call>.<n, 5 digits>".  A queue is left alone when a gate closes it,
-- or it has only suspects that must wait (reason ""), or is not a list (reason: Redis' error); others are still served.
-- An index behind the last queue is not a queue: its reason is about a wake list, a key of a gate or KEYS[3] that
-- cannot be read.
-- A suspect is alone in its batch, so that a crash takes no other unit with it; `deaths` is then its count, else 0.
-- When the caller may not take a suspect, the suspect goes to the back of its queue.
-- Cost: O(queues + k).  The script touches only the tails of the lists.  It reads few large payloads that it does not
-- take: first it reads one, then GROWTH times as many as long as there is room for payloads of that size.

-- include old_beat

local SLICE = 100 -- payloads read at once, at most
local GROWTH = 8 -- factor between slices: the size of payloads is known only after they were read

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record or string.match(record, '^%d+') ~= ARGV[2] then
  return {'FENCED'}
end
renew_old_beat(KEYS[4], ARGV[1])

local gates = {
  member_of = function(key, names) return redis.pcall('SMISMEMBER', key, unpack(names)) end,
}

local gate_count = tonumber(ARGV[6])
local first_queue, first_list = 7 + gate_count, 5 + gate_count -- in ARGV, in KEYS

local names, closed = {}, {}
for at = first_queue, #ARGV, 3 do names[#names + 1] = ARGV[at] end
local idle_indexes, reasons = {}, {}
for gate = 1, #names > 0 and gate_count or 0 do
  local found = gates[ARGV[6 + gate]](KEYS[4 + gate], names)
  if found.err then -- a broken key stops nothing: its gate counts as open
    idle_indexes[#idle_indexes + 1], reasons[#reasons + 1] = #names, KEYS[4 + gate] .. ': ' .. found.err
  else
    for index, is_closed in ipairs(found) do closed[names[index]] = closed[names[index]] or is_closed == 1 end
  end
end

local room, bytes_left, taken_units, is_alone = 0, tonumber(ARGV[4]), 0, false
local kind_of_suspects, most_deaths, deaths = redis.call('TYPE', KEYS[3]).ok, tonumber(ARGV[5]), 0
local has_suspects = kind_of_suspects == 'hash'
if not has_suspects and kind_of_suspects ~= 'none' then -- then no job is suspect
  idle_indexes[#idle_indexes + 1] = #names
  reasons[#reasons + 1] = KEYS[3] .. ': WRONGTYPE it is a ' .. kind_of_suspects .. ' and should be a hash'
end
local token_head, format = ARGV[2] .. '.' .. ARGV[3] .. '.', string.format
local largest = 0
for at = first_queue + 2, #ARGV, 3 do largest = math.max(largest, tonumber(ARGV[at])) end

local withheld = false -- whether a suspect was found that the caller may not take
local function deaths_of(payload)
  return tonumber(redis.call('HGET', KEYS[3], redis.sha1hex(payload)) or nil)
end

local slice, largest_read = 1, 1 -- payloads to read next, and bytes of the largest one read

-- Moves units from the tail of a list; appends their payloads to `payloads`.  Records before it removes.
-- token_tail: text after the number of a unit in its field.  rotations: how many suspects that the caller may not take
-- are sent to the back of the list.
-- This loop is most of a job's cost to Redis: it makes no call per payload, and copies none.
local function take(list, token_tail, payloads, rotations)
  slice = math.min(slice, GROWTH)
  while room > 0 and (bytes_left > 0 or taken_units == 0) do
    local wanted = math.max(1, math.min(room, slice, math.floor(bytes_left / largest_read)))
    local batch = redis.call('LRANGE', list, -wanted, -1)
    local fields, count, given = {}, 0, #payloads

    local function keep()
      if count == 0 then return end
      redis.call('HSET', KEYS[2], unpack(fields))
      redis.call('LTRIM', list, 0, -(count + 1))
      room, fields, count, given = room - count, {}, 0, #payloads
    end

    slice = math.min(SLICE, GROWTH * wanted)
    for i = #batch, 1, -1 do
      largest_read = math.max(largest_read, #batch[i])
      if room == count or (bytes_left <= 0 and taken_units > 0) then break end
      local payload = batch[i]
      local suspect = has_suspects and deaths_of(payload)
      if suspect and suspect <= most_deaths and taken_units == 0 then
        deaths, room, suspect, is_alone = suspect, 1, false, true
      end
      if suspect then
        keep() -- so that the suspect is the last of the list
        withheld = suspect > most_deaths
        if not withheld or rotations == 0 then return end
        redis.call('LMOVE', list, list, 'RIGHT', 'LEFT')
        rotations = rotations - 1
      else
        taken_units = taken_units + 1
        count = count + 1
        bytes_left = bytes_left - #payload
        fields[2 * count - 1] = token_head .. format('%05d', taken_units) .. token_tail
        fields[2 * count] = payload
        payloads[given + count] = payload
      end
    end
    keep()
    if #batch < wanted then return end
  end
end

local reply, left_alone = {'OK', false, false, false}, {}
local ceiling = math.huge

-- Takes units from a queue, up to its limit in its turn (pass 1) or afterwards (pass 2).
local function visit(at, pass)
  local name, index = ARGV[at], (at - first_queue) / 3
  local wake, queue = KEYS[first_list + 2 * index], KEYS[first_list + 1 + 2 * index]
  local most = tonumber(ARGV[at + 2])
  local payloads, token_tail, refusal, is_withheld = {}, ':' .. name, nil, false
  room = is_alone and 0 or math.min(tonumber(ARGV[at + pass]), ceiling) - taken_units
  if pass == 1 then
    local length = redis.pcall('LLEN', queue)
    refusal = type(length) == 'table' and length.err or nil
    local rung = redis.pcall('LLEN', wake)
    if type(rung) == 'table' then -- a broken wake list holds up nothing: it counts as empty
      idle_indexes[#idle_indexes + 1], reasons[#reasons + 1], rung = #names, wake .. ': ' .. rung.err, 0
    end
    if not refusal and rung > 0 then
      if not closed[name] then take(wake, token_tail, payloads, has_suspects and math.min(SLICE, rung - 1) or 0) end
      -- Jobs of the wake list that are not taken go back to the front of their queue, newest first, and wake the next
      -- waiter.  Suspects stay: a process that waits with a hand list would run them beside others.
      for _ = 1, redis.call('LLEN', wake) do
        local is_suspect = has_suspects and deaths_of(redis.call('LINDEX', wake, 0))
        redis.call('LMOVE', wake, is_suspect and wake or queue, 'LEFT', 'RIGHT')
      end
      is_withheld = withheld and #payloads == 0
    elseif length == 0 and not closed[name] then
      return
    end
    if refusal or closed[name] then
      idle_indexes[#idle_indexes + 1] = index
      reasons[#reasons + 1] = refusal or ''
      left_alone[at] = true
    end
  end
  if left_alone[at] then return end
  withheld = false
  if room > 0 then
    take(queue, token_tail, payloads, has_suspects and math.min(SLICE, redis.call('LLEN', queue) - 1) or 0)
  end
  if (withheld or is_withheld) and #payloads == 0 then
    idle_indexes[#idle_indexes + 1] = index
    reasons[#reasons + 1] = ''
  end
  if most < largest and redis.call('LLEN', queue) > 0 then
    ceiling = math.min(ceiling, most)
  end
  if #payloads > 0 then
    reply[#reply + 1] = index
    reply[#reply + 1] = payloads
  end
end

for pass = 1, 2 do
  for at = first_queue, #ARGV, 3 do
    if pass == 1 or taken_units < math.min(largest, ceiling) and not is_alone then visit(at, pass) end
  end
end
reply[2], reply[3], reply[4] = idle_indexes, reasons, deaths
return reply
