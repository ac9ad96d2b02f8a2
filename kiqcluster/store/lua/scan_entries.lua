#!lua flags=no-writes
-- scan_entries: read a slice of a sorted set, and return the entries in it that may be meant by a filter.
--
-- KEYS[1]  a sorted set of jobs
-- ARGV[1]  REV: from the highest score down; '': from the lowest up
-- ARGV[2], ARGV[3]  score and payload of the last entry of the previous slice; both empty for the first slice.  A score
--          without a payload begins with the entries of that score, after the first ARGV[4] of them
-- ARGV[4]  see there
-- ARGV[5]  the score after which to stop; '' for none
-- ARGV[6], ARGV[7], ARGV[8]  at most so many entries in the slice, bytes of these (but for the last few), entries found
-- ARGV[9]  1: also return the places of found entries, and of the last one, among those of their score; else 0
-- ARGV[10…]  for each part of the filter: the number of its texts, and these.  An entry is found if its payload contains
--          one text of each part
--
-- If the last entry has left its score, the slice begins with the entry that comes after where it was.
-- Returns {rank of the first entry of the slice, entries read, last payload, its score, its place, entries of the set,
--          rank after the last entry that may be read, {payload, score, place, …}}.
-- Cost: O(log entries + slice).

-- include text_filter

local key, reverse, score = KEYS[1], ARGV[1] == 'REV', ARGV[2]
local FIRST_CHUNK, MAX_CHUNK = 4, 200 -- entries that are read at once; how large they are is known after the first

local function range(from, to)
  if reverse then return redis.call('ZRANGE', key, from, to, 'REV') end
  return redis.call('ZRANGE', key, from, to)
end

-- Returns how many entries come before those of a score.
local function before(of)
  if reverse then return redis.call('ZCOUNT', key, '(' .. of, '+inf') end
  return redis.call('ZCOUNT', key, '-inf', '(' .. of)
end

-- Returns whether one payload comes after another of the same score: by bytes, as Redis sorts, not by a locale.
local function is_after(one, other)
  for at = 1, math.min(#one, #other) do
    local mine, theirs = string.byte(one, at), string.byte(other, at)
    if mine ~= theirs then return (mine > theirs) ~= reverse end
  end
  return #one ~= #other and (#one > #other) ~= reverse
end

local function first_rank()
  if score == '' then return 0 end
  local payload = ARGV[3]
  if payload == '' then
    return before(score) + math.min(tonumber(ARGV[4]), redis.call('ZCOUNT', key, score, score))
  end
  local now = redis.call('ZSCORE', key, payload)
  if now and tonumber(now) == tonumber(score) then
    return redis.call(reverse and 'ZREVRANK' or 'ZRANK', key, payload) + 1
  end
  local low = before(score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(range(middle, middle)[1], payload) then high = middle else low = middle + 1 end
  end
  return low
end

local is_found = filter_from(10)

local function place_of(rank, its_score)
  return ARGV[9] == '1' and rank - before(its_score) or 0
end

local size = redis.call('ZCARD', key)
local limit = size
if ARGV[5] ~= '' then
  limit = reverse and redis.call('ZCOUNT', key, ARGV[5], '+inf') or redis.call('ZCOUNT', key, '-inf', ARGV[5])
end
local start = first_rank()
local most, most_bytes, most_found = tonumber(ARGV[6]), tonumber(ARGV[7]), 3 * ARGV[8]
local found, count, bytes, last, chunk = {}, 0, 0, nil, FIRST_CHUNK
while count < most and bytes < most_bytes and #found < most_found and start + count < limit do
  local from = start + count
  local payloads = range(from, math.min(from + math.min(chunk, most - count), limit) - 1)
  if #payloads == 0 then break end
  for _, payload in ipairs(payloads) do
    count, bytes, last = count + 1, bytes + #payload, payload
    if is_found(payload) then
      local its_score = redis.call('ZSCORE', key, payload)
      local place = place_of(start + count - 1, its_score)
      found[#found + 1], found[#found + 2], found[#found + 3] = payload, its_score, place
      if #found >= most_found then break end
    end
  end
  chunk = math.max(FIRST_CHUNK, math.min(MAX_CHUNK, math.floor((most_bytes - bytes) * count / math.max(1, bytes))))
end
local last_score = last and redis.call('ZSCORE', key, last) or ''
return {start, count, last or '', last_score, last and place_of(start + count - 1, last_score) or 0, size, limit, found}
