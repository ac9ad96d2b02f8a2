-- moves: moves entries of a sorted set, each as a whole.  Not a script of its own: others include it by
-- `-- include moves`, after `-- include server_clock`, `dead_set`, `claims`, `results` and `batches`.
--
-- KEYS[1], KEYS[2], ARGV[1] to ARGV[5] and the five words of each row are those of move_entries.

local dead -- the dead set's key once an entry was buried

local verbs = {
  push = function(key, name, new)
    pcall(redis.call, 'SADD', KEYS[2], name) -- on failure the job still runs
    redis.call('LPUSH', key, new)
  end,
  bury = function(key, _, new, old)
    redis.call('ZADD', key, ARGV[1], new)
    dead = key
    return KEYS[1] == key and new == old -- then the entry is there already, and must stay
  end,
  drop = function() end,
  defer = function(_, _, new, old)
    redis.call('ZADD', KEYS[1], 'XX', new, old)
    return true
  end,
  rename = function(_, _, new, old, score)
    if new == old then return true end
    local is_added = redis.call('ZADD', KEYS[1], 'NX', score, new) == 1
    return not is_added, not is_added
  end,
}

-- Verbs about the entry before them.
local COMPANIONS = {
  clear = function(key, jid) clear(key, jid) end,
  event = function(key, jid, messages) change_status(key, jid, 'error', '', '', messages) end,
  cancel = function(key, jid, messages) change_status(key, jid, 'error', '', 'cancelled', messages) end,
  tell = function(key, seconds, value) pcall(tell, key, value, seconds) end,
  unmark = function(key, jid) redis.pcall('ZREM', key, jid) end,
}

-- Writes an entry where it goes, with what is about it.  Returns whether it stays, and whether it was left alone.
local function write(at, score)
  local old, key, name, new = ARGV[at], KEYS[tonumber(ARGV[at + 2])], ARGV[at + 3], ARGV[at + 4]
  local stays, is_alone = verbs[ARGV[at + 1]](key, name, new, old, score)
  local beside = at + 5
  while not is_alone and COMPANIONS[ARGV[beside + 1]] do
    COMPANIONS[ARGV[beside + 1]](KEYS[tonumber(ARGV[beside + 2])], ARGV[beside + 3], ARGV[beside + 4])
    beside = beside + 5
  end
  return stays, is_alone
end

-- Moves the entries of the rows from ARGV[first] on.  Returns {index of each moved entry}, {error and key of each entry
-- that could not be moved}, {dead entries dropped as too old, as too many}, and how many entries the rows name.
local function move_rows(first)
  local moved, refusals, count = {}, {}, 0
  local highest = ARGV[2] ~= '' and tonumber(not_ahead(ARGV[2])) or nil
  for at = first, #ARGV, 5 do
    local old = ARGV[at]
    local is_entry = not COMPANIONS[ARGV[at + 1]]
    local score = is_entry and redis.call('ZSCORE', KEYS[1], old)
    if is_entry then count = count + 1 end
    if score and (not highest or tonumber(score) <= highest) then
      local fine, stays, is_alone = pcall(write, at, score)
      if fine then
        if not stays then redis.call('ZREM', KEYS[1], old) end
        if not is_alone then moved[#moved + 1] = (at - first) / 5 + 1 end
      else
        local words = type(stays) == 'table' and stays.err or tostring(stays)
        refusals[#refusals + 1] = words .. ' (key ' .. KEYS[tonumber(ARGV[at + 2])] .. ')'
        if ARGV[3] ~= '' then redis.call('ZADD', KEYS[1], 'XX', ARGV[3], old) end
      end
    end
  end
  local old, excess = 0, 0
  if dead then old, excess = trim_dead(dead, ARGV[1], ARGV[4], ARGV[5]) end
  return moved, refusals, {old, excess}, count
end
