#!lua flags=no-writes
-- scan_jobs: read a slice of a queue, the next to be fetched first, and return the jobs in it that may be meant by a filter.
--
-- KEYS[1], KEYS[2]  queue:<name>, kiq:wake:<name>  lists; the wake list is the tail of the queue
-- ARGV[1]  the place where the slice begins, 0 being the job that is fetched next; only where ARGV[2] is 0
-- ARGV[2]  number of anchors: jobs that were looked at and stay, the farthest first; then the place and the SHA-1 of each.  The
--          slice begins behind the first one that is found, up to so many places nearer to its turn as the next word says
-- then how many places that is; then at most so many jobs in the slice, bytes of these (but for the last few), jobs found
-- then for each part of the filter: the number of its texts, and these.  A job is found if it has one text of each part
--
-- Returns {1, place of the first job of the slice, jobs read, jobs of the queue, {place and SHA-1 of the last jobs that are
--          not found, the farthest first}, {payload, place, …}}; {0, jobs of the queue} if no anchor is found.
-- Cost: O(slice, and one step per some hundred payloads before it).

-- include text_filter

local FIRST_CHUNK, MAX_CHUNK = 4, 200 -- jobs that are read at once; how large they are is known after the first
local MAX_ANCHORS, BEHIND = 3, 20 -- jobs that may have been put back in front of an anchor
local length = redis.call('LLEN', KEYS[1])
local total = length + redis.call('LLEN', KEYS[2])

-- Returns the jobs from a place to another one, both included, the next to be fetched first.
local function read(from, to)
  local first, last = math.max(0, total - 1 - to), total - 1 - math.max(0, from)
  local upper = first < length and first <= last and redis.call('LRANGE', KEYS[1], first, math.min(last, length - 1)) or {}
  local lower = last >= length and redis.call('LRANGE', KEYS[2], math.max(0, first - length), last - length) or {}
  local jobs = {}
  for at = #lower, 1, -1 do jobs[#jobs + 1] = lower[at] end
  for at = #upper, 1, -1 do jobs[#jobs + 1] = upper[at] end
  return jobs
end

-- Returns the place of an anchor now, nil if it is not found.
local function place_of(place, digest, reach)
  local there = read(place, place)[1]
  if there and redis.sha1hex(there) == digest then return place end
  local from = math.max(0, place - reach)
  local jobs = read(from, place + BEHIND)
  for at = #jobs, 1, -1 do
    if redis.sha1hex(jobs[at]) == digest then return from + at - 1 end
  end
end

local anchors = tonumber(ARGV[2])
local at = 3 + 2 * anchors
local reach = tonumber(ARGV[at])
local most, most_bytes, most_found = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), 2 * ARGV[at + 3]
local start = anchors == 0 and tonumber(ARGV[1]) or nil
for each = 3, 1 + 2 * anchors, 2 do
  local place = not start and place_of(tonumber(ARGV[each]), ARGV[each + 1], reach)
  if place then start = place + 1 end
end
if not start then return {0, total} end

local is_found = filter_from(at + 4)
local found, others, count, bytes, chunk = {}, {}, 0, 0, FIRST_CHUNK
while count < most and bytes < most_bytes and #found < most_found and start + count < total do
  local jobs = read(start + count, start + count + math.min(chunk, most - count) - 1)
  for _, payload in ipairs(jobs) do
    local place = start + count
    count, bytes = count + 1, bytes + #payload
    if is_found(payload) then
      found[#found + 1], found[#found + 2] = payload, place
      if #found >= most_found then break end
    else
      others[#others + 1] = {place, payload}
    end
  end
  chunk = math.max(FIRST_CHUNK, math.min(MAX_CHUNK, math.floor((most_bytes - bytes) * count / math.max(1, bytes))))
end

local stay = {}
for each = #others, math.max(1, #others - MAX_ANCHORS + 1), -1 do
  stay[#stay + 1], stay[#stay + 2] = others[each][1], redis.sha1hex(others[each][2])
end
return {1, start, count, total, stay, found}
