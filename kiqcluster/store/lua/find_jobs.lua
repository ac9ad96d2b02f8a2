#!lua flags=no-writes
-- find_jobs: read a slice of a queue, and return the jobs in it that contain a text.  The wake list is its tail.
--
-- KEYS[1]          queue:<name>           list
-- KEYS[2]          kiq:wake:<name>        list
-- ARGV[1]          index of the first job of the slice, the newest being 0
-- ARGV[2]          jobs in the slice
-- ARGV[3…]         texts; a job is returned if its payload contains one of them
--
-- Returns {jobs read, their bytes, {payloads}}.
-- Cost: O(slice), and one step per some hundred payloads before it.

local first, last = tonumber(ARGV[1]), ARGV[1] + ARGV[2] - 1
local found, bytes, count = {}, 0, 0
local function look(key, from, to)
  for _, payload in ipairs(redis.call('LRANGE', key, from, to)) do
    bytes, count = bytes + #payload, count + 1
    for text = 3, #ARGV do
      if string.find(payload, ARGV[text], 1, true) then
        found[#found + 1] = payload
        break
      end
    end
  end
end

local length = redis.call('LLEN', KEYS[1])
if first < length then
  look(KEYS[1], first, last)
end
if last >= length then
  look(KEYS[2], math.max(0, first - length), last - length)
end
return {count, bytes, found}
