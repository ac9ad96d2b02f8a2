#!lua flags=allow-oom
-- move_entries: move entries of a sorted set to queues, to the dead set, or to another score or name, or delete them.
-- Each move happens as a whole.
--
-- KEYS[1]  schedule, retry, dead  zset    payloads by score; or a line of parked jobs (parked.lua), to delete some
-- KEYS[2]  queues                 set     queue names
-- KEYS[3+] queue:<name>, dead     destinations of pushed (lists) and buried (zset) entries; only those that are used,
--          because an ACL may forbid others
-- ARGV[1]  now, epoch seconds
-- ARGV[2]  highest score of an entry that is moved (now, for due entries); '' for no limit.  Redis' own time replaces it
--          when the caller's clock is ahead (server_clock.lua)
-- ARGV[3]  new score of an entry that cannot be moved; '' leaves it where it is
-- ARGV[4], ARGV[5]  limits of the dead set, applied when something was buried (dead_set.lua): seconds that an entry is
--          kept, and how many are kept, less one
-- then for each entry: old bytes, verb, index into KEYS, name of the queue, new bytes
--   verb "push": LPUSH the new bytes; "bury": ZADD them to the dead set, as of now; "drop": remove it;
--   "defer": the new bytes are its new score; "rename": it gets the new bytes and keeps its score (if the set has an
--   entry with these bytes already, it is left alone: the two would become one)
--   verb "clear" (with the bytes of the entry before it): if that is moved, the key is deleted if its value is the name,
--   the jid of that entry (claims.lua); before the entry goes: a claim without a job would keep out equal jobs
--   verb "event" (likewise, behind its "clear"): if it is moved, the job with the jid that is the name ends as `error` in
--   the task of this key, with the new bytes as its messages (tasks.lua)
--   verb "unmark" (likewise): the name, the jid of that entry, is removed from a sorted set (kiq:cancelled)
--
-- An entry is moved only if it is still there, and no higher than ARGV[2]: another poller may have been faster, and
-- Ruby's web page may have rescheduled it.  This script never decodes payloads (cjson mangles numbers).
-- If Redis refuses to move an entry (its queue's key is not a list), the other entries are still moved.
-- Returns {{index of each moved entry, from 1}, {Redis' error and the key, for each entry that could not be moved},
--          {dead entries dropped because they were too old, because they were too many}}.
-- Cost: O(entries x log n).

-- include server_clock
-- include dead_set
-- include claims
-- include tasks

local moved, refusals, dead = {}, {}, nil -- dead: the dead set's key once an entry was buried
local highest = ARGV[2] ~= '' and tonumber(not_ahead(ARGV[2])) or nil

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
  event = function(key, jid, messages) change_event(key, jid, 'error', messages, '') end,
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

for at = 6, #ARGV, 5 do
  local old = ARGV[at]
  local score = not COMPANIONS[ARGV[at + 1]] and redis.call('ZSCORE', KEYS[1], old)
  if score and (not highest or tonumber(score) <= highest) then
    local fine, stays, is_alone = pcall(write, at, score)
    if fine then
      if not stays then redis.call('ZREM', KEYS[1], old) end
      if not is_alone then moved[#moved + 1] = (at - 1) / 5 end
    else
      local words = type(stays) == 'table' and stays.err or tostring(stays)
      refusals[#refusals + 1] = words .. ' (key ' .. KEYS[tonumber(ARGV[at + 2])] .. ')'
      if ARGV[3] ~= '' then redis.call('ZADD', KEYS[1], 'XX', ARGV[3], old) end
    end
  end
end

local old, excess = 0, 0
if dead then old, excess = trim_dead(dead, ARGV[1], ARGV[4], ARGV[5]) end
return {moved, refusals, {old, excess}}
