-- claims: keys that a push has claimed; their value is the jid of the job that holds them.  Not a script of its own:
-- others include it by `-- include claims`.
--
-- Only the holder changes such a key.  A key of another type is nobody's.

local function is_held_by(key, jid)
  return redis.pcall('GET', key) == jid
end

-- Deletes the key if this job holds it.
local function clear(key, jid)
  if is_held_by(key, jid) then redis.call('DEL', key) end
end

-- Has the key last for so many seconds at least, if this job holds it.
local function extend(key, jid, seconds)
  if is_held_by(key, jid) then redis.call('EXPIRE', key, seconds, 'GT') end
end
