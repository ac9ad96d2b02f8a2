#!lua
-- progress: writes how far jobs have come, of those that this process still holds.
--
-- KEYS[1]  kiq:inflight:<id>      hash    "<token>:<queue>" -> payload
-- then for each job: KEYS kiq:progress:<jid> (string), kiq:hand:<id>:<token>:<queue> (its hand list, hand_lists.lua)
-- for each job: ARGV its field, value, seconds that it is kept
--
-- A job that has ended, or was recovered, is left alone: its key is deleted, or belongs to another process.
-- Returns the number of jobs that were written.  Cost: O(jobs).

local written = 0
for index = 1, #ARGV / 3 do
  local progress, hand = KEYS[2 * index], KEYS[2 * index + 1]
  local field, value, seconds = ARGV[3 * index - 2], ARGV[3 * index - 1], ARGV[3 * index]
  if redis.call('HGET', KEYS[1], field) or redis.call('EXISTS', hand) == 1 then
    redis.call('SET', progress, value, 'EX', seconds)
    written = written + 1
  end
end
return written
