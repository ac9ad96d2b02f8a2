-- unit: moves a unit in flight back to its queue.  Not a script of its own: others include it by `-- include unit`.
--
-- In the hash of its holder, a unit is "<token>:<queue>" -> payload (written by reserve).  No token has a colon.

-- Returns token and queue.
local function read_field(field)
  return string.match(field, '^([^:]*):(.*)$')
end

local refusals = {} -- queue -> Redis' error: no second payload is read for a queue that refused one

-- Appends a payload where it is fetched next.  A suspect goes to the wake list, which only a reserve reads: from the
-- queue it might be moved into a hand list, and run beside others.  prefix: of queues, "queue:" included.
local function append(prefix, queue, payload, is_suspect)
  if is_suspect then
    redis.call('LLEN', prefix .. queue) -- an error when it is not a list
    local wake = string.gsub(prefix, 'queue:$', 'kiq:wake:') .. queue
    if type(redis.pcall('RPUSH', wake, payload)) == 'number' then return end -- else it has a wrong type
  end
  redis.call('RPUSH', prefix .. queue, payload)
end

-- Moves a unit to the end of its queue that is fetched next, and releases the keys that it holds.
-- held: the hash of the keys that units hold, or false.  suspects: the hash of suspects, or false.
-- count: for a unit that may have killed its process; called with the payload once it is in the queue, else nil.
-- Returns the payload's bytes, or nil and Redis' error when the queue's key refuses it; the unit then stays in flight.
local function put_back(inflight, held, field, prefix, suspects, count)
  local _, queue = read_field(field)
  if not queue then return nil, 'ERR the unit ' .. field .. ' has no queue: another release wrote it' end
  if refusals[queue] then return nil, refusals[queue] end
  local payload = redis.call('HGET', inflight, field)
  local is_suspect = count or suspects and redis.call('HGET', suspects, redis.sha1hex(payload))
  local fine, reason = pcall(append, prefix, queue, payload, is_suspect)
  if not fine then
    refusals[queue] = type(reason) == 'table' and reason.err or tostring(reason)
    return nil, refusals[queue]
  end
  if count then count(payload) end
  redis.call('HDEL', inflight, field)
  if held then release_holds(held, field) end
  return #payload
end
