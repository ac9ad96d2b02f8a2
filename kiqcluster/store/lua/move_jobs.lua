#!lua flags=allow-oom
-- move_jobs: move jobs from a queue to another queue, or delete them.
--
-- KEYS[1]  queue:<from>           list
-- KEYS[2]  kiq:wake:<from>        list    jobs that woke a waiting process: the queue's tail
-- KEYS[3]  queues                 set     queue names
-- KEYS[4]  queue:<to>             list    only when the jobs are moved
-- KEYS[4+] when the jobs are deleted: the keys that they have claimed (claims.lua), their batches, and their results
-- ARGV[1]  name of the other queue, '' to delete them
-- ARGV[2]  a mark that is no job's payload, written over the moved jobs until they are removed
-- ARGV[3], ARGV[4]  the farthest and the nearest position to search, counted from the job that is fetched next (0)
-- then for each job: its bytes, and its bytes in the other queue; when it is deleted, "<claim> <batch> <jid>" or '': the
--          indexes into KEYS of the key that it has claimed and of its batch (batches.lua), 0 where it has none.  A key that
--          this jid holds is deleted with the job, and in its batch the job ends as `error`.  In front of that, for each
--          who is told: "tell <result> <seconds> <value>" and NUL (results.lua); one that cannot be written keeps no job
--
-- A job that is not found is left alone.  The others go to the back of the other queue in the order given.
-- Returns the index of each job moved, from 1.
-- Cost: O(jobs + their distance from the nearer end of the queue); only the jobs between the two positions are read.

-- include claims
-- include server_clock
-- include batches
-- include results
-- include queue_moves

local is_moved = ARGV[1] ~= ''
local moved = take(5, positions_of(tonumber(ARGV[3]), tonumber(ARGV[4])), is_moved and KEYS[4] or nil, ARGV[2])
if is_moved and #moved > 0 then pcall(redis.call, 'SADD', KEYS[3], ARGV[1]) end -- on failure the jobs still run
return moved
