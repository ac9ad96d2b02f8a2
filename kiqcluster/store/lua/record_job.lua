#!lua flags=allow-oom
-- record_job: move a job of a queue to the list of dropped jobs, as a whole.
--
-- KEYS[1]  queue:<name>           list
-- KEYS[2]  kiq:wake:<name>        list    jobs that woke a waiting process: the queue's tail
-- KEYS[3]  kiq:dropped            zset    payloads by when they were dropped
-- KEYS[4+] the key that the job has claimed (claims.lua), its batch (batches.lua), and keys of those who wait for it, or for
--          the last job of its chain (results.lua), as far as there are any
-- ARGV[1]  the job's bytes   ARGV[2] its bytes in the list   ARGV[3] now, epoch seconds
-- ARGV[4], ARGV[5]  limits of the list (dead_set.lua)
-- then for each key from KEYS[4] on: "clear", "event" or "tell", the jid or the seconds, messages for the batch or what is
--          told (as in move_entries.lua)
--
-- Returns 1, or 0 where the queue does not have the job.  Cost: O(distance of the job from an end of the queue).

-- include server_clock
-- include dead_set
-- include claims
-- include results
-- include batches

for list = 2, 1, -1 do
  local index = redis.call('LPOS', KEYS[list], ARGV[1], 'RANK', -1)
  if index then
    redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2])
    for key = 4, #KEYS do -- before the job goes: a claim without a job would keep out equal jobs
      local at = 6 + 3 * (key - 4)
      if ARGV[at] == 'clear' then clear(KEYS[key], ARGV[at + 1]) end
      if ARGV[at] == 'event' then change_status(KEYS[key], ARGV[at + 1], 'error', '', '', ARGV[at + 2]) end
      if ARGV[at] == 'tell' then pcall(tell, KEYS[key], ARGV[at + 2], ARGV[at + 1]) end
    end
    redis.call('LREM', KEYS[list], -1, ARGV[1])
    pcall(trim_dead, KEYS[3], ARGV[3], ARGV[4], ARGV[5])
    return 1
  end
end
return 0
