#!lua flags=no-writes
-- read_queue: read a part of a queue.  The wake list is its tail.
--
-- KEYS[1]  queue:<name>           list
-- KEYS[2]  kiq:wake:<name>        list
-- ARGV[1], ARGV[2]  first and last index as for LRANGE: 0 is the newest job, -1 the one that is fetched next
--
-- Returns {length, index of the first payload returned, {payloads}}.
-- Cost: O(payloads), and one step per some hundred payloads before them.

local length = redis.call('LLEN', KEYS[1])
local total = length + redis.call('LLEN', KEYS[2])
local function index(text)
  local number = tonumber(text)
  return number < 0 and number + total or number
end
local first, last = math.max(0, index(ARGV[1])), index(ARGV[2])

local payloads = first < length and first <= last and redis.call('LRANGE', KEYS[1], first, math.min(last, length - 1)) or {}
if last >= length and first <= last then
  for _, payload in ipairs(redis.call('LRANGE', KEYS[2], math.max(0, first - length), last - length)) do
    payloads[#payloads + 1] = payload
  end
end
return {total, first, payloads}
