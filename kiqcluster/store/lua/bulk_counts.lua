-- bulk_counts: writes how far a bulk action is after a slice.  Not a script of its own: bulk_entries and bulk_jobs include it
-- by `-- include bulk_counts`, after `-- include bulk_state`.
--
-- ARGV[6] to ARGV[14], and the reasons behind them, are those of bulk_entries.

local MAX_REASONS = 20
local OTHER = 'why:…'

local first_row = 15 + 2 * ARGV[14]

-- Returns whether the action is in the state that the runner expects, and this runner has it.
local function is_ours(key)
  local state, owner = unpack(redis.call('HMGET', key, 'state', 'owner'))
  return state == ARGV[8] and owner == ARGV[6]
end

-- Counts jobs that stay, by their reasons; those beyond the first reasons together.
local function count_reason(key, text, count)
  local name = 'why:' .. text
  if redis.call('HEXISTS', key, name) == 0 then
    local reasons = tonumber(redis.call('HGET', key, 'reasons') or 0) + 1
    if reasons > MAX_REASONS then name = OTHER else redis.call('HSET', key, 'reasons', reasons) end
  end
  redis.call('HINCRBY', key, name, count)
  redis.call('HINCRBY', key, 'failed', count)
end

-- Writes the counts of the slice and its place, and the last state if this was the last slice.
local function write_counts(key, done, gone, dropped)
  for at = 15, first_row - 1, 2 do count_reason(key, ARGV[at], ARGV[at + 1]) end
  redis.call('HINCRBY', key, 'looked', ARGV[12])
  redis.call('HINCRBY', key, 'found', ARGV[13])
  redis.call('HINCRBY', key, 'done', done)
  redis.call('HINCRBY', key, 'gone', gone)
  redis.call('HINCRBY', key, 'dropped', dropped)
  if ARGV[10] ~= '' then redis.call('HSET', key, 'score', ARGV[10], 'payload', ARGV[11]) end
  local owner = ARGV[6]
  if ARGV[9] ~= '' then
    redis.call('HSET', key, 'state', ARGV[9], 'ended', string.format('%.3f', now_ms() / 1000))
    redis.call('HDEL', key, 'owner', 'until', 'payload')
    owner = ''
  end
  keep(key, owner, tonumber(ARGV[7]))
end
