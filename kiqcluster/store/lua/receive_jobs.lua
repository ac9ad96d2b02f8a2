#!lua
-- receive_jobs: write jobs that come from another shard, each once (store/shard_moves.py).
--
-- KEYS[1]  kiq:moved:<run>        string  number of the latest job of this run that was written
-- KEYS[2]  queues                 set     queue names
-- KEYS[3+] queue:<name>, schedule, retry, dead   where the jobs go; only those that are used
-- ARGV[1]  seconds that the record is kept
-- then for each job, in the order of their numbers: its number, index into KEYS, name of the queue, score ('' for a job
--          of a queue), bytes
--
-- A job is written before its number: after a failure in between it is written again, for twice is better than never.
-- It ends at the first job that Redis refuses (its queue's key is not a list).
-- Returns {how many of the first jobs have been written, by this call or before; Redis' error for the next, or ''}.
-- Cost: O(jobs), O(log n) each for a set.

local latest = tonumber(redis.call('GET', KEYS[1]) or '0')
local count = 0
for at = 2, #ARGV, 5 do
  local number, key, score = tonumber(ARGV[at]), KEYS[tonumber(ARGV[at + 1])], ARGV[at + 3]
  if number > latest then
    local fine, reply
    if score == '' then
      fine, reply = pcall(redis.call, 'LPUSH', key, ARGV[at + 4])
    else
      fine, reply = pcall(redis.call, 'ZADD', key, score, ARGV[at + 4])
    end
    if not fine then
      return {count, (type(reply) == 'table' and reply.err or tostring(reply)) .. ' (key ' .. key .. ')'}
    end
    redis.call('SET', KEYS[1], number, 'EX', ARGV[1])
    if score == '' then pcall(redis.call, 'SADD', KEYS[2], ARGV[at + 2]) end -- on failure the job still runs
  end
  count = count + 1
end
return {count, ''}
