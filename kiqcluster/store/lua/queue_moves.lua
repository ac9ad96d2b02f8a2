-- queue_moves: finds jobs of a queue, and takes them out.  Not a script of its own: move_jobs and bulk_jobs include it by
-- `-- include queue_moves`, after `-- include claims`, `server_clock`, `batches` and `results`.
--
-- KEYS[1], KEYS[2]  queue:<from>, kiq:wake:<from>; the wake list is the tail of the queue
-- A place is counted from the job that is fetched next, 0.

local lengths = {redis.call('LLEN', KEYS[1]), redis.call('LLEN', KEYS[2])}
local total = lengths[1] + lengths[2]

-- Returns payload -> its positions, {list, index, place} each; the last one is the nearest to the end that is fetched next.
local function positions_of(farthest, nearest)
  local first, last = math.max(0, total - 1 - farthest), total - 1 - nearest
  local positions = {}
  local function look(list, from, to, before)
    for offset, payload in ipairs(to < from and {} or redis.call('LRANGE', KEYS[list], from, to)) do
      local index = from + offset - 1
      positions[payload] = positions[payload] or {}
      table.insert(positions[payload], {list, index, total - 1 - before - index})
    end
  end
  look(1, first, math.min(last, lengths[1] - 1), 0)
  look(2, math.max(0, first - lengths[1]), last - lengths[1], lengths[1])
  return positions
end

-- Tells those who wait for a job, as its row says; returns the rest of that.
local function tell_all(words)
  local key, seconds, value, rest = string.match(words, '^tell (%d+) (%d+) (%Z*)%z(.*)$')
  if not key then return words end
  pcall(tell, KEYS[tonumber(key)], value, seconds)
  return tell_all(rest)
end

-- Takes the jobs of the rows from ARGV[first] on out of the queue, and pushes them to a list unless it is nil.  A row is
-- that of move_jobs.  Returns the index of each job that was found, from 1.
local function take(first, positions, target, mark)
  local taken, marks, sums = {}, {0, 0}, {0, 0}
  for at = first, #ARGV, 2 do
    local position = positions[ARGV[at]] and table.remove(positions[ARGV[at]])
    if position then
      local claim, batch, jid = string.match(target and '' or tell_all(ARGV[at + 1]), '^(%d+) (%d+) (.*)$')
      if target then redis.call('LPUSH', target, ARGV[at + 1]) end -- a refusal comes here, before any job is marked
      -- First: a claim without a job would keep out equal jobs, and a batch would wait for it.
      if jid and claim ~= '0' then clear(KEYS[tonumber(claim)], jid) end
      if jid and batch ~= '0' then change_status(KEYS[tonumber(batch)], jid, 'error', '', '', '"deleted by hand"') end
      redis.call('LSET', KEYS[position[1]], position[2], mark)
      marks[position[1]] = marks[position[1]] + 1
      sums[position[1]] = sums[position[1]] + position[2]
      taken[#taken + 1] = (at - first) / 2 + 1
    end
  end
  for list, count in ipairs(marks) do
    if count > 0 then
      local is_near_head = sums[list] / count < lengths[list] / 2 -- LREM stops after the last mark that it removes
      redis.call('LREM', KEYS[list], is_near_head and count or -count, mark)
    end
  end
  return taken
end
