-- old_beat: renew the beat of a member that acts.  Not a script of its own: others include it by `-- include old_beat`.
--
-- A process that stood still may act before it beats.  What it is given now must not be recovered in the next moment,
-- since it starts it on the strength of this reply.

local MAX_BEAT_AGE = 250 -- milliseconds; a member with a younger beat is not written, since most have one

-- Renews the beat of a member that this script has found to be one; a member without a beat is left to the audit.
-- What an ACL or a broken key refuses here must not stop the work: the beats themselves report it.
local function renew_old_beat(beats, identity)
  local beat = redis.pcall('ZSCORE', beats, identity)
  if type(beat) ~= 'string' then return end
  local clock = redis.pcall('TIME')
  if clock.err then return end
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if now - tonumber(beat) > MAX_BEAT_AGE then redis.pcall('ZADD', beats, now, identity) end
end
