-- rates: whether one more start is within a rate.  Not a script of its own: others include it by `-- include rates`.
--
-- A rate is a hash kiq:rate:<name>, with fields by its kind, and `promised`; a sliding window has a sorted set beside it.
-- Arguments of a rate: largest, seconds, 1 if this start was promised else 0.
--   fixed_window     at most `largest` starts in each window of `seconds`, counted from the epoch
--                    window: number of the window   count: starts in it
--   sliding_window   at most `largest` starts in any `seconds`
--                    <key>:starts, zset: holder by the time of its start
--   leaky_bucket     at most `largest` starts at once; room for one more comes back every `seconds`
--                    empty_at: when all room will be back
-- promised: the time after the last one that was promised to a start.  Each refused start is promised a time of its own,
-- so they do not all come back at once, and later starts do not overtake them.
-- again: the same for starts that came at their time, or late, and were refused once more, since the limit became
-- smaller or many came late: they do not go behind all others.
-- limit: "<kind> <largest> <seconds>" as it was asked for last, for those who look.   kept_until: see write_rate
-- kiq:rates        zset: name of each rate, by the time until which its key is kept
-- Times are epoch seconds of Redis' clock.
--
-- All of a rate is read once, and written once.  Plain functions, and few of them: a script makes all of its functions
-- anew each time that it runs.

local SLACK_SECONDS = 60 -- a key lives that much longer than its limit needs it
local RATES = {fixed_window = true, sliding_window = true, leaky_bucket = true}

local function rate_time()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1e6
end

-- Writes fields of a rate, which is needed for so many seconds more.  limit, kept_until: as they were read.
-- The time to live is set only when it would end too early: about once in SLACK_SECONDS while nobody waits.
-- Returns the time until which the key is kept now.  A listing that cannot be written refuses no start.
local function write_rate(rate, words, seconds, ...)
  local key, now, kept_until = rate.key, rate.now, tonumber(rate.kept_until or nil) or 0
  local is_due = now + seconds > kept_until
  if not is_due and rate.limit == words then
    if select('#', ...) > 0 then redis.call('HSET', key, ...) end
    return kept_until
  end
  if is_due then kept_until = now + seconds + SLACK_SECONDS end
  local text = string.format('%.6f', kept_until)
  redis.call('HSET', key, 'limit', words, 'kept_until', text, ...)
  redis.call('PEXPIRE', key, math.ceil((kept_until - now) * 1000))
  local prefix, name = string.match(key, '^(.-)kiq:rate:(.*)$')
  redis.pcall('ZREMRANGEBYSCORE', (prefix or '') .. 'kiq:rates', '-inf', string.format('%.6f', now))
  redis.pcall('ZADD', (prefix or '') .. 'kiq:rates', text, name or key)
  rate.is_renewed = true
  return kept_until
end

-- Returns what is known of a rate; `at`: the time from which one more may start.
local function read_rate(kind, key, arguments)
  local largest, seconds, now = tonumber(arguments[1]), tonumber(arguments[2]), rate_time()
  local rate = {kind = kind, key = key, now = now, seconds = seconds, largest = largest, between = seconds / largest}
  local found
  if kind == 'fixed_window' then
    found = redis.call('HMGET', key, 'limit', 'kept_until', 'promised', 'window', 'count')
    rate.window = math.floor(now / seconds)
    rate.count = tonumber(found[4] or nil) == rate.window and tonumber(found[5] or nil) or 0
    rate.at = rate.count < largest and now or (rate.window + 1) * seconds
  elseif kind == 'sliding_window' then
    found = redis.call('HMGET', key, 'limit', 'kept_until', 'promised')
    local starts = key .. ':starts'
    rate.count = redis.call('ZCOUNT', starts, '(' .. string.format('%.6f', now - seconds), '+inf')
    rate.at = now
    if rate.count >= largest then
      rate.at = redis.call('ZREVRANGE', starts, largest - 1, largest - 1, 'WITHSCORES')[2] + seconds
    end
  else
    found = redis.call('HMGET', key, 'limit', 'kept_until', 'promised', 'empty_at')
    rate.between = seconds
    rate.empty_at = math.max(now, tonumber(found[4] or nil) or 0)
    rate.at = math.max(now, rate.empty_at - (largest - 1) * seconds)
  end
  rate.limit, rate.kept_until, rate.promised = found[1], found[2], tonumber(found[3] or nil) or 0
  return rate
end

-- Returns the seconds after which a start is allowed, 0 if it is allowed now.  A start that is refused is promised a time.
local function wait_for_start(rate, arguments)
  local at, now, between, was_promised = rate.at, rate.now, rate.between, arguments[3] == '1'
  if at <= now and (was_promised or rate.promised <= now) then return 0 end
  -- One that comes a little before its time keeps its place.
  if was_promised and at - now <= between then return at - now end
  local field = was_promised and 'again' or 'promised'
  at = math.max(at, was_promised and tonumber(redis.call('HGET', rate.key, field) or nil) or rate.promised)
  local words = rate.kind .. ' ' .. arguments[1] .. ' ' .. arguments[2]
  local needed = at - now + rate.largest * between + rate.seconds
  write_rate(rate, words, needed, field, string.format('%.6f', at + between))
  return at - now
end

-- Counts a start that is allowed.
local function start(rate, arguments, holder)
  local now, seconds = rate.now, rate.seconds
  local words = rate.kind .. ' ' .. arguments[1] .. ' ' .. arguments[2]
  local needed = math.max(0, rate.promised - now) + rate.largest * rate.between + seconds
  if rate.kind == 'fixed_window' then
    write_rate(rate, words, needed, 'window', rate.window, 'count', rate.count + 1)
  elseif rate.kind == 'leaky_bucket' then
    write_rate(rate, words, needed, 'empty_at', string.format('%.6f', rate.empty_at + seconds))
  else
    local starts = rate.key .. ':starts'
    redis.call('ZADD', starts, string.format('%.6f', now), holder) -- first: an empty set would lose its time to live
    redis.call('ZREMRANGEBYSCORE', starts, '-inf', string.format('%.6f', now - seconds))
    local kept_until = write_rate(rate, words, needed)
    if rate.is_renewed or rate.count == 0 then -- where none is counted, the set may be a new one
      redis.call('PEXPIRE', starts, math.ceil((kept_until - now) * 1000))
    end
  end
end
