#!lua flags=allow-oom
-- bulk_jobs: take a slice of the jobs of a bulk action out of their queue, delete them or move them to another queue, and
-- write in the same step how far the action is.  Jobs that were fetched meanwhile are gone; they are never counted as done.
--
-- KEYS[1], KEYS[2], KEYS[3]  queue:<from>, kiq:wake:<from>, queues: as in move_jobs
-- KEYS[4]  kiq:bulk:<id>     hash
-- KEYS[5]  queue:<to>        list    only when the jobs are moved
-- KEYS[5+] when the jobs are deleted: the keys that they have claimed (claims.lua), their batches, and their results
-- ARGV[1] to ARGV[4]  as in move_jobs
-- ARGV[5]  the places at which the jobs were read, in front of a comma each
-- ARGV[6] to ARGV[14], and the reasons behind them, as in bulk_entries; ARGV[10] names jobs that stay (scan_jobs)
-- then the rows of move_jobs
--
-- Jobs have moved up since they were read, as others were fetched.  If one is not found, and may lie nearer to its turn than
-- ARGV[4], nothing happens: the caller has to search there.
-- Returns {1, {index of each job that was found}}; {0} if the action is not the caller's any more; {2, how far the jobs have
-- moved up, -1 where none was found}.
-- Cost: O(jobs + their distance from the nearer end of the queue).

-- include server_clock
-- include claims
-- include batches
-- include results
-- include queue_moves
-- include bulk_state
-- include bulk_counts

local key = KEYS[4]
if not is_ours(key) then return {0} end

local nearest = tonumber(ARGV[4])
local positions = positions_of(tonumber(ARGV[3]), nearest)
local is_missing, shift, least, row = false, -1, math.huge, first_row
for place in string.gmatch(ARGV[5], '(%d+),') do
  local found = positions[ARGV[row]]
  if found then shift = math.max(shift, tonumber(place) - found[#found][3]) else is_missing = true end
  least, row = math.min(least, tonumber(place)), row + 2
end
if is_missing and nearest > 0 and (shift < 0 or shift > least - nearest) then return {2, shift} end

local is_moved = ARGV[1] ~= ''
local taken = take(first_row, positions, is_moved and KEYS[5] or nil, ARGV[2])
if is_moved and #taken > 0 then pcall(redis.call, 'SADD', KEYS[3], ARGV[1]) end -- on failure the jobs still run
write_counts(key, #taken, (#ARGV - first_row + 1) / 2 - #taken, 0)
return {1, taken}
