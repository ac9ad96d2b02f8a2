#!lua flags=allow-oom
-- reserve: move up to k units from queues to the in-flight hash of a member (rules R2, R5, R6).
--
-- KEYS[1]  kiq:members            hash    identity -> "epoch ..."
-- KEYS[2]  kiq:inflight:<id>      hash    token -> "<length of queue>:<queue><payload>"
-- KEYS[3]  paused                 set     names of paused queues
-- KEYS[4]  kiq:suspects           hash    SHA-1 of a payload -> processes that died while they ran it
-- KEYS[5+2i], KEYS[6+2i]          lists   kiq:wake:<queue>, queue:<queue>, in the order of preference
-- ARGV[1]  identity   ARGV[2] epoch   ARGV[3] number of this call   (epoch and call are zero-padded)
-- ARGV[4]  k, 0 to only empty the wake lists   ARGV[5] bytes at which the batch stops (at least one unit)
-- ARGV[6]  1 if the caller may take a suspect, 0 while it holds one
-- ARGV[7+i] names of the queues
--
-- Returns {"FENCED"} when the member was recovered or its epoch raised, and then changes nothing; else
-- {"OK", {indexes of queues left alone}, {reasons}, deaths, index, {payloads}, index, {payloads}, ...}, oldest
-- payload first; the n-th payload has the token "<epoch>.<call>.<n, 5 digits>".  A queue is left alone when it is paused
-- (reason "") or is no list (reason: Redis' words); it holds up no other.
-- A suspect is handed out alone in its batch, so that it takes no neighbour with it; `deaths` is then its count, else
-- 0.  To a caller that holds one already, another goes to the back of its queue.
-- Cost: O(queues + k).  Only the tails of the lists are touched, whatever their length.

local SLICE = 100 -- payloads read at once: the byte limit is checked between slices

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record or string.match(record, '^%d+') ~= ARGV[2] then
  return {'FENCED'}
end

local paused = {}
for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do paused[name] = true end

local room, bytes_left, taken_units = tonumber(ARGV[4]), tonumber(ARGV[5]), 0
local has_suspects, may_suspect, deaths = redis.call('EXISTS', KEYS[4]) == 1, ARGV[6] == '1', 0
local token_head = ARGV[2] .. '.' .. ARGV[3] .. '.'

local function deaths_of(payload)
  return has_suspects and redis.call('HGET', KEYS[4], redis.sha1hex(payload))
end

-- Moves units from the tail of a list; appends their payloads to `payloads`.  Records before it removes.
-- rotations: how many suspects that the caller may not take are sent to the back of the list.
local function take(list, record_head, payloads, rotations)
  while room > 0 and (bytes_left > 0 or taken_units == 0) do
    local wanted = math.min(room, SLICE)
    local batch = redis.pcall('LRANGE', list, -wanted, -1)
    if batch.err then return batch.err end
    local fields, count, suspect = {}, 0, false
    for i = #batch, 1, -1 do
      if room == count or (bytes_left <= 0 and taken_units > 0) then break end
      suspect = deaths_of(batch[i])
      if suspect and may_suspect and taken_units == 0 then
        deaths, room, suspect = tonumber(suspect), 1, false -- alone
      end
      if suspect then break end
      taken_units = taken_units + 1
      count = count + 1
      bytes_left = bytes_left - #batch[i]
      fields[2 * count - 1] = token_head .. string.format('%05d', taken_units)
      fields[2 * count] = record_head .. batch[i]
      payloads[#payloads + 1] = batch[i]
    end
    if count > 0 then
      redis.call('HSET', KEYS[2], unpack(fields))
      redis.call('LTRIM', list, 0, -(count + 1))
      room = room - count
    end
    if suspect and not may_suspect and rotations > 0 then
      redis.call('LMOVE', list, list, 'RIGHT', 'LEFT')
      rotations = rotations - 1
    elseif suspect or count < wanted then
      return
    end
  end
end

local reply, idle_indexes, reasons = {'OK', false, false, false}, {}, {}
for i = 7, #ARGV do
  local name = ARGV[i]
  local wake, queue = KEYS[5 + 2 * (i - 7)], KEYS[6 + 2 * (i - 7)]
  local payloads, record_head = {}, #name .. ':' .. name
  local length = redis.pcall('LLEN', queue)
  local refusal = type(length) == 'table' and length.err or nil
  if not refusal and not paused[name] then
    refusal = take(wake, record_head, payloads, 0)
  end
  -- What rang the bell and is not taken goes back to the front of its queue, newest first, and rings the next waiter.
  while not refusal and redis.call('LLEN', wake) > 0 do
    redis.call('LMOVE', wake, queue, 'LEFT', 'RIGHT')
  end
  if not refusal and not paused[name] then
    take(queue, record_head, payloads, math.min(SLICE, redis.call('LLEN', queue) - 1))
  end
  if refusal or paused[name] then
    idle_indexes[#idle_indexes + 1] = i - 7
    reasons[#reasons + 1] = refusal or ''
  end
  if #payloads > 0 then
    reply[#reply + 1] = i - 7
    reply[#reply + 1] = payloads
  end
end
reply[2], reply[3], reply[4] = idle_indexes, reasons, deaths
return reply
