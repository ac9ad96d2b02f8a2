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
-- Times are epoch seconds of Redis' clock.

local SLACK_SECONDS = 60 -- a key lives that much longer than its limit needs it

local function rate_time()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function number_of(key, field)
  return tonumber(redis.call('HGET', key, field) or '') or 0
end

-- Each function returns the time from which one more may start.
local earliest = {
  fixed_window = function(key, largest, seconds, now)
    local window = math.floor(now / seconds)
    if number_of(key, 'window') ~= window or number_of(key, 'count') < largest then return now end
    return (window + 1) * seconds
  end,
  sliding_window = function(key, largest, seconds, now)
    local starts = key .. ':starts'
    local count = redis.call('ZCOUNT', starts, '(' .. string.format('%.6f', now - seconds), '+inf')
    if count < largest then return now end
    return tonumber(redis.call('ZREVRANGE', starts, largest - 1, largest - 1, 'WITHSCORES')[2]) + seconds
  end,
  leaky_bucket = function(key, largest, seconds, now)
    return math.max(now, number_of(key, 'empty_at') - (largest - 1) * seconds)
  end,
}

local function seconds_between(kind, largest, seconds)
  return kind == 'leaky_bucket' and seconds or seconds / largest
end

local function keep(key, seconds)
  redis.call('PEXPIRE', key, math.ceil((seconds + SLACK_SECONDS) * 1000))
end

-- Each function counts a start.
local count_start = {
  fixed_window = function(key, _, seconds, now)
    local window = math.floor(now / seconds)
    if number_of(key, 'window') ~= window then redis.call('HSET', key, 'window', window, 'count', 0) end
    redis.call('HINCRBY', key, 'count', 1)
  end,
  sliding_window = function(key, _, seconds, now, holder)
    local starts = key .. ':starts'
    redis.call('ZREMRANGEBYSCORE', starts, '-inf', string.format('%.6f', now - seconds))
    redis.call('ZADD', starts, string.format('%.6f', now), holder)
    keep(starts, seconds)
    redis.call('HSETNX', key, 'promised', 0) -- the hash is what `kiqctl` finds
  end,
  leaky_bucket = function(key, _, seconds, now)
    redis.call('HSET', key, 'empty_at', string.format('%.6f', math.max(now, number_of(key, 'empty_at')) + seconds))
  end,
}

-- Returns the seconds after which a start is allowed, 0 if it is allowed now.  A start that is refused is promised a time.
local function wait_for_start(kind, key, arguments)
  local largest, seconds, now = tonumber(arguments[1]), tonumber(arguments[2]), rate_time()
  local at, between = earliest[kind](key, largest, seconds, now), seconds_between(kind, largest, seconds)
  local promised, was_promised = number_of(key, 'promised'), arguments[3] == '1'
  if at <= now and (was_promised or promised <= now) then return 0 end
  -- One that comes a little before its time keeps its place.
  if was_promised and at - now <= between then return at - now end
  local field = was_promised and 'again' or 'promised'
  at = math.max(at, number_of(key, field))
  redis.call('HSET', key, field, string.format('%.6f', at + between))
  keep(key, at - now + largest * between + seconds)
  return at - now
end

-- Counts a start that is allowed.
local function start(kind, key, arguments, holder)
  local largest, seconds, now = tonumber(arguments[1]), tonumber(arguments[2]), rate_time()
  count_start[kind](key, largest, seconds, now, holder)
  keep(key, math.max(0, number_of(key, 'promised') - now) + largest * seconds_between(kind, largest, seconds) + seconds)
end
