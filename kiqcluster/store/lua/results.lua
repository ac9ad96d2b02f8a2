-- results: what becomes of jobs, for those who wait for them.  Not a script of its own: others include it by
-- `-- include results`.

-- The key is a list with this value as its only element, for so many seconds: who waits for it is told.
local function tell(key, value, seconds)
  redis.call('DEL', key)
  redis.call('RPUSH', key, value)
  redis.call('EXPIRE', key, seconds)
end

-- The history of a job gets one more event, and is kept for so many seconds from now.  A history that cannot be
-- written keeps no job from its way.
local function note(key, event, seconds)
  if type(redis.pcall('RPUSH', key, event)) == 'number' then redis.pcall('EXPIRE', key, seconds) end
end
