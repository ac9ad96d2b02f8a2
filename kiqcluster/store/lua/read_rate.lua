#!lua flags=no-writes
-- read_rate: what is known of a rate, or of a concurrent limit, as it was asked for last (rates.lua, places.lua).
--
-- KEYS[1]  kiq:rate:<name>   hash
--
-- Returns {} where nothing is known; else {kind, largest, seconds, used, time now, time from which one more may start
-- beside those that were promised a time, time after the last promised one}.  Times are epoch seconds, as text.
-- used: starts in this window or period; room of a leaky bucket that has not come back; places held.
-- Cost: O(log n).

-- include rates

local kind, largest, seconds = string.match(redis.call('HGET', KEYS[1], 'limit') or '', '^(%S+) (%d+) ?(%S*)$')
if kind == 'concurrent' then
  return {kind, tonumber(largest), '0', redis.call('SCARD', KEYS[1] .. ':running'), '0', '0', '0'}
end
if not RATES[kind or ''] or not tonumber(seconds) then return {} end
local rate = read_rate(kind, KEYS[1], {largest, seconds})
local used = rate.count or math.ceil((rate.empty_at - rate.now) / rate.seconds)
return {
  kind, rate.largest, seconds, used,
  string.format('%.6f', rate.now), string.format('%.6f', rate.at), string.format('%.6f', rate.promised),
}
